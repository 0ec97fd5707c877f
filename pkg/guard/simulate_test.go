package guard

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/pkg/wire"
)

// world drives the reducer through a random history: wrappers come, work, crash and
// are told off; the ledger answers, refuses, stays away; the guard restarts. After
// every step the promises of the package are checked.
type world struct {
	rnd *rand.Rand
	s   State
	now time.Time

	broken   []string         // promises, in words
	log      func(say string) // when a history is told
	thorough bool             // also the checks that cost much
	seen     coverage

	next      Conn
	procs     map[Conn]*simulated
	away      []*simulated  // run on without a connection after a restart of the guard
	calls     []call        // in flight
	leaseEnds time.Time     // as the ledger sees it, at the earliest
	verdict   claim.Verdict // the last one
	restarted bool
	saved     Saved
}

// answered is a kind of answer to a claim.
type answered struct {
	verdict claim.Verdict
	reason  claim.Reason
}

// reasons are all that a claim may be answered.
var reasons = map[claim.Verdict][]claim.Reason{
	claim.Run:    {claim.First, claim.Retry, claim.Takeover, claim.Reopened, claim.Adopted},
	claim.Wait:   {claim.BusyHeld, claim.Committing, claim.FenceLost, claim.Overlap, claim.Replacing, claim.Order},
	claim.Skip:   {claim.AlreadyCompleted, claim.Closed, claim.Late, claim.Overlap, claim.Superseded, claim.Cancelled},
	claim.Refuse: {claim.PayloadConflict, claim.IsExhausted, claim.IsHeld},
}

// call is a question to the ledger on its way.
type call struct {
	effect Effect
	sent   time.Time
}

// A message that bounds nothing would let a worker run for ever.
func TestTrustIsNeverUnbounded(t *testing.T) {
	m := &step{State: NewState(testConf(), nil), now: time.Unix(1_800_000_000, 0)}
	for _, left := range []time.Duration{time.Microsecond, 0, -time.Hour} {
		m.trust = m.now.Add(m.conf.grace() + left)
		if msg := m.trustMessage(wire.TypeTrust); msg.TrustMS != 1 {
			t.Errorf("%s left: trustMs %d", left, msg.TrustMS)
		}
	}
}

// simulated is a wrapper: it follows the protocol.
type simulated struct {
	container string
	kind      wire.Kind
	running   bool
	stopped   bool
	exited    bool
	code      int
	acked     bool
	trust     time.Time // TERM by itself
}

func testConf() Conf {
	return Conf{
		GuardConfig: contract.GuardConfig{
			JobName: "shop/order-sync", InitContainers: []string{"prepare"}, Containers: []string{"main", "side"},
			Completion: contract.CompletionExitCode, Busy: contract.BusyWait,
			StartTimeout: contract.Duration(5 * time.Minute), Lease: contract.Duration(30 * time.Second),
			Namespace: "shop", Secret: "onceguard-ledger-default", SecretKey: "url",
		},
		Window: window.Window{JobName: "shop/order-sync", Start: time.Date(2026, 11, 30, 13, 18, 0, 0, time.UTC)},
		Pod:    "shop/order-sync-1",
	}
}

// move lets one random thing happen.
func (w *world) move() {
	switch n := w.rnd.IntN(100); {
	case n < 25:
		w.reply()
	case n < 45:
		w.arrive()
	case n < 70:
		w.act()
	case n < 90:
		w.wait()
	case n < 92:
		w.restart()
	case n < 93:
		w.take(Leave{})
	case n < 95:
		if w.s.Phase == Held && !w.s.Committed {
			w.take(Committed{w.s.ExecutionID})
		}
	case n < 96:
		w.take(Fenced{w.s.ExecutionID})
	case n < 97:
		next := w.fresh()
		w.take(Replacing{w.s.ExecutionID, next})
		if w.rnd.IntN(2) == 0 {
			w.take(Replaced{w.s.ExecutionID, next})
		}
	default:
		w.take(Tick{})
	}
}

func (w *world) fresh() uuid.UUID {
	var id uuid.UUID
	for i := range id {
		id[i] = byte(w.rnd.IntN(256))
	}
	return id
}

