package disposition

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
)

// cause says why a window without an execution has none, and whether it may still get one:
// young, late, gone, or wanted at once.
func (d *decider) cause(w time.Time) (Gap, answer) {
	key := w.Unix()
	switch sight, seen := d.sights[key]; {
	case len(d.jobs[key]) > 0:
		return d.byJob(w, telling(d.jobs[key]))
	case seen || w.Equal(d.CronJob.LastScheduled):
		return d.byLostJob(w, sight)
	}
	g, waits := d.byNothing(w)
	unseen := func(r Reason) bool { return r == Controller || r == StartDeadline }
	if before, known := d.recorded(w); known && unseen(g.Reason) && !unseen(before.Reason) {
		g.Reason, g.Evidence = before.Reason, before.Evidence // what kept it may be gone by now
	}
	if d.invented[key] && !waits && g.Reason != Suspended {
		if d.nameless(w) {
			return Gap{Status: Missed, Reason: ClockMoved, Rule: Nameless}, gone
		}
		return Gap{Reason: ClockMoved}, wanted // no Job but ours can come
	}
	if (w.Before(d.settled) || d.isExpired(w)) && (!waits || d.forced) {
		return g, gone
	}
	d.lookAfter(w, waits)
	return g, d.waiting(w)
}

// waiting tells a window that is late from one that is too young for that.
func (d *decider) waiting(w time.Time) answer {
	if w.Before(d.ripe) {
		return late
	}
	d.look(w.Add(Grace))
	return young
}

// byJob judges a window by its Job.
func (d *decider) byJob(w time.Time, j Job) (Gap, answer) {
	reason, evidence := said(j)
	g := Gap{Reason: reason, Evidence: evidence}
	if !j.Ended {
		if d.forced && w.Before(d.settled) {
			// All that is behind it shall not wait: it is looked at by itself from now on, and
			// should it run after all, its execution is the answer.
			return g, gone
		}
		d.look(d.Now.Add(min(poll, max(Grace, d.Now.Sub(w)))))
		return g, d.waiting(w)
	}
	if at := endOf(j).Add(Grace); d.Now.Before(at) {
		d.look(at) // the ledger may have been read before it ended
		return g, d.waiting(w)
	}
	return g, gone
}

// byLostJob judges a window whose Job was made, and is not there any more.
func (d *decider) byLostJob(w time.Time, s Sight) (Gap, answer) {
	g := Gap{Reason: JobGone, Evidence: s.Evidence}
	if telltale(s.Reason) {
		g.Reason = s.Reason
	}
	if g.Evidence == "" {
		g.Evidence = fmt.Sprintf("status.lastScheduleTime is %s, and there is no such Job", text(w))
	}
	// News of the CronJob may come before those of its Job.
	since := s.Gone
	if since.IsZero() {
		since = d.Now
	}
	if !d.Now.Before(since.Add(Grace)) || w.Before(d.settled) || d.isExpired(w) {
		return g, gone
	}
	d.look(since.Add(Grace))
	return g, d.waiting(w)
}

// byNothing says why a window has no Job, and whether it waits for the resume.
func (d *decider) byNothing(w time.Time) (g Gap, waits bool) {
	for _, s := range d.state.Suspensions {
		if !w.Before(s.From) && (s.To.IsZero() || w.Before(s.To)) {
			return Gap{Reason: Suspended, Evidence: seenSuspended(s)}, s.To.IsZero() && d.settings.SuspendedWindows == contract.SuspendedCatchUp
		}
	}
	if b, yes := d.busyAt(w); yes {
		return Gap{Reason: Overlap, Evidence: "concurrencyPolicy Forbid: Job " + b.job + " was running"}, false
	}
	if at := d.refusedAt(); d.CronJob.Refused != "" && !w.After(at) && w.After(at.Add(-recently)) {
		return Gap{Reason: cmp.Or(d.CronJob.RefusedReason, Admission), Evidence: d.CronJob.Refused}, false
	}
	if d.isExpired(w) {
		return Gap{Reason: StartDeadline, Evidence: fmt.Sprintf("startingDeadlineSeconds is %d", int64(d.CronJob.StartingDeadline.Seconds()))}, false
	}
	return Gap{Reason: Controller}, false
}

func seenSuspended(s Span) string {
	if s.To.IsZero() {
		return "it is suspended since " + text(s.From)
	}
	return fmt.Sprintf("it was suspended from %s to %s", text(s.From), text(s.To))
}

// lookAfter asks for a look when a window without a Job cannot come any more.
func (d *decider) lookAfter(w time.Time, waits bool) {
	at := d.Now.Add(calm)
	if !waits {
		if next := d.schedule.Next(w); !next.IsZero() {
			at = next.Add(Grace)
		}
		if deadline := d.CronJob.StartingDeadline; deadline != nil {
			at = earliest(at, w.Add(*deadline+Grace))
		}
		if d.CronJob.Suspended {
			at = latest(at, d.Now.Add(calm))
		}
	}
	if at.After(d.Now) {
		d.look(at)
	}
}

func (d *decider) isExpired(w time.Time) bool { return !d.expired.IsZero() && w.Before(d.expired) }

func (d *decider) refusedAt() time.Time {
	if d.CronJob.RefusedAt.IsZero() {
		return d.Now
	}
	return d.CronJob.RefusedAt
}

// busySpan is an interval in which a Job that counts for concurrencyPolicy was there.
type busySpan struct {
	Span
	window time.Time
	job    string
}

// busySpans gives the intervals in which Jobs of the controller were there, in order and
// without overlap; To is far away for what lasts.
func busySpans(jobs []Job) []busySpan {
	var all []busySpan
	for _, j := range jobs {
		b := busySpan{Span: Span{From: j.Created, To: j.EndedAt}, window: j.WindowStart, job: j.Name}
		if !j.Ended {
			b.To = j.Created.AddDate(1000, 0, 0)
		}
		if !j.CatchUp && !j.ByHand && b.To.After(b.From) { // the controller counts only what it made
			all = append(all, b)
		}
	}
	slices.SortFunc(all, func(a, b busySpan) int { return a.From.Compare(b.From) })
	out := all[:0]
	for _, b := range all {
		if n := len(out) - 1; n >= 0 && b.From.Before(out[n].To) {
			if !b.To.After(out[n].To) {
				continue
			}
			b.From = out[n].To
		}
		out = append(out, b)
	}
	return out
}

// busyAt gives the Job of an earlier window that was there when w was due.
func (d *decider) busyAt(w time.Time) (busySpan, bool) {
	at, exact := slices.BinarySearchFunc(d.busy, w, func(b busySpan, w time.Time) int { return b.From.Compare(w) })
	if !exact {
		at--
	}
	if at < 0 || !w.Before(d.busy[at].To) || !d.busy[at].window.Before(w) {
		return busySpan{}, false
	}
	return d.busy[at], true
}

func earliest(times ...time.Time) time.Time { return slices.MinFunc(times, time.Time.Compare) }
