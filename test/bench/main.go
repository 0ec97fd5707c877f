// Command bench measures the ledger against pgbench's simple-update (-N) on a private
// Postgres of its own, with fsync on. Rounds are interleaved, so that a machine that
// gets slower gets slower for all; only the ratios mean something.
//
//	bench [-rounds 5] [-seconds 5] [-clients 8]
//
// What is measured, each by as many clients, each client on a connection that is kept:
//
//	claim      one won claim of a new window (Ledger.Claim), one round trip
//	refused    a claim of a completed window: a duplicate, or a poll
//	heartbeat  one renewal (Ledger.Heartbeat)
//	run        a whole run: claim, then BEGIN, begin, one business INSERT, complete, and
//	           in a second round trip COMMIT
//
// WAL is bytes for each operation, by pg_current_wal_insert_lsn.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/pkg/window"
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
	server  *postgres.Server
	url     string
	admin   *pgx.Conn
	clients int
	span    time.Duration
	windows atomic.Int64 // each claim of a new window takes the next
	done    window.Window
}

// figure is what one round of one kind gave.
type figure struct {
	rate float64 // operations a second
	wal  float64 // bytes for each operation
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

	kinds := []string{"pgbench -N", "claim", "refused", "heartbeat", "run"}
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
	return report(stdout, kinds, figures)
}

// prepare starts the server and makes pgbench's tables and ours.
func (b *bench) prepare(ctx context.Context) (err error) {
	if b.server, err = postgres.Start(ctx, postgres.Options{Settings: map[string]string{
		"shared_buffers": "256MB", "max_wal_size": "4GB", "checkpoint_timeout": "30min",
	}}); err != nil {
		return err
	}
	b.url = b.server.SocketURL("postgres")
	if _, _, err := migrate.Up(ctx, b.url, zap.NewNop()); err != nil {
		return err
	}
	if _, err := b.pgbench(ctx, "-i", "-q", "-s", "10"); err != nil {
		return err
	}
	if b.admin, err = pgx.Connect(ctx, b.url); err != nil {
		return err
	}
	if _, err := b.admin.Exec(ctx, "CREATE TABLE booking (id bigint PRIMARY KEY, units int NOT NULL)"); err != nil {
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

func (b *bench) measure(ctx context.Context, kind string) (figure, error) {
	var before, after string
	if err := b.admin.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&before); err != nil {
		return figure{}, err
	}
	var f figure
	var n int64
	var err error
	if kind == "pgbench -N" {
		f.rate, n, err = b.simpleUpdate(ctx)
	} else {
		f.rate, n, err = b.ours(ctx, kind)
	}
	if err != nil {
		return figure{}, err
	}
	var wal int64
	err = b.admin.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text, (pg_current_wal_insert_lsn() - $1::pg_lsn)::bigint", before).Scan(&after, &wal)
	f.wal = float64(wal) / float64(max(n, 1))
	return f, err
}

var (
	tps       = regexp.MustCompile(`tps = ([0-9.]+)`)
	processed = regexp.MustCompile(`transactions actually processed: ([0-9]+)`)
)

func (b *bench) simpleUpdate(ctx context.Context) (rate float64, n int64, err error) {
	out, err := b.pgbench(ctx, "-N", "-n", "-M", "prepared", "-c", strconv.Itoa(b.clients), "-j", "2", "-T", strconv.Itoa(int(b.span.Seconds())))
	if err != nil {
		return 0, 0, err
	}
	m, p := tps.FindSubmatch(out), processed.FindSubmatch(out)
	if m == nil || p == nil {
		return 0, 0, fmt.Errorf("cannot read pgbench's report:\n%s", out)
	}
	rate, err1 := strconv.ParseFloat(string(m[1]), 64)
	n, err2 := strconv.ParseInt(string(p[1]), 10, 64)
	return rate, n, errors.Join(err1, err2)
}

func (b *bench) pgbench(ctx context.Context, args ...string) ([]byte, error) {
	bin, err := postgres.Binaries()
	if err != nil {
		return nil, err
	}
	cfg, err := pgx.ParseConfig(b.url)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "pgbench"), args...)
	cmd.Env = append(os.Environ(), "PGHOST="+cfg.Host, "PGPORT="+strconv.Itoa(int(cfg.Port)), "PGUSER="+cfg.User,
		"PGPASSWORD="+cfg.Password, "PGDATABASE="+cfg.Database)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("pgbench: %w\n%s", err, out)
	}
	return out, nil
}

