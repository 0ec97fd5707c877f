package ledgertest

import (
	"context"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

// Claim implements API.
func (f *Fake) Claim(ctx context.Context, r claim.Request) (claim.Answer, error) {
	if err := f.enter(ctx); err != nil {
		return claim.Answer{}, err
	}
	defer f.mu.Unlock()
	e := f.rows[key(r.Window)]
	seen, others, way := f.look(r, e)
	d := claim.Decide(r.Terms, seen)
	who := pod(r.Origin)
	if who == "" {
		who = r.ExecutionID.String()
	}
	if d.Stop {
		for _, o := range others {
			if !apart(o.window, r.Window) && before(o.window, r.Window) && !f.asked(o) {
				o.lease.cancel, o.lease.by, o.lease.asker = true, who, r.Window.Start
			}
		}
	}
	if d.Close != "" {
		if e == nil {
			e = f.insert(r.Window)
		}
		f.end(e, d.Close, d.Reason, who)
		if w, ok := way[d.Reason]; ok && d.Reason == claim.Superseded {
			e.replaced = w.Start
		}
	}
	answer := claim.Answer{Verdict: d.Verdict, Reason: d.Reason}
	if d.Verdict != claim.Run {
		answer.Holder = f.holder(r.Window)
		if w, ok := way[d.Reason]; ok && (d.Verdict == claim.Wait || d.Close != "") {
			answer.Holder = f.holder(w)
		}
		return answer, nil
	}
	if d.Fence {
		for _, o := range others {
			if r.Terms.Overlap == contract.OverlapReplace && before(o.window, r.Window) && !apart(o.window, r.Window) && !f.wanted(o) {
				f.end(o, claim.Skipped, claim.Superseded, who)
				o.replaced = r.Window.Start
			} else {
				f.end(o, claim.Failed, "", "")
			}
		}
	}
	expires := f.now().Add(r.Lease)
	if d.Reason == claim.Adopted {
		e.lease.expires = expires
	} else {
		if e == nil {
			e = f.insert(r.Window)
		}
		e.take(r, d.Reason)
		e.lease = &leaseRow{id: r.ExecutionID, expires: expires}
	}
	answer.Attempt, answer.FencingToken, answer.Generation = e.Attempt, e.token, e.Generation
	return answer, nil
}

// look is what claim() sees: of the window, of the other windows of its lane that run,
// and by reason which window is in the way.
func (f *Fake) look(r claim.Request, e *execution) (seen claim.Seen, others []*execution, way map[claim.Reason]window.Window) {
	way = map[claim.Reason]window.Window{}
	seen.Closed = f.isClosed(r.Window)
	seen.Late = r.Window.Start.Add(r.Terms.StartDeadline).Before(f.now())
	seen.Planned = f.planned(r.Window)
	way[claim.DST] = window.Window{JobName: r.Window.JobName, Start: r.Terms.Repeats}
	if e != nil {
		seen.Status, seen.Stored, seen.Decided = e.Status, e.reason, e.decided >= 0
		seen.Conflict = differ(e.PayloadDigest, r.Terms.PayloadDigest)
		seen.Current = e.Status == claim.Running && e.ExecutionID == r.ExecutionID
		seen.Used = !seen.Current && e.used(r.ExecutionID)
		if e.lease != nil {
			seen.Leased = e.lease.id == r.ExecutionID
			seen.Alive = !e.lease.expires.Before(f.now())
			seen.Stopping = f.asked(e)
		}
		seen.Reopens = e.closedAt.Before(r.Terms.ReopenBefore)
		seen.Crashed, seen.Failures = e.record()
		seen.Unstarted = !slices.ContainsFunc(e.attempts, func(a Attempt) bool { return a.Outcome != claim.OutcomeNotStarted })
	}
	serial := r.Terms.Serial && !strings.Contains(r.Window.JobName, "@")
	overlaps := r.Terms.Overlap != contract.OverlapAllow && r.Terms.Overlap != ""
	begun := !strings.Contains(r.Window.JobName, "#")
	for _, o := range f.rows {
		same := o.window.JobName == r.Window.JobName
		if same && (o.replaced.Equal(r.Window.Start) || o.lease != nil && o.lease.cancel && o.lease.asker.Equal(r.Window.Start)) {
			seen.Stopped = true
		}
		if same && serial {
			f.order(r, o, &seen, way)
			begun = begun || o.window.Start.Before(r.Window.Start) && !o.window.Start.Before(r.Terms.Since)
		}
		if o != e && o.Status == claim.Running && (overlaps && lane(o.window) == lane(r.Window) || serial && same) {
			others = append(others, o)
		}
	}
	sort.Slice(others, func(i, j int) bool { return before(others[i].window, others[j].window) })
	f.beside(r, others, &seen.Others, way)
	if serial {
		f.outstanding(r, begun, &seen, way)
	}
	if later, ok := way["later"]; ok && e == nil {
		way[claim.Superseded] = later
	}
	if seen.Status == claim.Running && seen.Stopping {
		delete(way, claim.Superseded) // by whom is not known any more
	}
	return seen, others, way
}

// order looks at another window of the same job for Terms.Serial.
func (f *Fake) order(r claim.Request, o *execution, seen *claim.Seen, way map[claim.Reason]window.Window) {
	switch {
	case o.window.Start.After(r.Window.Start) && (o.Status == claim.Running || o.Status == claim.Completed):
		if !seen.Later || o.window.Start.Before(way["later"].Start) {
			way["later"] = o.window
		}
		seen.Later = true
	case o.window.Start.Before(r.Window.Start) && (o.Status == claim.Running ||
		!o.window.Start.Before(r.Terms.Since) && (o.Status == claim.Failed || o.Status == claim.Held)):
		if !seen.Earlier || o.window.Start.After(way[claim.Order].Start) {
			way[claim.Order] = o.window
		}
		seen.Earlier = true
	}
}

// beside looks at the other running windows of the lane, the oldest first. Of those that
// are alive the one that matters most is in the way.
func (f *Fake) beside(r claim.Request, others []*execution, seen *claim.Others, way map[claim.Reason]window.Window) {
	most := 0
	for _, o := range others {
		older, separate := before(o.window, r.Window), apart(o.window, r.Window)
		matters := 2
		switch {
		case o.lease.expires.Before(f.now()):
			seen.Dead = true
			continue
		case separate:
			seen.Separate = true
			matters = 1
		case older:
			seen.Older = true
			seen.Unasked = seen.Unasked || !f.asked(o)
		default:
			seen.Newer = true
			if r.Terms.Overlap == contract.OverlapReplace {
				matters = 3
			}
		}
		if r.Terms.Overlap != contract.OverlapSkip && r.Terms.Overlap != contract.OverlapReplace {
			matters = 1
		}
		if matters > most {
			most = matters
			for _, reason := range []claim.Reason{claim.Overlap, claim.Replacing, claim.Superseded} {
				way[reason] = o.window
			}
		}
	}
}

// record is how often the window has failed since a person decided, and whether the last
// attempt crashed.
func (e *execution) record() (crashed bool, failures int) {
	for i, a := range e.attempts {
		dead := a.Outcome == "" && e.Status == claim.Running
		if i+1 <= e.decided {
			continue
		}
		crashed = dead || a.Outcome == claim.OutcomeCrashed || a.Outcome == claim.OutcomeLost
		if crashed || a.Outcome == claim.OutcomeFailed || a.Outcome == claim.OutcomeUncommitted {
			failures++
		}
	}
	return crashed, failures
}

// asked reports whether a newer window, which is not closed, asks the holder to stop.
func (f *Fake) asked(e *execution) bool {
	if e.lease == nil || !e.lease.cancel {
		return false
	}
	asker := f.rows[key(window.Window{JobName: e.window.JobName, Start: e.lease.asker})]
	return asker == nil || asker.Status != claim.Completed && asker.Status != claim.Exhausted && asker.Status != claim.Skipped
}

func (f *Fake) insert(w window.Window) *execution {
	e := &execution{Stored: claim.Stored{Generation: 1}, window: w, decided: -1}
	if f.rows == nil {
		f.rows = map[string]*execution{}
	}
	f.rows[key(w)] = e
	return e
}

// end leaves the window in a status in which nobody holds it.
func (f *Fake) end(e *execution, s claim.Status, why claim.Reason, by string) {
	e.replaced = time.Time{}
	if why == claim.Superseded && e.lease != nil {
		e.replaced = e.lease.asker
	}
	e.Status, e.reason, e.closedBy, e.closedAt, e.ExecutionID, e.lease = s, why, by, f.now(), uuid.Nil, nil
	if n := len(e.attempts); n > 0 && e.attempts[n-1].Outcome == "" {
		e.attempts[n-1].Outcome = claim.OutcomeLost
	}
}

// take begins another attempt.
func (e *execution) take(r claim.Request, why claim.Reason) {
	if why == claim.Takeover {
		e.attempts[e.Attempt-1].Outcome = claim.OutcomeLost
	}
	if why == claim.Reopened {
		e.decided = e.Attempt
	}
	e.Status, e.ExecutionID, e.reason, e.closedBy, e.closedAt, e.replaced = claim.Running, r.ExecutionID, "", "", time.Time{}, time.Time{}
	if e.PayloadDigest == "" {
		e.PayloadDigest = r.Terms.PayloadDigest
	}
	e.Attempt++
	e.token = max(e.token, 1<<40) + 1
	e.attempts = append(e.attempts, Attempt{ExecutionID: r.ExecutionID, Origin: r.Origin})
}

func (e *execution) used(id uuid.UUID) bool {
	for _, a := range e.attempts {
		if a.ExecutionID == id {
			return true
		}
		for _, old := range a.former {
			if old == id {
				return true
			}
		}
	}
	return false
}

func (f *Fake) holder(w window.Window) claim.Holder {
	h := claim.Holder{Window: w}
	e := f.rows[key(w)]
	if e == nil {
		return h
	}
	h.ExecutionID, h.Attempt, h.CompletedAt, h.PayloadDigest = e.ExecutionID, e.Attempt, e.CompletedAt, e.PayloadDigest
	if e.Status == claim.Skipped {
		h.Pod = e.closedBy
	} else if e.Attempt > 0 {
		h.Pod = pod(e.attempts[e.Attempt-1].Origin)
	}
	if e.lease != nil && e.Status == claim.Running {
		h.LeaseExpires = e.lease.expires
	}
	return h
}

func pod(o claim.Origin) string {
	if o.Namespace == "" || o.Pod == "" {
		return ""
	}
	return o.Namespace + "/" + o.Pod
}

// differ reports whether two payload digests are both known and not the same.
func differ(a, b string) bool { return a != "" && b != "" && a != b }

// base is a job's name without index and separate run; lane is it without the latter.
func base(jobName string) string {
	name, _, _ := strings.Cut(jobName, "@")
	name, _, _ = strings.Cut(name, "#")
	return name
}

func lane(w window.Window) string {
	name, _, _ := strings.Cut(w.JobName, "@")
	return name
}

// apart reports whether one of two windows of a lane is a separate run.
func apart(a, b window.Window) bool { return strings.Contains(a.JobName+b.JobName, "@") }

// before is the order of windows in a lane.
func before(a, b window.Window) bool {
	return a.Start.Before(b.Start) || a.Start.Equal(b.Start) && a.JobName < b.JobName
}

func (f *Fake) isClosed(w window.Window) bool {
	upto, ok := f.closed[base(w.JobName)]
	return ok && w.Start.Before(upto)
}
