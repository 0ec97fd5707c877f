package disposition

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

// tick is the step of simulated time; the controller and the engine are as fast.
const tick = 5 * time.Second

// row is a window in the simulated ledger.
type row struct {
	Execution
	holder    *simJob
	completed int
	exhausted bool
}

// era is the time between two edits of the schedule.
type era struct {
	since, until time.Time // until is where the engine had judged when it ended
	schedule     window.Schedule
}

// faults are the kinds of trouble that a history may contain.
type faults struct {
	controller, suspend, refuse, webhook, engine, jobs, edit, people, clocks, lag, stall bool
}

// world is one CronJob, its controller, its Jobs, the ledger and one or two engines.
type world struct {
	rnd    *rand.Rand
	now    time.Time
	faults faults
	healed bool

	cronJob  CronJob
	policy   string // Allow, Forbid, Replace
	schedule window.Schedule
	kube     window.Schedule // as the controller reads it
	eras     []era
	created  time.Time

	controllerUp, webhookUp, refusing bool
	flippedAt                         time.Time // when it was suspended, or resumed
	jobs                              []*simJob
	length                            time.Duration // how long a worker runs

	rows         map[int64]*row
	plans        map[int64]*Plan
	gaps         []Gap
	state        State
	closedBefore time.Time
	page         int

	engines []*simEngine

	blockers map[int64]map[Reason]bool // what kept each window from having a Job
	lastCut  map[int64]time.Time       // when a window got its final gap
	madeFor  map[int64][]*simJob       // catch-up Jobs by window
	had      map[int64]bool            // windows that ever had a Job
	broken   []string                  // promises that were broken
	counts   map[string]int
}

// simEngine is one windows engine.
type simEngine struct {
	up     bool
	state  State
	loaded bool
	next   time.Time
	clock  time.Duration // how far its clock is ahead
	seen   []Job         // its view of the Jobs, may lag
	seenAt CronJob
}

var start = time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)

func (w *world) promise(kept bool, format string, args ...any) {
	if !kept && len(w.broken) < 20 {
		w.broken = append(w.broken, w.now.Format("15:04:05 ")+fmt.Sprintf(format, args...))
	}
}

func (w *world) chance(p float64) bool { return w.rnd.Float64() < p }

func (w *world) pick(names ...string) string { return names[w.rnd.IntN(len(names))] }

func newWorld(rnd *rand.Rand) *world {
	w := &world{
		rnd: rnd, now: start.Add(time.Duration(rnd.IntN(3600)) * time.Second), controllerUp: true, webhookUp: true,
		rows: map[int64]*row{}, plans: map[int64]*Plan{}, blockers: map[int64]map[Reason]bool{}, lastCut: map[int64]time.Time{},
		madeFor: map[int64][]*simJob{}, had: map[int64]bool{}, counts: map[string]int{}, page: 20000,
	}
	on := func() bool { return w.chance(0.35) }
	w.faults = faults{on(), on(), on(), on(), on(), on(), on(), on(), on(), on(), on()}
	zone := "Etc/UTC"
	if w.chance(0.3) { // the clock is moved within the history
		zone = "Europe/Berlin"
		w.now = time.Date(2026, 3, 28, 23, 0, 0, 0, time.UTC)
		if w.chance(0.5) {
			w.now = time.Date(2026, 10, 24, 22, 0, 0, 0, time.UTC)
		}
	}
	w.created = w.now
	s := contract.Settings{
		CronJob: "order-sync", CronJobUID: "uid-1", JobName: "shop/order-sync", TimeZone: zone,
		CatchUp:      contract.CatchUp(w.pick("", "latest", "all", "all")),
		CatchUpLimit: 5 + rnd.IntN(100), CatchUpAge: contract.Duration(time.Duration(1+rnd.IntN(12)) * time.Hour), CatchUpParallel: 1 + rnd.IntN(3),
	}
	if s.CatchUp == "" {
		s.CatchUpLimit, s.CatchUpAge, s.CatchUpParallel = 0, 0, 0
	} else if w.chance(0.6) {
		s.SuspendedWindows = contract.SuspendedCatchUp
	}
	if w.chance(0.3) {
		s.DST = contract.DSTOnce
	}
	if w.chance(0.3) {
		s.Order = contract.OrderSerial
	}
	w.cronJob.Settings = s
	w.policy = w.pick("Allow", "Forbid", "Replace")
	w.cronJob.Forbid = w.policy == "Forbid"
	if w.chance(0.3) {
		d := time.Duration(10+rnd.IntN(600)) * time.Second
		w.cronJob.StartingDeadline = &d
	}
	if w.chance(0.2) {
		w.page = 3 + rnd.IntN(30)
	}
	w.length = time.Duration(10+rnd.IntN(200)) * time.Second
	w.edit()
	w.engines = []*simEngine{{up: true}}
	if w.chance(0.3) {
		w.engines = append(w.engines, &simEngine{up: true})
	}
	if w.faults.clocks {
		for _, e := range w.engines {
			e.clock = time.Duration(rnd.IntN(60)-30) * time.Second
		}
	}
	return w
}