// reply answers one call in flight.
func (w *world) reply() {
	if len(w.calls) == 0 {
		return
	}
	i := w.rnd.IntN(len(w.calls))
	c := w.calls[i]
	w.calls = slices.Delete(w.calls, i, i+1)
	sent := c.sent
	var trouble *Trouble
	if w.rnd.IntN(4) == 0 {
		faults := []Fault{Away, Misset, Gone, Repeated}
		switch c.effect.(type) {
		case Ask, RecordSkip: // the ledger answers them, or it does not
			faults = faults[:2]
		case Heartbeat:
			faults = faults[:3]
		}
		trouble = &Trouble{Fault: faults[w.rnd.IntN(len(faults))], Text: "connection refused"}
		w.seen.met("fault", trouble.Fault)
	}
	switch c := c.effect.(type) {
	case Ask:
		a := claim.Answer{Verdict: []claim.Verdict{claim.Run, claim.Run, claim.Run, claim.Wait, claim.Wait, claim.Skip, claim.Refuse}[w.rnd.IntN(7)], Attempt: 1}
		a.Reason = reasons[a.Verdict][w.rnd.IntN(len(reasons[a.Verdict]))]
		if w.rnd.IntN(2) == 0 {
			a.Holder = claim.Holder{Window: window.Window{JobName: "shop/order-sync", Start: w.s.conf.Window.Start.Add(-time.Minute)}, Attempt: w.rnd.IntN(2)}
		}
		if trouble == nil {
			w.seen.met("answer", answered{a.Verdict, a.Reason})
			w.verdict = a.Verdict
		}
		if trouble == nil && a.Verdict == claim.Run {
			w.leaseEnds = sent.Add(time.Duration(w.s.conf.Lease))
		}
		w.take(Asked{ID: c.ID, Sent: sent, Answer: a, Trouble: trouble})
	case Heartbeat:
		b := []claim.Beat{claim.BeatOK, claim.BeatOK, claim.BeatOK, claim.BeatOK, claim.BeatCancel, claim.BeatLost}[w.rnd.IntN(6)]
		if trouble == nil {
			w.seen.met("beat", b)
		}
		if trouble == nil && b != claim.BeatLost && c.ID == w.s.ExecutionID {
			w.leaseEnds = sent.Add(time.Duration(w.s.conf.Lease))
		}
		w.take(Beaten{ID: c.ID, Sent: sent, Beat: b, Trouble: trouble})
	case Settle:
		recorded := c.Ending.End.Outcome
		if c.Ending.Complete || trouble == nil && w.rnd.IntN(8) == 0 { // a commit that the guard did not see
			recorded = claim.OutcomeCompleted
		}
		if trouble == nil && !c.Ending.Complete && recorded != c.Ending.End.Outcome {
			w.seen.met("settle", "found completed")
		}
		w.take(Settled{ID: c.ID, Recorded: recorded, Trouble: trouble})
	case RecordSkip:
		w.take(SkipRecorded{Trouble: trouble})
	}
}

func (w *world) arrive() {
	if len(w.away) > 0 && w.rnd.IntN(3) == 0 {
		p := w.away[0]
		w.away = w.away[1:]
		w.back(p)
		return
	}
	conf := w.s.conf
	names := slices.Concat(conf.InitContainers, conf.Containers, []string{"stranger"})
	name := names[w.rnd.IntN(len(names))]
	kind := wire.KindWorker
	switch {
	case slices.Contains(conf.InitContainers, name):
		kind = wire.KindInit
	case name == "stranger":
		kind = []wire.Kind{wire.KindHook, wire.KindWait, "odd", wire.KindWorker}[w.rnd.IntN(4)]
	}
	for _, p := range append(slices.Collect(maps.Values(w.procs)), w.away...) {
		// The kubelet starts workers after init containers have ended.
		other := kind == wire.KindInit && p.kind == wire.KindWorker || kind == wire.KindWorker && p.kind == wire.KindInit
		if (p.container == name || other) && !p.acked {
			return
		}
	}
	if kind == wire.KindInit && len(w.s.Reports) > 0 {
		return
	}
	w.next++
	w.procs[w.next] = &simulated{container: name, kind: kind}
	w.take(Hello{Conn: w.next, Container: name, Kind: kind})
}

// act lets a process end, crash or be told to.
func (w *world) act() {
	ids := slices.Sorted(maps.Keys(w.procs))
	if len(ids) == 0 {
		return
	}
	id := ids[w.rnd.IntN(len(ids))]
	p := w.procs[id]
	switch n := w.rnd.IntN(10); {
	case n < 5 && p.running && !p.exited:
		p.exited, p.running = true, false
		p.code = []int{0, 0, 1, 143}[w.rnd.IntN(4)]
		w.take(Exited{Conn: id, Code: p.code})
	case n < 7:
		delete(w.procs, id)
		w.take(Broken{Conn: id})
	case n < 8:
		w.take(Terminating{Conn: id})
	case n < 9 && p.running && !p.exited:
		w.take(Started{Conn: id})
	}
}

