package guard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/logs"
)

// Ledger is what the guard needs of package ledger. Errors are given to
// Options.Judge; any error may also be a timeout of the context.
type Ledger interface {
	// CheckSchema fails when the schema is not one that this build works with.
	CheckSchema(ctx context.Context) error
	Claim(ctx context.Context, r claim.Request) (claim.Answer, error)
	Heartbeat(ctx context.Context, a claim.Attempt, lease time.Duration) (claim.Beat, error)
	// Complete succeeds also when this very attempt completed the window before.
	Complete(ctx context.Context, a claim.Attempt, c claim.Completion) error
	// Release answers the outcome as recorded: completed, whatever e says, when the attempt
	// had completed the window; empty when it was not current any more.
	Release(ctx context.Context, a claim.Attempt, e claim.End) (claim.Outcome, error)
	RecordSkip(ctx context.Context, r claim.Request, why claim.Reason) error
}

// Options of a guard; all are required.
type Options struct {
	Conf   Conf
	Origin claim.Origin
	Ledger Ledger
	// Judge says what an error of the ledger means and names it without secrets.
	Judge    func(error) Trouble
	Store    *Store
	Listener net.Listener // for wrappers
	Log      *zap.Logger
}

// Bounds of the single calls; what is repeated and for how long is the reducer's.
const (
	askTimeout    = 10 * time.Second
	settleTimeout = 10 * time.Second
	skipTimeout   = 2 * time.Second
)

// ErrLeft is given to callers after the guard has ended.
var ErrLeft = errors.New("the guard has ended")

// Guard is the loop around the reducer.
type Guard struct {
	o      Options
	events chan posted
	left   chan struct{} // closed when the loop has ended
	view   atomic.Pointer[View]

	// The loop's own.
	state   State
	work    sync.WaitGroup
	checked atomic.Bool // the schema was found good
	server  *server
	lost    chan struct{} // closed when the present hold ends
}

// posted is an event on its way to the loop.
type posted struct {
	event Event
	done  chan struct{} // closed when it was taken and its effects were performed
}

// New prepares a guard; Run starts it.
func New(o Options) *Guard {
	g := &Guard{
		o: o, events: make(chan posted), left: make(chan struct{}),
		state: NewState(o.Conf, o.Store.Saved()),
	}
	g.view.Store(&View{})
	return g
}

// Run works until ctx ends and no wrapped process is connected any more. It never
// ends by itself.
func (g *Guard) Run(ctx context.Context) {
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g.server = newServer(g.o.Listener, g.o.Log, g.post)
	g.work.Go(g.server.accept)
	defer func() {
		close(g.left)
		cancel()
		g.server.close()
		g.work.Wait()
	}()

	timer := time.NewTimer(0)
	defer timer.Stop()
	end := ctx.Done()
	g.step(calls, Start{})
	for g.state.Phase != Left {
		g.schedule(timer)
		select {
		case <-end:
			end = nil
			g.step(calls, Leave{})
		case p := <-g.events:
			g.step(calls, p.event)
			if p.done != nil {
				close(p.done)
			}
		case <-timer.C:
			g.step(calls, Tick{})
		}
	}
}

// schedule sets the timer to the next instant that the state waits for.
func (g *Guard) schedule(t *time.Timer) {
	at, ok := g.state.Wake()
	if !ok {
		t.Stop()
		return
	}
	t.Reset(max(0, time.Until(at)))
}

// step takes one event; calls is the context of calls to the ledger. A panic costs the event and no more: a guard that ends would
// make Kubernetes fail a Job under OnFailure, and its worker would lose its lease.
func (g *Guard) step(calls context.Context, e Event) {
	defer func() {
		if r := recover(); r != nil {
			g.log().Error("the guard panicked and goes on", zap.Any("panic", r), zap.ByteString("stack", debug.Stack()))
			time.Sleep(100 * time.Millisecond) // not a storm, should it repeat
		}
	}()
	next, effects := Next(g.state, Input{Now: time.Now(), Fresh: uuid.New(), Chance: rand.Float64(), Event: e})
	g.state = next
	g.publish()
	for _, f := range effects {
		g.perform(calls, f)
	}
}

func (g *Guard) perform(calls context.Context, f Effect) {
	switch f := f.(type) {
	case Save:
		if err := g.o.Store.Save(g.state.Saved); err != nil {
			// Going on is safe: a restarted guard would not know the attempt and would
			// stop its worker.
			g.log().Error("the state could not be saved", zap.Error(err))
		}
	case Ask:
		g.call(calls, askTimeout, func(ctx context.Context) Event { return g.ask(ctx, f.ID) })
	case Heartbeat:
		g.beat(calls, f)
	case Settle:
		g.call(calls, settleTimeout, func(ctx context.Context) Event {
			recorded, err := g.write(ctx, f)
			return Settled{ID: f.ID, Recorded: recorded, Trouble: g.trouble(err)}
		})
	case RecordSkip:
		g.call(calls, skipTimeout, func(ctx context.Context) Event {
			err := g.safely(func() error { return g.o.Ledger.RecordSkip(ctx, g.request(f.ID), f.Reason) })
			if err != nil {
				g.log().Warn("the skip could not be recorded", zap.String("error", g.o.Judge(err).Text))
			}
			return SkipRecorded{Trouble: g.trouble(err)}
		})
	case Send:
		g.server.send(f.Conn, f.Message)
	case Log:
		if c := g.log().Check(f.Level, f.Text); c != nil {
			c.Write()
		}
	case Quit:
	}
}

