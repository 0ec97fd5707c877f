package disposition

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

// Grace is how long what just became visible may still change by itself: a Job that comes a
// little late, a plan of the moment, clocks of the API server and the database apart.
const Grace = time.Minute

const (
	poll         = 5 * time.Minute  // how often to look at what nobody reports
	calm         = 10 * time.Minute // how often to look at a suspended CronJob
	patience     = 10 * time.Minute // longer than the Job controller waits between two pods
	recently     = time.Hour        // how long Events last, and an instant of the DST rule may be made
	mostOpen     = 1000             // windows in State.Open
	mostSpans    = 100              // intervals in State.Suspensions
	mostBehind   = 2000             // executions known, some behind a window that is waited for
	mostSights   = 1000
	mostNameSize = 63
)

// Decide says what became of the windows of one CronJob, and what to do about it. It is a
// function of the view only; its cost grows with the executions, Jobs, plans and suspensions
// in it and with catch-up-limit, never with the number of windows.
func Decide(v View) Decision {
	d := newDecider(v)
	if note := d.otherLedger(); note != "" {
		state := v.State
		state.Suspensions = d.state.Suspensions
		return Decision{State: state, Note: note, Next: v.Now.Add(poll)}
	}
	d.judge()
	d.openOnes()
	d.exhaust()
	d.plan()
	d.remember()
	if d.known {
		d.lookAtNext()
	}
	if !d.next.IsZero() && d.next.Before(v.Now) {
		d.next = v.Now
	}
	return Decision{
		State: d.state, Gaps: d.gaps, Plans: d.plans, Unplan: d.unplans, Make: d.makes, Exhaust: d.exhausts,
		Next: d.next, Note: d.note,
	}
}

// decider is one decision in the making. Windows are keys by their Unix seconds.
type decider struct {
	View
	schedule   window.Schedule
	known      bool // the windows can be computed
	settings   contract.Settings
	jobs       map[int64][]Job
	executions map[int64]Execution
	planned    map[int64]Plan
	sights     map[int64]Sight
	invented   map[int64]bool // recent windows that only the DST rule knows
	busy       []busySpan
	reach      // what the clock says of windows

	stopped time.Time // the first window that is not judged for good; zero for none
	joins   bool      // the last window looked at belongs to the last of gaps

	state    State
	gaps     []Gap
	young    []Gap // what is seen of windows that are not late yet
	plans    []Plan
	unplans  []Gap
	makes    []time.Time
	exhausts []Gap
	next     time.Time
	note     string
}

// reach are the instants that divide the windows by what the clock says of them.
type reach struct {
	from    time.Time // the first window that is judged
	end     time.Time // the first one that is not known yet
	ripe    time.Time // from here on windows are too young to be late
	settled time.Time // before it, the next window is due for Grace
	expired time.Time // before it, startingDeadlineSeconds has passed for Grace; zero for none
	newest  time.Time // the newest due window
	few     time.Time // before it, windows are not among the newest catch-up-limit; zero for none
	old     time.Time // before it, windows are older than catch-up-age; zero for none
	forced  bool      // too much stands behind a window that is waited for
}

func newDecider(v View) *decider {
	d := &decider{
		View: v, settings: v.CronJob.Settings,
		jobs: map[int64][]Job{}, executions: map[int64]Execution{}, planned: map[int64]Plan{}, sights: map[int64]Sight{}, invented: map[int64]bool{},
	}
	if d.Upto.After(d.Now) {
		d.Upto = d.Now
	}
	for _, j := range v.Jobs {
		d.jobs[j.WindowStart.Unix()] = append(d.jobs[j.WindowStart.Unix()], j)
	}
	for _, e := range v.Executions {
		d.executions[e.WindowStart.Unix()] = e
	}
	for _, p := range v.Plans {
		d.planned[p.WindowStart.Unix()] = p
	}
	for _, s := range v.State.Sights {
		d.sights[s.WindowStart.Unix()] = s
	}
	d.end = d.Upto.Truncate(time.Second).Add(time.Second)
	d.from = latest(v.State.JudgedBefore, d.settings.Since, v.ClosedBefore)
	d.state = State{JudgedBefore: d.from, Suspensions: suspensions(v)}
	d.schedule, d.note = d.enumerable()
	d.known = d.note == ""
	if d.known {
		d.measure()
		if judged := v.State.JudgedBefore; judged.After(d.Now.Add(Grace)) {
			d.note = fmt.Sprintf("its windows up to %s have been judged, and it is %s: a clock is, or was, wrong. Nothing is judged before that time", text(judged), text(d.Now))
		}
	}
	return d
}