// wait lets time pass: mostly little, sometimes enough for a lease to run out. The
// guard is woken when it wants to be.
func (w *world) wait() {
	until := w.now.Add(time.Duration(w.rnd.IntN(3000)) * time.Millisecond)
	if w.rnd.IntN(6) == 0 {
		until = w.now.Add(time.Duration(w.rnd.IntN(60)) * time.Second)
	}
	for range 100 {
		at, ok := w.s.Wake()
		if !ok || !at.Before(until) {
			break
		}
		if at.After(w.now) {
			w.now = at
		}
		w.take(Tick{})
		w.progress()
	}
	if w.now.Before(until) {
		w.now = until
		w.take(Tick{})
	}
}

// progress: right after a tick the guard must not want another one at once.
func (w *world) progress() {
	if at, ok := w.s.Wake(); ok && !at.After(w.now) && w.s.Phase != Left {
		w.errorf("in %s the guard wakes at once again", w.s.Phase)
	}
}

// restart replaces the guard; wrappers keep their processes and come back.
func (w *world) restart() {
	w.seen.met("restart in", w.s.Phase)
	w.calls, w.restarted = nil, true
	w.s = NewState(w.s.conf, &w.saved)
	if w.log != nil {
		w.log("restart")
	}
	w.take(Start{})
	old := w.procs
	w.procs = map[Conn]*simulated{}
	for _, id := range slices.Sorted(maps.Keys(old)) {
		p := old[id]
		switch {
		case p.acked || w.rnd.IntN(8) == 0: // gone meanwhile
		case p.running && w.rnd.IntN(3) == 0:
			w.away = append(w.away, p)
		default:
			w.back(p)
		}
	}
}

// back lets a wrapper dial the new guard.
func (w *world) back(p *simulated) {
	for _, q := range w.procs {
		if q.container == p.container {
			return
		}
	}
	if p.running && !w.now.Before(p.trust) { // stopped by its wrapper
		p.running, p.exited, p.code = false, true, 143
	}
	w.next++
	w.procs[w.next] = p
	pid := 0
	if p.running || p.exited {
		pid = 42
	}
	w.take(Hello{Conn: w.next, Container: p.container, Kind: p.kind, PID: pid})
	if p.exited && pid != 0 {
		w.take(Exited{Conn: w.next, Code: p.code})
	}
}

// workingAway names a process that runs without a connection, within its trust.
func (w *world) workingAway() string {
	for _, p := range w.away {
		if p.running && !p.stopped && w.now.Before(p.trust) {
			return p.container
		}
	}
	return ""
}

func (w *world) take(e Event) {
	before := w.s
	s, effects := Next(w.s, Input{Now: w.now, Fresh: w.fresh(), Chance: w.rnd.Float64(), Event: e})
	w.s = s
	w.seen.met("event", reflect.TypeOf(e))
	w.seen.met("phase", s.Phase)
	if w.log != nil {
		w.log(fmt.Sprintf("%s %s: %s -> %s", w.now.Format("04:05.000"), told(e), before.Phase, s.Phase))
		for _, f := range effects {
			w.log("    " + told(f))
		}
	}
	saved := false
	for _, f := range effects {
		w.seen.met("effect", reflect.TypeOf(f))
		switch f := f.(type) {
		case Save:
			saved = true
			w.saved = s.clone().Saved
		case Ask:
			w.calls = append(w.calls, call{f, w.now})
			w.mayAsk(f)
		case Heartbeat, RecordSkip:
			w.calls = append(w.calls, call{f, w.now})
		case Settle:
			w.calls = append(w.calls, call{f, w.now})
			w.maySettle(f)
		case Send:
			w.heard(f.Conn, f.Message)
		}
	}
	if w.thorough && !saved && !reflect.DeepEqual(before.Saved, s.Saved) && s.Phase != Left && before.Phase != "" {
		w.errorf("a change was not saved: %+v then %+v", before.Saved, s.Saved)
	}
	w.stopsInTime()
	if gone := s.missing(); len(gone) > 0 && !w.restarted {
		w.errorf("%v vanished and nothing was concluded", gone)
	}
}

// mayAsk: no claim goes out while a process of this pod may be working on the window.
func (w *world) mayAsk(f Ask) {
	if f.ID == uuid.Nil || f.ID != w.saved.ExecutionID {
		w.errorf("claim with %s, which is not the saved id %s", f.ID, w.saved.ExecutionID)
	}
	if name := w.workingAway(); name != "" {
		w.errorf("claim while %s runs on", name)
	}
	for id, p := range w.procs {
		if q := w.s.conns[id]; p.running && q.running && !p.stopped && (p.kind == wire.KindWorker || p.kind == wire.KindInit) {
			w.errorf("claim while %s runs", p.container)
		}
	}
}

