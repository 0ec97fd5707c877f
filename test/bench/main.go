// Command bench measures the ledger against pgbench's simple-update (-N) on a private
// Postgres of its own, with fsync on. Rounds are interleaved, so that a machine that
// gets slower gets slower for all; only the ratios mean something.
//
//	bench [-rounds 5] [-seconds 5] [-clients 8]
//
// What is measured, each by as many clients, each client on a connection that is kept,
// with a login that was granted its jobs:
//
//	claim      one won claim of a new window (Ledger.Claim), one round trip
//	refused    a claim of a completed window: a duplicate, or a poll
//	heartbeat  one renewal (Ledger.Heartbeat)
//	run        a whole run: claim, then BEGIN, begin, one business INSERT, complete, and
//	           in a second round trip COMMIT
//
// "… in SQL" is the same by pgbench with prepared statements: what is left without our
// client and without parsing. Beside them, also by pgbench: a bare INSERT … ON CONFLICT
// DO NOTHING RETURNING, and a claim by UPDATE … FOR UPDATE SKIP LOCKED from a queue.
// "connect" is a connection over TCP with SCRAM, made and closed.
//
// WAL is bytes for each operation, by pg_current_wal_insert_lsn. CPU is microseconds for
// each operation, of all the server's processes and of the client's; unlike the rates
// it hardly depends on what else runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/pkg/window"
	"github.com/onceguard/onceguard/test/bench/cpu"
	"github.com/onceguard/onceguard/test/postgres"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one measurement in progress.
type bench struct {
	server     *postgres.Server
	url        string // of the granted login, by Unix socket
	tcp        string // the same by TCP
	admin      *pgx.Conn
	postmaster int
	clients    int
	span       time.Duration
	windows    atomic.Int64 // each claim of a new window takes the next
	done       window.Window
}

// figure is what one round of one kind gave.
type figure struct {
	rate           float64 // operations a second
	wal            float64 // bytes for each operation
	server, client float64 // CPU for each operation, in microseconds
}

// kinds in the order of a round; the first two are what the others are compared with.
var kinds = []string{
	"pgbench -N", "bare INSERT", "SKIP LOCKED",
	"claim in SQL", "claim", "refused in SQL", "refused", "heartbeat in SQL", "heartbeat", "run in SQL", "run", "connect",
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	rounds := fs.Int("rounds", 5, "rounds of each kind")
	seconds := fs.Int("seconds", 5, "length of a round in seconds")
	clients := fs.Int("clients", 8, "concurrent clients")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *rounds < 1 || *seconds < 1 || *clients < 1 {
		return errors.New("-rounds, -seconds and -clients must be 1 or more")
	}
	b := &bench{clients: *clients, span: time.Duration(*seconds) * time.Second}
	if err := b.prepare(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.server.Stop(context.WithoutCancel(ctx), postgres.Immediate)) }()

	figures := map[string][]figure{}
	for r := range *rounds {
		for _, k := range kinds {
			fmt.Fprintf(stderr, "round %d of %d: %s\n", r+1, *rounds, k)
			f, err := b.measure(ctx, k)
			if err != nil {
				return fmt.Errorf("%s: %w", k, err)
			}
			figures[k] = append(figures[k], f)
		}
	}
	return report(stdout, figures)
}

// login is who claims: not the owner, whose grants are not looked up.
const login = "bench"

// prepare starts the server and makes pgbench's tables and ours.
func (b *bench) prepare(ctx context.Context) (err error) {
	if b.server, err = postgres.Start(ctx, postgres.Options{Settings: map[string]string{
		"shared_buffers": "256MB", "max_wal_size": "4GB", "checkpoint_timeout": "30min",
	}}); err != nil {
		return err
	}
	owner := b.server.SocketURL("postgres")
	if _, _, err := migrate.Up(ctx, owner, zap.NewNop()); err != nil {
		return err
	}
	if b.admin, err = pgx.Connect(ctx, owner); err != nil {
		return err
	}
	cfg := b.admin.Config()
	for _, q := range []string{
		"CREATE ROLE " + login + " LOGIN PASSWORD '" + cfg.Password + "'",
		"GRANT CREATE ON SCHEMA public TO " + login,
		"SELECT onceguard.grant_job('" + login + "', 'bench/*')",
	} {
		if _, err := b.admin.Exec(ctx, q); err != nil {
			return err
		}
	}
	if b.url, err = as(owner); err != nil {
		return err
	}
	if b.tcp, err = as(b.server.URL("postgres")); err != nil {
		return err
	}
	if b.postmaster, err = b.findPostmaster(ctx); err != nil {
		return err
	}
	if err := b.prepareScripts(ctx); err != nil {
		return err
	}
	b.done = window.Window{JobName: "bench/done", Start: time.Unix(0, 0)}
	a := claim.Attempt{Window: b.done, ExecutionID: uuid.New()}
	l := b.ledger()
	defer l.Close(ctx)
	if _, err := l.Claim(ctx, claim.Request{Attempt: a, Lease: time.Hour}); err != nil {
		return err
	}
	return l.Complete(ctx, a, claim.Completion{})
}

func (b *bench) ledger() *ledger.Ledger {
	return ledger.New(func(context.Context) (string, error) { return b.url, nil }, zap.NewNop())
}

func (b *bench) measure(ctx context.Context, kind string) (f figure, err error) {
	if kind == "SKIP LOCKED" {
		if err := b.fill(ctx); err != nil {
			return figure{}, err
		}
	}
	var before string
	if err := b.admin.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&before); err != nil {
		return figure{}, err
	}
	server := cpu.Tree(b.postmaster)
	var n int64
	var client time.Duration
	if _, scripted := scripts[kind]; scripted {
		f.rate, n, client, err = b.script(ctx, kind)
	} else {
		own := cpu.Own()
		f.rate, n, err = b.ours(ctx, kind)
		client = cpu.Own() - own
	}
	if err != nil {
		return figure{}, err
	}
	each := float64(max(n, 1))
	f.server = float64((cpu.Tree(b.postmaster) - server).Microseconds()) / each
	f.client = float64(client.Microseconds()) / each
	var wal int64
	err = b.admin.QueryRow(ctx, "SELECT (pg_current_wal_insert_lsn() - $1::pg_lsn)::bigint", before).Scan(&wal)
	f.wal = float64(wal) / each
	return f, err
}

// report prints the median of each kind, and the median of its ratios, round by round.
func report(w io.Writer, figures map[string][]figure) error {
	update, insert := figures[kinds[0]], figures[kinds[1]]
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tper second\t× update\tleast\tmost\t× INSERT\tserver CPU\t× update\tclient CPU\tWAL bytes\t")
	for _, k := range kinds {
		var rates, updates, inserts, server, servers, client, wal []float64
		for i, f := range figures[k] {
			rates, wal = append(rates, f.rate), append(wal, f.wal)
			updates, inserts = append(updates, f.rate/update[i].rate), append(inserts, f.rate/insert[i].rate)
			server, client = append(server, f.server), append(client, f.client)
			servers = append(servers, f.server/update[i].server)
		}
		fmt.Fprintf(t, "%s\t%.0f\t%.2f\t%.2f\t%.2f\t%.2f\t%.0f\t%.2f\t%.0f\t%.0f\t\n", k, median(rates), median(updates), slices.Min(updates), slices.Max(updates),
			median(inserts), median(server), median(servers), median(client), median(wal))
	}
	return t.Flush()
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
