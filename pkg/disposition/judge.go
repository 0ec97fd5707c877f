package disposition

import (
	"cmp"
	"slices"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
)

// answer is how a window stands.
type answer int

const (
	answered answer = iota // there is an execution, or it is planned
	young                  // it is not late yet
	late                   // it may still come
	gone                   // it cannot come, and is not caught up
	wanted                 // it cannot come, and is caught up
)

// judge answers the due windows from the first one that has no final answer. Between two
// cuts all windows have the same answer, so it is asked for once, however many they are.
func (d *decider) judge() {
	if !d.known {
		d.state.JudgedBefore = latest(d.from, d.end)
		return
	}
	cuts, first := d.cuts(), time.Time{}
	for i := range len(cuts) - 1 {
		here, there := cuts[i], cuts[i+1]
		if first.Before(here) {
			if first = d.schedule.Next(here.Add(-1)); first.IsZero() {
				break
			}
		}
		if !first.Before(there) {
			continue
		}
		last, windows := first, int64(1)
		if second := d.schedule.Next(first); !second.IsZero() && second.Before(there) {
			last = d.schedule.Previous(there)
			windows = d.schedule.Count(first.Add(-1), last)
		}
		d.settle(first, last, windows)
	}
	d.state.JudgedBefore = latest(d.from, d.end)
	if !d.stopped.IsZero() {
		d.state.JudgedBefore = d.stopped
	}
}

// cuts gives, in order, the instants where the answer of a window may differ from that of
// the one before it.
func (d *decider) cuts() []time.Time {
	cuts := []time.Time{d.from, d.end, d.ripe, d.settled, d.expired, d.newest, d.few, d.old}
	single := func(w time.Time) { cuts = append(cuts, w, w.Add(1)) }
	for _, e := range d.Executions {
		single(e.WindowStart)
	}
	for _, p := range d.Plans {
		single(p.WindowStart)
	}
	for _, j := range d.Jobs {
		single(j.WindowStart)
	}
	for _, s := range d.sights {
		single(s.WindowStart)
	}
	for key, yes := range d.invented {
		if yes {
			single(time.Unix(key, 0))
		}
	}
	single(d.CronJob.LastScheduled)
	for _, g := range d.State.Recorded {
		cuts = append(cuts, g.First, g.Last.Add(1))
	}
	for _, s := range d.state.Suspensions {
		cuts = append(cuts, s.From, s.To)
	}
	for _, b := range d.busy {
		cuts = append(cuts, b.From, b.To)
	}
	if d.CronJob.Refused != "" {
		at := d.refusedAt()
		cuts = append(cuts, at.Add(1), at.Add(1-recently))
	}
	cuts = slices.DeleteFunc(cuts, func(t time.Time) bool { return t.Before(d.from) || t.After(d.end) })
	slices.SortFunc(cuts, time.Time.Compare)
	return slices.CompactFunc(cuts, time.Time.Equal)
}

// settle records the answer of a run of windows.
func (d *decider) settle(first, last time.Time, windows int64) {
	how, g := d.answer(first)
	if (how == young || how == late) && d.stopped.IsZero() {
		d.stopped = first
	}
	switch how {
	case answered:
		d.joins = false
		return
	case young:
		g.First, g.Last, g.Windows, g.Status = first, last, windows, Late
		d.young, d.joins = append(d.young, g), false
		return
	case wanted:
		d.joins = false
		for w := range d.schedule.Due(first.Add(-1), last) {
			d.plans = append(d.plans, Plan{WindowStart: w, Reason: g.Reason, CronJobUID: d.settings.CronJobUID})
		}
		return
	case late, gone:
	}
	if n := len(d.gaps) - 1; d.joins && d.gaps[n].Status == g.Status && d.gaps[n].Reason == g.Reason && d.gaps[n].Rule == g.Rule {
		d.gaps[n].Last, d.gaps[n].Evidence = last, cmp.Or(g.Evidence, d.gaps[n].Evidence)
		d.gaps[n].Windows += windows
		return
	}
	g.First, g.Last, g.Windows = first, last, windows
	d.gaps = append(d.gaps, g)
	d.joins = true
}

// answer says how the window w stands.
func (d *decider) answer(w time.Time) (answer, Gap) {
	key := w.Unix()
	if _, ran := d.executions[key]; ran {
		return answered, Gap{}
	}
	p, planned := d.planned[key]
	if planned && p.By == "" {
		return answered, Gap{}
	}
	if g, before := d.recorded(w); before && g.Status != Late && len(d.jobs[key]) == 0 {
		return gone, g
	}
	// What a person plans is judged like any other: the answer stands if he thinks better of it.
	g, how := d.cause(w)
	if how == gone {
		how, g = d.outcome(w, g)
		if how == wanted && planned {
			how, g.Status = gone, Missed
		}
	}
	if how == late {
		g.Status = Late
	}
	return how, g
}

// recorded gives the answer that a window had at the last look, if it was one to be judged
// again.
func (d *decider) recorded(w time.Time) (Gap, bool) {
	at, exact := slices.BinarySearchFunc(d.State.Recorded, w, func(g Gap, w time.Time) int { return g.First.Compare(w) })
	if !exact {
		at--
	}
	if at < 0 || w.After(d.State.Recorded[at].Last) {
		return Gap{}, false
	}
	return d.State.Recorded[at], true
}

// outcome says what becomes of a window that no Job will come for, given the cause.
func (d *decider) outcome(w time.Time, g Gap) (answer, Gap) {
	s := d.settings
	switch {
	case g.Reason == Suspended && s.SuspendedWindows != contract.SuspendedCatchUp:
		g.Status = Skipped
		if s.CatchUp != "" {
			g.Rule = WhileAway
		}
		return gone, g
	case s.CatchUp == "":
		g.Status = Missed
		return gone, g
	case s.CatchUp == contract.CatchUpLatest && w.Before(d.newest):
		return gone, superseded(g)
	}
	g.Status, g.Rule = Missed, d.bound(w)
	if g.Rule != "" {
		return gone, g
	}
	return wanted, g
}

// bound gives the rule by which a missed window is too much to be caught up; empty for none.
func (d *decider) bound(w time.Time) Rule {
	switch {
	case !d.few.IsZero() && w.Before(d.few):
		return TooMany
	case w.Before(d.old):
		return TooOld
	case d.nameless(w):
		return Nameless
	}
	return ""
}

// superseded is the answer of a missed window that gives way to a newer one.
func superseded(g Gap) Gap {
	was := "no Job ran it: " + string(g.Reason)
	if g.Evidence != "" {
		was += ": " + g.Evidence
	}
	return Gap{First: g.First, Last: g.Last, Windows: g.Windows, Status: Skipped, Reason: NewerWindow, Rule: OnlyLatest, Evidence: was}
}