// call performs a call to the ledger beside the loop and posts its answer.
func (g *Guard) call(calls context.Context, timeout time.Duration, f func(ctx context.Context) Event) {
	g.work.Go(func() {
		ctx, cancel := context.WithTimeout(calls, timeout)
		defer cancel()
		g.post(f(ctx))
	})
}

func (g *Guard) ask(ctx context.Context, id uuid.UUID) Event {
	sent := time.Now()
	if !g.checked.Load() {
		if err := g.safely(func() error { return g.o.Ledger.CheckSchema(ctx) }); err != nil {
			return Asked{ID: id, Sent: sent, Trouble: g.trouble(err)}
		}
		g.checked.Store(true)
		sent = time.Now()
	}
	var a claim.Answer
	err := g.safely(func() (err error) {
		a, err = g.o.Ledger.Claim(ctx, g.request(id))
		return err
	})
	return Asked{ID: id, Sent: sent, Answer: a, Trouble: g.trouble(err)}
}

func (g *Guard) beat(calls context.Context, f Heartbeat) {
	lease := time.Duration(g.o.Conf.Lease)
	// A call that hangs must leave time for another try before trust ends.
	timeout := max(min(lease/3, time.Until(f.By)), lease/20)
	g.call(calls, timeout, func(ctx context.Context) Event {
		sent := time.Now()
		var b claim.Beat
		err := g.safely(func() (err error) {
			b, err = g.o.Ledger.Heartbeat(ctx, g.attempt(f.ID), lease)
			return err
		})
		return Beaten{ID: f.ID, Sent: sent, Beat: b, Trouble: g.trouble(err)}
	})
}

// write writes an outcome and gives the one that is recorded.
func (g *Guard) write(ctx context.Context, f Settle) (recorded claim.Outcome, err error) {
	err = g.safely(func() (err error) {
		if f.Ending.Complete {
			if err := g.o.Ledger.Complete(ctx, g.attempt(f.ID), claim.Completion{}); err != nil {
				return err
			}
			recorded = claim.OutcomeCompleted
			// The lease is of no more use; should it stay, nothing depends on it.
			var zero int
			if _, err := g.o.Ledger.Release(ctx, g.attempt(f.ID), claim.End{Outcome: claim.OutcomeCompleted, ExitCode: &zero}); err != nil {
				g.log().Warn("the end of a completed attempt could not be recorded", zap.String("error", g.o.Judge(err).Text))
			}
			return nil
		}
		recorded, err = g.o.Ledger.Release(ctx, g.attempt(f.ID), f.Ending.End)
		if err == nil && recorded == "" {
			return errNotCurrent
		}
		return err
	})
	return recorded, err
}

// errNotCurrent: a release of an attempt that had lost its window before.
var errNotCurrent = errors.New("the attempt was not current any more")

// safely turns a panic into an error: an answer that never comes would leave the
// reducer waiting for ever.
func (g *Guard) safely(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			g.log().Error("a call to the ledger panicked", zap.Any("panic", r), zap.ByteString("stack", debug.Stack()))
			err = fmt.Errorf("internal error: %v", r)
		}
	}()
	return f()
}

func (g *Guard) trouble(err error) *Trouble {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNotCurrent):
		return &Trouble{Fault: Gone, Text: err.Error()}
	}
	t := g.o.Judge(err)
	return &t
}

func (g *Guard) attempt(id uuid.UUID) claim.Attempt {
	return claim.Attempt{Window: g.o.Conf.Window, ExecutionID: id}
}

func (g *Guard) request(id uuid.UUID) claim.Request {
	return claim.Request{Attempt: g.attempt(id), Lease: time.Duration(g.o.Conf.Lease), Terms: Terms(g.o.Conf.GuardConfig), Origin: g.o.Origin}
}

// post gives an event to the loop; after the loop's end it is dropped.
func (g *Guard) post(e Event) {
	select {
	case g.events <- posted{event: e}:
	case <-g.left:
	}
}

// tell gives an event to the loop and waits until it was taken, saved and acted upon.
func (g *Guard) tell(ctx context.Context, e Event) error {
	p := posted{event: e, done: make(chan struct{})}
	select {
	case g.events <- p:
	case <-g.left:
		return ErrLeft
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-p.done:
		return nil
	case <-g.left:
		return ErrLeft
	}
}

// log names the window and the attempt.
func (g *Guard) log() *zap.Logger {
	v := g.view.Load()
	return g.o.Log.With(append(logs.Window(g.o.Conf.Window), logs.Attempt(v.ExecutionID, v.Attempt)...)...)
}
