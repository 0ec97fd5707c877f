package disposition

import (
	"maps"
	"slices"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
)

// engine is one look of an engine, when it is time for it.
func (w *world) engine(e *simEngine) {
	if !e.up {
		return
	}
	cronJob, jobs := w.cronJob, w.visible()
	if w.faults.lag && w.chance(0.3) && e.seen != nil { // what is old, of one kind or both
		if w.chance(0.5) {
			jobs = e.seen
		} else {
			stale := e.seenAt
			stale.Settings = cronJob.Settings
			cronJob = stale
		}
	} else {
		changed := !slices.Equal(jobs, e.seen) || cronJob.Suspended != e.seenAt.Suspended || !cronJob.LastScheduled.Equal(e.seenAt.LastScheduled)
		e.seen, e.seenAt = jobs, cronJob
		if changed {
			e.next = w.now
		}
	}
	for looks := 0; !e.next.IsZero() && !w.now.Add(e.clock).Before(e.next) || looks == 0 && !e.loaded; looks++ {
		w.promise(looks < 50, "it looks again and again: next %s", text(e.next))
		if looks >= 50 {
			break
		}
		if !e.loaded {
			e.state, e.loaded = w.state, true
			for _, b := range w.blockers { // what it had seen is forgotten
				b["unseen"] = true
			}
		}
		w.look(e, cronJob, jobs)
	}
}

func (w *world) visible() []Job {
	out := []Job{}
	for _, j := range w.jobs {
		out = append(out, j.Job)
	}
	slices.SortStableFunc(out, func(a, b Job) int { return a.WindowStart.Compare(b.WindowStart) })
	return out
}

// view is what the ledger and the cluster show.
func (w *world) view(e *simEngine, cronJob CronJob, jobs []Job) View {
	v := View{Now: w.now.Add(e.clock), CronJob: cronJob, State: e.state, ClosedBefore: w.closedBefore, Jobs: slices.Clone(jobs)}
	v.Upto = v.Now
	in := 0
	for _, key := range slices.Sorted(maps.Keys(w.rows)) {
		r := w.rows[key]
		if r.WindowStart.Before(e.state.JudgedBefore) {
			if slices.ContainsFunc(e.state.Open, r.WindowStart.Equal) {
				v.Executions = append(v.Executions, r.Execution)
			}
			continue
		}
		if r.WindowStart.After(v.Upto) {
			continue
		}
		if in++; in > w.page {
			v.Upto = r.WindowStart.Add(-time.Second)
			break
		}
		v.Executions = append(v.Executions, r.Execution)
	}
	for _, key := range slices.Sorted(maps.Keys(w.plans)) {
		v.Plans = append(v.Plans, *w.plans[key])
	}
	return v
}

func (w *world) look(e *simEngine, cronJob CronJob, jobs []Job) {
	v := w.view(e, cronJob, jobs)
	d := Decide(v)
	w.counts["looks"]++
	e.next = d.Next
	w.promise(d.Note == "" || v.CronJob.Suspended && len(v.Plans) > 0, "a note: %s", d.Note)
	w.promise(d.Next.IsZero() || !d.Next.Before(v.Now), "the next look is in the past: %s", text(d.Next))
	w.promise(!d.Next.IsZero(), "no look is asked for")
	w.promise(len(d.State.Open) <= mostOpen && len(d.State.Suspensions) <= mostSpans, "the state is not bounded")
	if !e.state.JudgedBefore.Equal(w.state.JudgedBefore) { // another engine was faster
		e.loaded, e.next = false, w.now.Add(e.clock)
		w.counts["outdated"]++
		return
	}
	e.state = d.State
	w.record(v, d)
	crash := w.faults.engine && !w.healed && w.chance(0.02)
	for i, at := range d.Make {
		w.ordered(v, d.Make, i)
		w.makeJob(at, crash)
	}
	if crash && len(d.Make) > 0 {
		w.counts["crashes between plan and Job"]++
		e.loaded = false
	}
}