// edit gives the CronJob another schedule.
func (w *world) edit() {
	s := &w.cronJob.Settings
	if n := len(w.eras) - 1; n >= 0 {
		w.eras[n].until = w.state.JudgedBefore
	}
	for before := s.Schedule; s.Schedule == before; {
		s.Schedule = w.pick("* * * * *", "*/2 * * * *", "*/5 * * * *", "*/15 * * * *", "7,8,30 * * * *", "*/10 1-4 * * *", "0 * * * *")
	}
	s.Since = w.now.Truncate(time.Second).Add(time.Second)
	w.schedule, _ = w.cronJob.Schedule()
	w.kube, _ = window.ParseSchedule(s.Schedule, s.TimeZone)
	w.eras = append(w.eras, era{since: s.Since, schedule: w.schedule})
}

// step lets a tick of time pass.
func (w *world) step() {
	w.now = w.now.Add(tick)
	if !w.healed {
		w.trouble()
	}
	w.control()
	for _, j := range slices.Clone(w.jobs) {
		w.run(j)
	}
	w.clean()
	for _, e := range w.engines {
		w.engine(e)
	}
}

// trouble lets faults come and go.
func (w *world) trouble() {
	flip := func(on bool, is *bool, come, go_ float64) {
		if !on {
			return
		}
		if p := map[bool]float64{true: come, false: go_}[*is]; w.chance(p) {
			*is = !*is
		}
	}
	f := w.faults
	flip(f.controller, &w.controllerUp, 0.001, 0.004)
	flip(f.webhook, &w.webhookUp, 0.001, 0.005)
	running := !w.cronJob.Suspended
	flip(f.suspend, &running, 0.001, 0.004)
	if w.cronJob.Suspended == running {
		w.cronJob.Suspended, w.flippedAt = !running, w.now
	}
	fine := !w.refusing
	flip(f.refuse, &fine, 0.001, 0.006)
	w.refusing = !fine
	if f.engine {
		for _, e := range w.engines {
			was := e.up
			flip(true, &e.up, 0.001, 0.004)
			if !was && e.up {
				e.loaded = false
			}
		}
	}
	if f.edit && w.chance(0.0005) {
		w.edit()
		w.counts["edits"]++
	}
	if f.people && w.chance(0.002) {
		w.backfill()
	}
	if f.stall && w.chance(0.0003) { // all of the cluster is away for long
		w.now = w.now.Add(time.Duration(w.rnd.IntN(5*3600)) * time.Second)
		w.counts["stalls"]++
	}
}

// heal ends all trouble.
func (w *world) heal() {
	w.healed = true
	w.controllerUp, w.webhookUp, w.refusing, w.cronJob.Suspended = true, true, false, false
	w.length = min(w.length, 20*time.Second) // shorter than any period
	for _, e := range w.engines {
		if !e.up {
			e.up, e.loaded = true, false
		}
	}
	w.jobs = slices.DeleteFunc(w.jobs, func(j *simJob) bool { return !j.Ended && (j.fate == hangs || j.fate == neverClaims) && !j.claimed })
}