// enumerable gives the schedule, or says why its windows are not known and what to do.
func (d *decider) enumerable() (s window.Schedule, why string) {
	s, err := d.CronJob.Schedule()
	switch {
	case err != nil:
		return s, fmt.Sprintf("its windows are not known: %v: correct it", err)
	case s.Known() && s.Never():
		return s, fmt.Sprintf("spec.schedule %q names no date that exists: it never fires; correct it", d.settings.Schedule)
	case s.Known():
		return s, ""
	case s.Zone() == nil:
		return s, "its windows are known only from its Jobs: without spec.timeZone nobody but kube-controller-manager knows them; set it, for example to Etc/UTC"
	}
	return s, fmt.Sprintf("its windows are known only from its Jobs: those of %q depend on when the CronJob was made; use a schedule of five fields", d.settings.Schedule)
}

// measure finds the instants of reach.
func (d *decider) measure() {
	now := d.Now
	d.ripe = now.Add(-Grace + 1)
	d.settled = d.schedule.Back(now.Add(-Grace), 1)
	d.newest = d.schedule.Back(now, 1)
	if deadline := d.CronJob.StartingDeadline; deadline != nil {
		d.expired = now.Add(-Grace - *deadline + 1)
	}
	if d.settings.CatchUp != "" {
		d.few = d.schedule.Back(now, d.limit())
		d.old = now.Add(-time.Duration(cmp.Or(d.settings.CatchUpAge, contract.Duration(contract.DefaultCatchUpAge))))
	}
	unknown := d.schedule.Next(d.end.Add(-1))
	d.forced = len(d.Executions) > mostBehind || !unknown.IsZero() && unknown.Before(d.settled)
	if !unknown.IsZero() && unknown.Before(d.settled) {
		d.look(now) // there is more to judge
	}
	if d.CronJob.Forbid {
		d.busy = busySpans(d.Jobs)
	}
	if d.settings.DST == contract.DSTOnce {
		for w := range d.schedule.Due(latest(d.from, now.Add(-recently)).Add(-1), d.Upto) {
			d.invented[w.Unix()] = d.schedule.Invented(w)
		}
		if !d.newest.IsZero() {
			d.invented[d.newest.Unix()] = d.schedule.Invented(d.newest)
		}
	}
}

// limit is how many windows are caught up at most.
func (d *decider) limit() int { return cmp.Or(d.settings.CatchUpLimit, contract.DefaultCatchUpLimit) }

// otherLedger says that work was done which this ledger does not know: engine and guards
// do not look at the same one, and whatever were made here would be made again.
func (d *decider) otherLedger() string {
	if !d.known {
		return ""
	}
	for _, j := range d.Jobs {
		w := j.WindowStart
		asked := !w.Before(d.from) && w.Before(d.end) || slices.ContainsFunc(d.State.Open, w.Equal) && !w.Before(d.settings.Since) && !w.Before(d.ClosedBefore)
		if _, known := d.executions[w.Unix()]; known || !asked || !j.Complete || d.Now.Before(endOf(j).Add(Grace)) || d.Now.Before(j.Created.Add(Grace)) {
			continue
		}
		// Without their names, which would be others with each window.
		return "Jobs of it are complete, and this ledger does not know their windows: the engine looks at another ledger than the guards. " +
			"Nothing is judged or made until both have the same URL (and, if the ledger lost those windows, until these Jobs are deleted)"
	}
	return ""
}

// look asks for another look at t.
func (d *decider) look(t time.Time) {
	if d.next.IsZero() || t.Before(d.next) {
		d.next = t
	}
}

// lookAtNext asks for a look when the next window could be late.
func (d *decider) lookAtNext() {
	next := d.schedule.Next(d.Now)
	switch {
	case next.IsZero():
	case d.CronJob.Suspended:
		d.look(latest(next.Add(Grace), d.Now.Add(calm)))
	case d.settings.DST == contract.DSTOnce && d.schedule.Invented(next):
		d.look(next)
	default:
		d.look(next.Add(Grace))
	}
}

