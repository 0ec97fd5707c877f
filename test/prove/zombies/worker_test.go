package zombies_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/commit"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/test/prove/rig"
)

// zombieEnv carries the job of a process of this very binary that will be frozen.
const zombieEnv = "ONCEGUARD_ZOMBIE"

// job is what such a process does: claim, heartbeat, and commit one effect.
type job struct {
	URL     string
	Name    string
	Attempt claim.Attempt
	Lease   time.Duration
	Way     way
	// Stop is where it waits to be frozen.
	Stop point
	// Insistent switches the limit off that begin() puts on idling.
	Insistent bool
	Gate      int64 // advisory lock that a statement of byEndpoint waits for
}

// way is how it commits.
type way string

const (
	byDriver      way = "driver"      // a transaction of its own
	byEndpoint    way = "endpoint"    // package commit, as POST /v1/commit does
	byInteractive way = "interactive" // package commit, as /v1/tx does
	byOthers      way = "others"      // not at all: the worker is another process
)

// point is a place in the life of an attempt.
type point string

const (
	claimed   point = "claimed"   // before begin
	begun     point = "begun"     // between begin and complete
	completed point = "completed" // between complete and COMMIT
)

// Lines that the process says: "at <point>", "commit <result>", "beat <answer>".
const (
	fine = "done"
	idle = "idle" // the server ended the transaction, or the session, meanwhile
)

// zombie is the process. It never asks its own clock whether the lease still lasts: only
// the ledger stands between it and a second effect.
type zombie struct {
	job
	in     *bufio.Reader
	out    io.Writer
	ledger *ledger.Ledger
}

// live is the main function of the process.
func live(in io.Reader, out io.Writer, description string) error {
	z := zombie{in: bufio.NewReader(in), out: out}
	if err := json.Unmarshal([]byte(description), &z.job); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*rig.Patience)
	defer cancel()
	z.ledger = ledger.New(func(context.Context) (string, error) { return z.URL, nil }, zap.NewNop(), ledger.Application(z.Name))
	defer z.ledger.Close(ctx)
	got, err := z.ledger.Claim(ctx, claim.Request{Attempt: z.Attempt, Lease: z.Lease})
	if err != nil || got.Verdict != claim.Run {
		return fmt.Errorf("claim: %+v, %w", got, err)
	}
	stop := z.heartbeats(ctx)
	result := fine
	switch z.Way {
	case byOthers:
		z.at(claimed)
	case byEndpoint:
		result = z.endpoint(ctx)
	case byInteractive:
		result = z.interactive(ctx)
	case byDriver:
		result = z.driver(ctx)
	}
	z.say("commit %s", result)
	stop()
	beat, err := z.ledger.Heartbeat(ctx, z.Attempt, z.Lease)
	if err != nil {
		return err
	}
	z.say("beat %s", beat)
	return nil
}

// heartbeats keep the lease until they are stopped, or frozen with the process.
func (z *zombie) heartbeats(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var g sync.WaitGroup
	g.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(z.Lease / 4):
			}
			_, _ = z.ledger.Heartbeat(ctx, z.Attempt, z.Lease)
		}
	})
	return func() { cancel(); g.Wait() }
}

func (z *zombie) say(format string, args ...any) { fmt.Fprintf(z.out, format+"\n", args...) }

// at stops at its point until a line comes; other points are passed.
func (z *zombie) at(p point) {
	if p == z.Stop {
		z.say("at %s", p)
		_, _ = z.in.ReadString('\n')
	}
}

// driver commits in a transaction of its own.
func (z *zombie) driver(ctx context.Context) string {
	c, err := pgx.Connect(ctx, z.URL)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = c.Close(ctx) }()
	z.at(claimed)
	tx, err := c.Begin(ctx)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if z.Insistent {
		err = rig.BeginInsistent(ctx, tx, z.Attempt)
	} else {
		_, err = tx.Exec(ctx, rig.BeginSQL, rig.Args(z.Attempt)...)
	}
	if err != nil {
		return code(err)
	}
	if _, err := tx.Exec(ctx, rig.EffectSQL, rig.Args(z.Attempt)...); err != nil {
		return code(err)
	}
	z.at(begun)
	if _, err := tx.Exec(ctx, rig.CompleteSQL, rig.Args(z.Attempt)...); err != nil {
		return code(err)
	}
	z.at(completed)
	if err := tx.Commit(ctx); err != nil {
		return code(err)
	}
	return fine
}

func code(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code != "25P03" {
		return pg.Code
	}
	return idle
}

// endpoint commits as the local endpoint does. Only before Commit the process can wait;
// inside, a statement waits for an advisory lock and the proof freezes it there.
func (z *zombie) endpoint(ctx context.Context) string {
	z.at(claimed)
	if z.Stop != claimed {
		z.say("at %s", z.Stop)
	}
	_, err := commit.New(z.ledger, rig.Hold(z.Attempt), zap.NewNop()).Commit(ctx, request(z.Attempt, z.Gate, z.Insistent))
	return refusal(err)
}

// interactive commits by an interactive transaction of the local endpoint.
func (z *zombie) interactive(ctx context.Context) string {
	z.at(claimed)
	c := commit.New(z.ledger, rig.Hold(z.Attempt), zap.NewNop())
	tx, err := c.Open(ctx)
	if err != nil {
		return refusal(err)
	}
	for _, s := range request(z.Attempt, 0, z.Insistent).Statements {
		if _, err := c.Query(ctx, tx.ID, s); err != nil {
			return refusal(err)
		}
	}
	z.at(begun)
	_, err = c.Finish(ctx, tx.ID, commit.Closing{})
	return refusal(err)
}

func refusal(err error) string {
	if e, ok := errors.AsType[*commit.Error](err); ok {
		return string(e.Code)
	}
	return fine
}

// request has one effect; a gate other than 0 is waited for.
func request(a claim.Attempt, gate int64, insistent bool) commit.Request {
	text := func(v any) json.RawMessage { b, _ := json.Marshal(fmt.Sprint(v)); return b }
	r := commit.Request{Statements: []commit.Statement{{SQL: rig.EffectSQL, Args: []json.RawMessage{
		text(a.Window.JobName), text(a.Window.Start.Format(time.RFC3339)), text(a.ExecutionID),
	}}}}
	if insistent {
		r.Statements = append(r.Statements, commit.Statement{SQL: "SELECT set_config('idle_in_transaction_session_timeout', '0', true)"})
	}
	if gate != 0 {
		r.Statements = append(r.Statements, commit.Statement{SQL: "SELECT pg_advisory_xact_lock($1)", Args: []json.RawMessage{text(gate)}})
	}
	return r
}

// asProcess runs the job that the environment describes, if there is one.
func asProcess() bool {
	description := os.Getenv(zombieEnv)
	if description == "" {
		return false
	}
	if err := live(os.Stdin, os.Stdout, description); err != nil {
		fmt.Fprintln(os.Stdout, "error", err)
		os.Exit(1)
	}
	return true
}