// backfill is a person that plans windows again, or takes them back.
func (w *world) backfill() {
	at := w.now.Add(-time.Duration(w.rnd.IntN(7200)) * time.Second)
	for i, t := 0, w.schedule.Next(at); i < 3 && t.Before(w.now); i, t = i+1, w.schedule.Next(t) {
		r := w.rows[t.Unix()]
		if t.Before(w.cronJob.Settings.Since) || w.plans[t.Unix()] != nil || r != nil && r.Closed {
			continue
		}
		w.plans[t.Unix()] = &Plan{WindowStart: t, By: "ada", CronJobUID: w.cronJob.Settings.CronJobUID}
		w.counts["planned by people"]++
	}
	for key, p := range w.plans {
		if p.By != "" && p.Made == 0 && w.chance(0.05) {
			delete(w.plans, key)
		}
	}
}

// control is the CronJob controller: syncCronJob of Kubernetes.
func (w *world) control() {
	w.note()
	if !w.controllerUp || w.cronJob.Suspended {
		return
	}
	due := w.newestUnmet()
	if due.IsZero() {
		return
	}
	var active []*simJob
	for _, j := range w.jobs {
		if !j.CatchUp && !j.Ended {
			active = append(active, j)
		}
	}
	if w.policy == "Forbid" && len(active) > 0 {
		return
	}
	if w.policy == "Replace" {
		for _, j := range active {
			w.delete(j)
		}
	}
	if w.refusing {
		w.cronJob.Refused, w.cronJob.RefusedReason, w.cronJob.RefusedAt = "exceeded quota", Quota, w.now
		return
	}
	cut, judged := w.lastCut[due.Unix()]
	w.promise(!judged || w.healedByPass(due) || due.Before(w.cronJob.Settings.Since), "%s got its Job after it was called final at %s", text(due), cut.Format("15:04:05"))
	w.add(due, false)
	w.cronJob.LastScheduled = due
}

// healedByPass: what was suspended may be started at the resume, whatever was recorded, and
// what a page of the ledger left no room to wait for.
func (w *world) healedByPass(due time.Time) bool {
	return w.blockers[due.Unix()][Suspended] || w.page < 20000 || w.faults.clocks || w.faults.stall
}

// newestUnmet is the window that the controller would start now.
func (w *world) newestUnmet() time.Time {
	from := latest(w.created, w.cronJob.LastScheduled).Add(time.Second)
	if d := w.cronJob.StartingDeadline; d != nil {
		from = latest(from, w.now.Add(-*d))
	}
	return w.kube.Newest(from, w.now)
}

// note records what keeps the newest window from having its Job.
func (w *world) note() {
	due := w.schedule.Newest(w.now.Add(-24*time.Hour), w.now)
	if due.IsZero() || !w.cronJob.LastScheduled.Before(due) || due.Before(w.cronJob.Settings.Since) {
		return
	}
	b := w.blockers[due.Unix()]
	if b == nil {
		b = map[Reason]bool{}
		w.blockers[due.Unix()] = b
	}
	if w.schedule.Invented(due) {
		b[ClockMoved] = true
	}
	if !w.controllerUp {
		b[Controller] = true
	}
	if w.cronJob.Suspended {
		b[Suspended] = true
	}
	if w.flippedAt.After(due) { // within a tick
		b["unseen"] = true
	}
	if w.refusing {
		b[Quota] = true
	}
	if d := w.cronJob.StartingDeadline; d != nil && w.now.Sub(due) > *d {
		b[StartDeadline] = true
	}
	for _, e := range w.engines {
		if !e.up {
			b["unseen"] = true
		}
	}
	for _, j := range w.jobs {
		if !j.CatchUp && !j.Ended && w.cronJob.Forbid {
			b[Overlap] = true
		}
	}
}
