package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/admin"
	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/disposition"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/window"
)

// pieceful are the steps of work in pieces: complete, checkpoint, expire, rerun.
var pieceful = []int{8, 18, 18, 36, 49}

// step chooses what to do next: a name for the trace, and a function that does it.
func (r *run) step(ctx context.Context) (string, func(subject) string) {
	n, k, d := r.rnd.IntN(len(r.windows)), r.rnd.IntN(2), r.rnd.IntN(100)
	if r.focus == pieces && r.rnd.IntN(2) == 0 { // of one id, which nobody takes
		k, d = 0, pieceful[r.rnd.IntN(len(pieceful))]
	}
	r.steps++
	if r.focus == unrun && r.steps <= 2 {
		return r.engine()
	}
	if r.focus == unrun && r.rnd.IntN(12) == 0 { // the first is closed
		n, d = 0, 53
	}
	w, id := r.windows[n], &r.ids[n][k]
	a := claim.Attempt{Window: w, ExecutionID: *id}
	name := func(op string) string {
		return fmt.Sprintf("%s %s %s by %s", op, w.JobName, w.Start.Format("15:04"), a.ExecutionID.String()[:8])
	}
	switch {
	case d < 8:
		return name("heartbeat"), func(l subject) string {
			b, err := l.Heartbeat(ctx, a, lease)
			return fmt.Sprint(b, kind(err))
		}
	case d < 18:
		c := claim.Completion{RequestDigest: "d", PayloadDigest: r.payload()}
		return name("complete"), func(l subject) string { return fmt.Sprint(kind(l.Complete(ctx, a, c))) }
	case d < 24:
		seq := r.rnd.IntN(3)
		return name("checkpoint") + fmt.Sprint(" after ", seq), func(l subject) string {
			got, err := l.Checkpoint(ctx, a, seq, json.RawMessage(`{"row": 1}`), "d")
			return fmt.Sprint(got, kind(err))
		}
	case d < 36:
		o := []claim.Outcome{claim.OutcomeFailed, claim.OutcomeCrashed, claim.OutcomeStopped, claim.OutcomeNotStarted, claim.OutcomeUncommitted}[r.rnd.IntN(5)]
		return name("release") + " " + string(o), func(l subject) string {
			got, err := l.Release(ctx, a, claim.End{Outcome: o})
			return fmt.Sprint(got, kind(err))
		}
	case d < 46:
		return name("expire"), func(l subject) string {
			if l.API == r.model {
				r.model.Expire(w)
				return ""
			}
			if err := r.people.expire(w); err != nil {
				return err.Error()
			}
			return ""
		}
	case d < 49:
		next := uuid.New()
		if r.rnd.IntN(2) == 0 {
			*id = next
		}
		return name("resolve"), func(l subject) string {
			got, err := l.Resolve(ctx, a, next)
			return fmt.Sprint(got, kind(err))
		}
	case d < 53:
		return name("rerun"), func(p subject) string {
			got, err := p.Rerun(w)
			return fmt.Sprint(got, kind(err))
		}
	case d < 55:
		return name("cancel"), func(p subject) string { return fmt.Sprint(kind(p.CancelWindow(w))) }
	case d < 58:
		upto := w.Start.Add([]time.Duration{0, time.Second, time.Hour}[r.rnd.IntN(3)])
		return name("prune"), func(p subject) string {
			got, err := p.Prune(r.base, upto)
			return fmt.Sprint(got.UTC(), kind(err))
		}
	case d < 60, r.focus == unrun && d < 65, r.focus == planned && d < 70:
		return r.engine()
	case d == 99:
		return name("stored"), func(l subject) string {
			s, err := l.Stored(ctx, w)
			return fmt.Sprint(s.Status, s.ExecutionID, s.Attempt, s.Generation, s.PayloadDigest, s.RequestDigest, s.CompletedAt.IsZero(),
				s.Checkpoint.Seq, string(s.Checkpoint.Data), s.Checkpoint.RequestDigest, kind(err))
		}
	}
	if r.rnd.IntN(2) == 0 {
		*id = uuid.New()
		a.ExecutionID = *id
	}
	q := claim.Request{Attempt: a, Lease: lease, Terms: r.terms(w), Origin: claim.Origin{Namespace: "shop", Pod: fmt.Sprint("p", n, k)}}
	return name("claim") + fmt.Sprintf(" %+v", q.Terms), func(l subject) string {
		got, err := l.Claim(ctx, q)
		h := got.Holder
		return fmt.Sprintln(got.Verdict, got.Reason, got.Attempt, got.FencingToken&(1<<40-1), got.Generation, "holder", h.Window,
			h.ExecutionID, h.Attempt, h.Pod, h.CompletedAt.IsZero(), h.LeaseExpires.IsZero(), h.PayloadDigest, kind(err))
	}
}