// record is engine_judge: it replaces the gaps from the former JudgedBefore on.
func (w *world) record(v View, d Decision) {
	from := v.State.JudgedBefore
	since := w.cronJob.Settings.Since
	w.gaps = slices.DeleteFunc(w.gaps, func(g Gap) bool { return !g.First.Before(from) })
	w.state = State{JudgedBefore: d.State.JudgedBefore, Open: d.State.Open, Suspensions: d.State.Suspensions}
	last := time.Time{}
	for _, g := range d.Gaps {
		w.promise(g.First.After(last) && !g.Last.Before(g.First), "gaps are not in order: %v", d.Gaps)
		w.promise(!g.First.Before(since) && !g.First.Before(from), "a gap of %s before %s", text(g.First), text(since))
		w.promise(g.First.Before(d.State.JudgedBefore) == g.Last.Before(d.State.JudgedBefore), "a gap reaches over %s", text(d.State.JudgedBefore))
		w.promise(!g.First.Before(d.State.JudgedBefore) || g.Status != Late, "late is final: %v", g)
		n := int64(0)
		for at := range w.schedule.Due(g.First.Add(-1), g.Last) {
			n++
			r := w.rows[at.Unix()]
			w.promise(r == nil, "%s ran, and is called %s", text(at), g.Status)
			if g.Status != Late {
				w.lastCut[at.Unix()] = w.now
			}
			w.reasoned(at, g)
		}
		w.promise(n == g.Windows, "a gap of %d windows says %d", n, g.Windows)
		last = g.Last
		w.gaps = append(w.gaps, g)
		w.counts["gaps "+string(g.Status)]++
	}
	for _, p := range d.Plans {
		at := p.WindowStart
		w.promise(!at.Before(since), "%s is planned, before %s", text(at), text(since))
		w.promise(w.schedule.Contains(at) && !at.After(v.Now), "%s is planned, and not due", text(at))
		w.promise(w.plans[at.Unix()] == nil, "%s is planned twice", text(at))
		if r := w.rows[at.Unix()]; r != nil && r.Closed {
			w.promise(false, "%s is closed, and planned", text(at))
			continue
		}
		p.By = ""
		w.plans[at.Unix()] = &p
		w.lastCut[at.Unix()] = w.now
		w.reasoned(at, Gap{Status: Missed, Reason: p.Reason})
		w.counts["planned"]++
		if p.Reason == ClockMoved {
			w.counts["made by the DST rule"]++
		}
	}
	engines := 0
	for _, p := range w.plans {
		if p.By == "" {
			engines++
		}
	}
	if limit := w.cronJob.Settings.CatchUpLimit; limit > 0 {
		w.promise(engines <= 2*limit+int(tick/time.Second), "%d windows are planned, the limit is %d", engines, limit)
	}
	for _, g := range d.Unplan {
		w.promise(w.plans[g.First.Unix()] != nil, "%s is dropped, and was not planned", text(g.First))
		delete(w.plans, g.First.Unix())
		if !slices.ContainsFunc(w.gaps, func(h Gap) bool { return !g.First.Before(h.First) && !g.First.After(h.Last) }) {
			w.gaps = append(w.gaps, g)
		}
		w.counts["dropped: "+string(g.Rule)]++
	}
	for _, g := range d.Exhaust {
		r := w.rows[g.First.Unix()]
		w.promise(r != nil, "%s never ran, and is exhausted", text(g.First))
		if r == nil || r.Closed || r.Alive {
			continue
		}
		for _, j := range w.jobs {
			w.promise(j.Ended || !j.WindowStart.Equal(g.First) || w.faults.lag || j.Created.Equal(w.now), "%s is exhausted, and Job %s tries it again", text(g.First), j.Name)
		}
		r.Closed, r.exhausted, r.UpdatedAt = true, true, w.now
		delete(w.plans, g.First.Unix())
		w.counts["exhausted"]++
	}
}

// reasoned compares a reason with what was so, where only one thing was.
func (w *world) reasoned(at time.Time, g Gap) {
	causes := w.blockers[at.Unix()]
	if g.Status == Late || len(causes) != 1 || w.faults.clocks || w.faults.stall || w.faults.lag || g.Reason == NewerWindow {
		return
	}
	for truth := range causes {
		if truth == "unseen" || truth == StartDeadline {
			return
		}
		if w.had[at.Unix()] || truth == Overlap && w.faults.edit { // whose Job may be from before the edit
			return
		}
		// A refusal that was seen later may have been of a newer window.
		w.promise(g.Reason == truth || truth == Controller && (g.Reason == StartDeadline || g.Reason == Quota && w.faults.refuse), "%s has the reason %s; it was %s", text(at), g.Reason, truth)
		w.counts["reasons compared"]++
	}
}