// maySettle: a window is completed only by exit 0 of every worker, and released only
// when nobody of this pod works on it.
func (w *world) maySettle(f Settle) {
	if f.Ending.Complete {
		w.seen.met("settle", "complete")
		if w.s.conf.Completion == contract.CompletionTransaction {
			w.errorf("exit 0 completed a window that only a transaction may complete")
		}
		for _, name := range w.s.conf.Containers {
			if r, ok := w.s.Reports[name]; !ok || r.Code != 0 || r.Vanished || r.Ack != 0 {
				w.errorf("completed although %s ended as %+v", name, r)
			}
		}
	} else {
		w.seen.met("settle", f.Ending.End.Outcome)
	}
	if f.Ending.End.Outcome == claim.OutcomeCompleted {
		return
	}
	if name := w.workingAway(); name != "" {
		w.errorf("settled as %+v while %s runs on", f.Ending, name)
	}
	for id, p := range w.procs {
		if _, known := w.s.conns[id]; known && p.running && p.kind != wire.KindHook && p.kind != wire.KindWait {
			w.errorf("settled as %+v while %s runs", f.Ending, p.container)
		}
	}
}

// heard is what a wrapper does with a message.
func (w *world) heard(id Conn, m wire.Message) {
	w.seen.met("message", m.Type)
	p := w.procs[id]
	if p == nil {
		return
	}
	trust := func() {
		if m.TrustMS <= 0 {
			w.errorf("%s without a bound", m.Type)
		}
		p.trust = w.now.Add(time.Duration(m.TrustMS) * time.Millisecond)
		killed := p.trust.Add(time.Duration(m.GraceMS) * time.Millisecond)
		if end := w.leaseEnds.Add(-w.s.conf.margin()); !w.s.Committed && killed.After(end.Add(2*time.Millisecond)) {
			w.errorf("%s lets the process live until %s, the lease ends %s", m.Type, killed, w.leaseEnds)
		}
	}
	switch m.Type {
	case wire.TypeRun:
		if w.s.Phase != Held {
			w.errorf("run in %s", w.s.Phase)
		}
		if p.kind == wire.KindHook || p.kind == wire.KindWait {
			break
		}
		if !slices.Contains(w.saved.Running, p.container) {
			w.errorf("%s was told to run before that was saved", p.container)
		}
		p.running = true
		trust()
	case wire.TypeTrust:
		trust()
	case wire.TypeStop:
		p.stopped = true
	case wire.TypeAck:
		if !p.exited {
			w.errorf("ack for %s, which did not exit", p.container)
		}
		w.mayAck(p, m)
		delete(w.procs, id)
		p.acked = true
	case wire.TypeSkip:
		if p.kind != wire.KindHook && w.s.Phase != Done && !w.s.Committed {
			w.errorf("%s is skipped in %s", p.container, w.s.Phase)
		}
		delete(w.procs, id)
		p.acked = true
	case wire.TypeRefuse:
		if m.Code == contract.ExitRefused && p.container != "stranger" && w.verdict != claim.Refuse {
			w.errorf("%s is told that a retry makes no sense, and the ledger said %s", p.container, w.verdict)
		}
		delete(w.procs, id)
		p.acked = true
	}
}

// mayAck: a container ends with 0 only when its window is done, or when others still
// have to do their part.
func (w *world) mayAck(p *simulated, m wire.Message) {
	if p.code != 0 && m.Code == 0 {
		w.errorf("%s ended with %d and is acknowledged with 0", p.container, p.code)
	}
	if p.kind != wire.KindWorker || m.Code != 0 || w.s.Committed {
		return
	}
	for _, name := range w.s.conf.Containers {
		if r, ok := w.s.Reports[name]; !ok || r.Code != 0 || r.Ack != 0 {
			return
		}
	}
	if w.s.Phase == Done { // completed by another attempt meanwhile
		return
	}
	w.errorf("all ended with 0 and are acknowledged so, but the window is not completed (%s)", w.s.Phase)
}

// stopsInTime: when the trusted time is nearly over, everyone who runs was told.
func (w *world) stopsInTime() {
	if w.s.Committed || w.s.Phase == Adopting || w.s.Phase == Left || w.s.trust.IsZero() {
		return
	}
	if w.now.Before(w.leaseEnds.Add(-w.s.conf.margin()-w.s.conf.grace())) || w.s.Phase == Stopping && w.s.stopKeep {
		return
	}
	for id, p := range w.procs {
		if q, known := w.s.conns[id]; known && q.live() && p.running && !p.stopped {
			w.errorf("%s was not told to stop at the end of trust", p.container)
		}
	}
}