// engine is a step of the windows engine: a plan, or what it says of windows that nobody ran.
func (r *run) engine() (string, func(subject) string) {
	if r.focus == unrun && r.steps <= 2 { // the first is late, the second never comes
		w := r.windows[r.steps-1].Start
		return r.judge("one", w, w, []disposition.Status{disposition.Late, disposition.Missed}[r.steps-1])
	}
	at := func() time.Time { return r.windows[0].Start.Add(time.Duration(r.rnd.IntN(5)-1) * time.Minute) }
	plan := window.Window{JobName: r.base, Start: at()}
	d := r.rnd.IntN(12)
	if r.focus == planned {
		d, plan.Start = d/4, r.windows[r.rnd.IntN(len(r.windows))].Start
	}
	switch {
	case d < 2:
		return "plan " + plan.String(), func(s subject) string { return fmt.Sprint(s.Plan(plan)) }
	case d < 4:
		return "unplan " + plan.String(), func(s subject) string { return fmt.Sprint(s.Unplan(plan)) }
	}
	if r.rnd.IntN(6) == 0 || r.focus == planned && d == 8 {
		uid, gone := []string{"one", "one", "two"}[r.rnd.IntN(3)], r.rnd.IntN(2) == 0
		return fmt.Sprintf("leave %s: gone %v", uid, gone), func(s subject) string { return fmt.Sprint(s.Leave(r.base, uid, gone)) }
	}
	first := at()
	last := first
	if r.rnd.IntN(3) == 0 {
		last = first.Add(time.Duration(1+r.rnd.IntN(2)) * time.Minute)
	}
	return r.judge([]string{"one", "one", "one", "two"}[r.rnd.IntN(4)], first, last,
		[]disposition.Status{disposition.Late, disposition.Late, disposition.Missed, disposition.Skipped}[r.rnd.IntN(4)])
}

func (r *run) judge(uid string, first, last time.Time, status disposition.Status) (string, func(subject) string) {
	return fmt.Sprintf("judge %s to %s by %s: %s", first.Format("15:04"), last.Format("15:04"), uid, status), func(s subject) string {
		return fmt.Sprint(s.Judge(r.base, uid, first, last, status))
	}
}

func (r *run) payload() string {
	return []string{"", "", "", "p", "p", "p", "p", "q"}[r.rnd.IntN(8)]
}

func (r *run) terms(w window.Window) (t claim.Terms) {
	// often is the one chance in n of a term; one that the sequence is about is frequent.
	often := func(about focus, n int) bool {
		if r.focus == mixed {
			return r.rnd.IntN(n) == 0
		}
		if r.focus == about || r.focus == unrun && about == ordered || r.focus == planned && about == overlaps {
			return r.rnd.IntN(3) > 0
		}
		return r.rnd.IntN(4*n) == 0
	}
	t.PayloadDigest = r.payload()
	if r.rnd.IntN(20) == 0 {
		t.Repeats = w.Start.Add(-time.Minute)
	}
	if often(attempts, 4) && r.rnd.IntN(2) == 0 || r.rnd.IntN(8) == 0 {
		t.ReopenBefore = time.Now().Add([]time.Duration{time.Hour, time.Hour, -time.Hour}[r.rnd.IntN(3)])
	}
	if often(overlaps, 2) {
		t.Overlap = []contract.Overlap{contract.OverlapAllow, contract.OverlapSkip, contract.OverlapWait, contract.OverlapReplace, contract.OverlapReplace}[r.rnd.IntN(5)]
	}
	if r.focus == planned && r.rnd.IntN(3) == 0 {
		t.Overlap = contract.OverlapReplace
	}
	t.HoldOnCrash = often(attempts, 5)
	if often(attempts, 4) {
		t.MaxAttempts = 1 + r.rnd.IntN(3)
	}
	if r.rnd.IntN(8) == 0 || (r.focus == attempts || r.focus == planned || t.Overlap == contract.OverlapReplace) && r.rnd.IntN(3) == 0 {
		t.StartDeadline = []time.Duration{time.Second, 200 * 365 * 24 * time.Hour}[r.rnd.IntN(2)]
	}
	if often(ordered, 4) || r.focus == planned && r.rnd.IntN(4) == 0 {
		t.Serial = true
		if r.rnd.IntN(2) == 0 {
			t.Since = w.Start.Add(-time.Duration(r.rnd.IntN(3)) * time.Minute)
		}
		if r.rnd.IntN(2) == 0 || r.focus == unrun {
			t.Previous = w.Start.Add(-time.Minute)
		}
		t.HoldOnCrash = t.HoldOnCrash || r.rnd.IntN(3) == 0
	}
	return t
}

// kind reduces an error to what a caller branches on.
func kind(err error) error {
	for _, k := range []error{ledger.ErrFenced, ledger.ErrCompleted, ledger.ErrPayload, ledger.ErrClosed, ledger.ErrCheckpoint, admin.ErrNotFound, admin.ErrState, admin.ErrPruned} {
		if errors.Is(err, k) {
			return k
		}
	}
	return err
}