// ordered checks that no older window was passed over.
func (w *world) ordered(v View, makes []time.Time, i int) {
	w.promise(i == 0 || makes[i-1].Before(makes[i]), "Jobs are not made in order")
	w.promise(!v.CronJob.Suspended, "a Job is made while it is suspended")
	for _, p := range v.Plans {
		r := w.rows[p.WindowStart.Unix()]
		if !p.WindowStart.Before(makes[i]) || p.Made > 0 || r != nil || slices.ContainsFunc(makes, p.WindowStart.Equal) ||
			slices.ContainsFunc(v.Jobs, func(j Job) bool { return j.WindowStart.Equal(p.WindowStart) && !j.Ended }) || p.CronJobUID != v.CronJob.Settings.CronJobUID || w.plans[p.WindowStart.Unix()] == nil {
			continue
		}
		w.promise(false, "%s is made before %s", text(makes[i]), text(p.WindowStart))
	}
}

// makeJob makes the Job of a plan, or crashes before it has.
func (w *world) makeJob(at time.Time, crash bool) {
	p := w.plans[at.Unix()]
	if p == nil {
		return // closed or taken back meanwhile
	}
	p.Made++
	p.MadeAt = w.now
	if crash {
		return
	}
	for _, j := range slices.Clone(w.jobs) {
		if j.CatchUp && j.WindowStart.Equal(at) {
			w.promise(j.Ended || w.faults.lag || len(w.engines) > 1, "a second Job for %s", text(at))
			if !j.Ended {
				return // its name is taken
			}
			w.delete(j)
		}
	}
	for _, j := range w.madeFor[at.Unix()] {
		w.promise(j.fate != works || !j.claimed, "%s is made again, after a Job that worked", text(at))
	}
	j := w.add(at, true)
	w.madeFor[at.Unix()] = append(w.madeFor[at.Unix()], j)
	w.promise(p.Made <= MakeLimit, "%d Jobs were made for %s", p.Made, text(at))
	w.counts["catch-up Jobs"]++
	living := 0
	for _, j := range w.jobs {
		if j.CatchUp && !j.Ended {
			living++
		}
	}
	w.promise(living <= max(1, w.cronJob.Settings.CatchUpParallel) || w.serial() || w.faults.lag || len(w.engines) > 1, "%d catch-up Jobs at a time", living)
}

// verify is what holds when the dust has settled.
func (w *world) verify() {
	for i, e := range w.eras {
		upto := e.until.Add(-1)
		if i == len(w.eras)-1 {
			upto = w.now.Add(-20 * time.Minute)
			upto = w.schedule.Previous(latest(w.schedule.Newest(e.since, upto), e.since))
		}
		for at := range e.schedule.Due(e.since.Add(-1), upto) {
			if i < len(w.eras)-1 && !at.Before(w.eras[i+1].since) {
				break
			}
			w.verifyWindow(at, i == len(w.eras)-1)
		}
	}
	for _, r := range w.rows {
		w.promise(r.completed <= 1, "%s was done %d times", text(r.WindowStart), r.completed)
	}
	for i, g := range w.gaps {
		for _, h := range w.gaps[i+1:] {
			w.promise(g.Last.Before(h.First) || h.Last.Before(g.First), "two gaps cover one window: %v %v", g, h)
		}
	}
}

func (w *world) verifyWindow(at time.Time, current bool) {
	w.counts["windows"]++
	r, p := w.rows[at.Unix()], w.plans[at.Unix()]
	var covering []Gap
	for _, g := range w.gaps {
		if !at.Before(g.First) && !at.After(g.Last) {
			covering = append(covering, g)
		}
	}
	switch {
	case r != nil:
		w.counts["windows run"]++
		w.promise(r.Closed || !current, "%s is open for ever: %+v", text(at), r.Execution)
		return
	case p != nil:
		w.promise(!current, "%s is planned for ever: %+v", text(at), *p)
		return
	}
	w.promise(len(covering) == 1, "%s has %d answers", text(at), len(covering))
	for _, g := range covering {
		w.counts["windows "+string(g.Status)]++
		w.promise(g.Status != Late || !current, "%s is late for ever: %v", text(at), g)
		if w.cronJob.Settings.CatchUp == contract.CatchUpAll && g.Status == Missed && current && !w.faults.people && w.page >= 20000 {
			w.promise(g.Rule != "", "%s is missed without a rule, though all are caught up: %v", text(at), g)
		}
	}
}