// ours runs one of our kinds by all clients for the span.
func (b *bench) ours(ctx context.Context, kind string) (rate float64, n int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	operations := make([]func() error, b.clients)
	for i := range operations {
		l := b.ledger()
		defer l.Close(context.WithoutCancel(ctx))
		if operations[i], err = b.operation(ctx, kind, l, i); err != nil {
			return 0, 0, err
		}
	}
	var count atomic.Int64
	var g sync.WaitGroup
	start := time.Now()
	for _, do := range operations {
		g.Go(func() {
			for time.Since(start) < b.span && ctx.Err() == nil {
				if err := do(); err != nil {
					cancel(err)
					return
				}
				count.Add(1)
			}
		})
	}
	g.Wait()
	took := time.Since(start)
	return float64(count.Load()) / took.Seconds(), count.Load(), context.Cause(ctx)
}

// operation prepares one client and gives what it repeats.
func (b *bench) operation(ctx context.Context, kind string, l *ledger.Ledger, client int) (func() error, error) {
	origin := claim.Origin{
		Trigger: "scheduled", Source: "timestamp", Namespace: "shop", Job: "order-sync-29410000",
		JobUID: uuid.NewString(), Pod: "order-sync-29410000-x7k2p", PodUID: uuid.NewString(), Node: "node-1",
		WindowEnd: time.Unix(60, 0), Schedule: "* * * * *", TimeZone: "Etc/UTC",
	}
	// A job of its own for each client, as at the top of the hour.
	next := func() claim.Request {
		w := window.Window{JobName: "bench/job-" + strconv.Itoa(client), Start: time.Unix(b.windows.Add(1)*60, 0)}
		return claim.Request{Attempt: claim.Attempt{Window: w, ExecutionID: uuid.New()}, Lease: 30 * time.Second, Origin: origin}
	}
	won := func(r claim.Request) error {
		got, err := l.Claim(ctx, r)
		if err == nil && got.Verdict != claim.Run {
			err = fmt.Errorf("claim of %s: %s, %s", r.Window, got.Verdict, got.Reason)
		}
		return err
	}
	switch kind {
	case "claim":
		return func() error { return won(next()) }, l.CheckSchema(ctx)
	case "refused":
		return func() error {
			r := next()
			r.Window = b.done
			got, err := l.Claim(ctx, r)
			if err == nil && got.Verdict != claim.Skip {
				err = fmt.Errorf("claim of a completed window: %s", got.Verdict)
			}
			return err
		}, l.CheckSchema(ctx)
	case "heartbeat":
		r := next()
		return func() error {
			beat, err := l.Heartbeat(ctx, r.Attempt, r.Lease)
			if err == nil && beat != claim.BeatOK {
				err = fmt.Errorf("heartbeat: %s", beat)
			}
			return err
		}, won(r)
	default:
		conn, err := l.Connect(ctx)
		if err != nil {
			return nil, err
		}
		return func() error {
			r := next()
			if err := won(r); err != nil {
				return err
			}
			return commit(ctx, conn, r.Attempt)
		}, l.CheckSchema(ctx)
	}
}

// commit is the business transaction in two round trips.
func commit(ctx context.Context, conn *ledger.Conn, a claim.Attempt) error {
	var b pgconn.Batch
	b.ExecParams(ledger.Isolation, nil, nil, nil, nil)
	b.ExecParams(ledger.BeginSQL, ledger.BeginArgs(a), nil, nil, nil)
	b.ExecParams("INSERT INTO booking VALUES ($1, $2)", [][]byte{strconv.AppendInt(nil, a.Window.Start.Unix(), 10), []byte("10")}, nil, nil, nil)
	b.ExecParams(ledger.CompleteSQL, ledger.CompleteArgs(a, claim.Completion{RequestDigest: "d"}), nil, nil, nil)
	if _, err := conn.ExecBatch(ctx, &b).ReadAll(); err != nil {
		return ledger.Translate(err)
	}
	_, err := conn.Exec(ctx, "COMMIT").ReadAll()
	return ledger.Translate(err)
}

// report prints the median of each kind and the median of its ratios, round by round,
// to pgbench.
func report(w io.Writer, kinds []string, figures map[string][]figure) error {
	base := figures[kinds[0]]
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tper second\tratio\tleast\tmost\tWAL bytes\t")
	for _, k := range kinds {
		var rates, ratios, wal []float64
		for i, f := range figures[k] {
			rates, wal = append(rates, f.rate), append(wal, f.wal)
			ratios = append(ratios, f.rate/base[i].rate)
		}
		fmt.Fprintf(t, "%s\t%.0f\t%.2f\t%.2f\t%.2f\t%.0f\t\n", k, median(rates), median(ratios), slices.Min(ratios), slices.Max(ratios), median(wal))
	}
	return t.Flush()
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