// remember keeps what the next look needs.
func (d *decider) remember() {
	s := &d.state
	s.Suspensions = slices.DeleteFunc(s.Suspensions, func(s Span) bool { return !s.To.IsZero() && !s.To.After(d.state.JudgedBefore) })
	for len(s.Suspensions) > mostSpans {
		s.Suspensions[1].From = s.Suspensions[0].From
		s.Suspensions = s.Suspensions[1:]
	}
	if !d.known {
		return
	}
	for _, g := range slices.Concat(d.gaps, d.young, d.unplans) {
		at, exact := slices.BinarySearchFunc(s.Recorded, g.First, func(h Gap, w time.Time) int { return h.First.Compare(w) })
		covered := exact || at > 0 && !g.First.After(s.Recorded[at-1].Last)
		if !covered && !d.isJudged(g.First) {
			s.Recorded = slices.Insert(s.Recorded, at, g)
		}
	}
	s.Recorded = s.Recorded[max(0, len(s.Recorded)-mostOpen):]
	keep := func(w time.Time) bool {
		_, ran := d.executions[w.Unix()]
		return !ran && !w.Before(s.JudgedBefore) && w.Before(d.end)
	}
	for key, jobs := range d.jobs {
		if j := telling(jobs); keep(j.WindowStart) {
			reason, evidence := said(j)
			d.sights[key] = Sight{WindowStart: j.WindowStart, Reason: reason, Evidence: evidence}
		}
	}
	if w := d.CronJob.LastScheduled; keep(w) && len(d.jobs[w.Unix()]) == 0 {
		sight := d.sights[w.Unix()]
		sight.WindowStart = w
		d.sights[w.Unix()] = sight
	}
	for key, sight := range d.sights {
		if !keep(sight.WindowStart) {
			continue
		}
		if len(d.jobs[key]) == 0 && sight.Gone.IsZero() {
			sight.Gone = d.Now
		}
		s.Sights = append(s.Sights, sight)
	}
	slices.SortFunc(s.Sights, func(a, b Sight) int { return a.WindowStart.Compare(b.WindowStart) })
	s.Sights = s.Sights[max(0, len(s.Sights)-mostSights):]
}

// suspensions adds to what was seen of suspensions what is seen now.
func suspensions(v View) []Span {
	spans := slices.Clone(v.State.Suspensions)
	for _, s := range v.CronJob.Seen {
		n := len(spans) - 1
		switch {
		case n >= 0 && spans[n].To.IsZero():
			if s.To.IsZero() || s.To.After(spans[n].From) {
				spans[n].To = s.To // it is the same one
			}
		case n >= 0 && !s.To.IsZero() && !s.To.After(spans[n].To), !s.To.IsZero() && !s.To.After(s.From):
		default:
			if n >= 0 {
				s.From = latest(s.From, spans[n].To)
			}
			spans = append(spans, s)
		}
	}
	lasts := len(spans) > 0 && spans[len(spans)-1].To.IsZero()
	switch {
	case v.CronJob.Suspended && !lasts:
		from := v.Now
		if len(spans) > 0 {
			from = latest(from, spans[len(spans)-1].To)
		}
		spans = append(spans, Span{From: from})
	case !v.CronJob.Suspended && lasts:
		last := &spans[len(spans)-1]
		if last.To = v.Now; !last.To.After(last.From) {
			spans = spans[:len(spans)-1]
		}
	}
	return spans
}

// telling gives of the Jobs of one window the one that says how it stands: one that has not
// ended, else the last.
func telling(jobs []Job) Job {
	return slices.MaxFunc(jobs, func(a, b Job) int {
		return cmp.Or(cmp.Compare(bit(!a.Ended), bit(!b.Ended)), endOf(a).Compare(endOf(b)), a.Created.Compare(b.Created))
	})
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// endOf gives when a Job ended, as well as it is known.
func endOf(j Job) time.Time { return latest(j.Created, j.EndedAt) }

// said gives what a Job says about its window.
func said(j Job) (Reason, string) {
	reason := j.Reason
	if reason == "" {
		reason = Starting
	}
	if j.Ended && !telltale(reason) {
		reason = JobFailed
	}
	evidence := j.Evidence
	if evidence == "" {
		evidence = "Job " + j.Name
	}
	return reason, evidence
}

// telltale reports whether a reason names what is wrong.
func telltale(r Reason) bool { return r != "" && r != Starting && r != Waiting }

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

func text(t time.Time) string { return t.UTC().Format(time.RFC3339) }
