// Command engine measures what the windows engine costs: memory beside client-go's
// informers on the same API server, and API requests, SQL statements and CPU for a start, for
// windows that were run and for windows that were not, and for doing nothing.
//
//	test/bench/engine.sh [-cronjobs 10000] [-jobs 10] [-quiet 60]
//
// KUBECONFIG names an API server of its own: no controller should run beside it, and
// everything is left there. The Postgres is private. Each reader of the cluster is a process
// of its own. The engine's clock is moved, so that days pass within minutes.
//
// The Jobs are as the CronJob controller makes them, without a status: whole ones that have
// ended are larger, so the ratios to informers are those of the worst case.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/kube"
	"github.com/onceguard/onceguard/pkg/migrate"
	"github.com/onceguard/onceguard/test/bench/cpu"
	"github.com/onceguard/onceguard/test/postgres"
)

func main() {
	ctx := context.Background()
	var err error
	if text, ok := os.LookupEnv(asked); ok {
		err = answer(ctx, []byte(text), os.Stdout)
	} else {
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/engine:", err)
		os.Exit(1)
	}
}

// asked is the variable by which a process learns that it is to measure one thing.
const asked = "ONCEGUARD_BENCH_ENGINE"

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	fs := flag.NewFlagSet("engine", flag.ContinueOnError)
	fs.SetOutput(stderr)
	cronJobs := fs.Int("cronjobs", 10_000, "guarded CronJobs, a multiple of 4")
	jobs := fs.Int("jobs", 10, "Jobs of each CronJob")
	quiet := fs.Int("quiet", 60, "seconds of doing nothing")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *cronJobs < namespaces || *cronJobs%namespaces != 0 || *jobs < 1 || *quiet < 1 {
		return fmt.Errorf("-cronjobs must be a multiple of %d, -jobs and -quiet 1 or more", namespaces)
	}
	kubeconfig := os.Getenv("KUBECONFIG")
	if kubeconfig == "" {
		return errors.New("KUBECONFIG is not set: run this through test/bench/engine.sh")
	}
	// Days in the past, as the engine goes by the ledger's clock where its own is ahead; due
	// half a day from now, so that no controller that may run after all makes a Job.
	due := time.Now().UTC().Add(-4*day + day/2).Truncate(time.Minute)
	s := &scene{
		Kubeconfig: kubeconfig, CronJobs: *cronJobs, Jobs: *jobs, Quiet: time.Duration(*quiet) * time.Second,
		Next: due, Now: due.Add(-day / 2), Schedule: fmt.Sprintf("%d %d * * *", due.Minute(), due.Hour()),
	}
	for _, c := range []string{"etcd", "kube-apiserver"} {
		s.API = append(s.API, cpu.Find("ONCEGUARD_TEST_BED="+os.Getenv("ONCEGUARD_TEST_CLUSTER")+"/"+c)...)
	}
	server, err := s.prepareLedger(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop(context.WithoutCancel(ctx), postgres.Immediate)) }()
	return s.measure(ctx, stdout, stderr)
}

// measure fills the cluster and has each thing measured by a process of its own.
func (s *scene) measure(ctx context.Context, stdout, stderr io.Writer) error {
	clients, err := kube.Connect(s.Kubeconfig, "onceguard-bench")
	if err != nil {
		return err
	}
	f := &filler{scene: s, clients: clients, progress: stderr}
	if err := f.cronJobs(ctx); err != nil {
		return err
	}
	if err := f.ran(ctx, -s.Jobs, 0); err != nil {
		return err
	}
	r := &results{scene: s}
	ask := func(to any, what string, namespaces int) error {
		fmt.Fprintln(stderr, "measuring:", what, namespaces)
		return s.ask(ctx, to, what, namespaces, stderr)
	}
	// The engine without Jobs: what remains of its memory is theirs.
	if err := ask(&r.bare, partStart, namespaces); err != nil {
		return err
	}
	if err := f.jobs(ctx, -s.Jobs, 0); err != nil {
		return err
	}
	f.forget()
	for _, p := range []struct {
		what string
		to   *memory
	}{{partTyped, &r.typed}, {partMetadata, &r.metadata}} {
		if err := ask(p.to, p.what, namespaces); err != nil {
			return err
		}
	}
	for i, n := range []int{namespaces / 4, namespaces / 2} {
		if err := s.unjudged(ctx); err != nil {
			return err
		}
		if err := ask(&r.starts[i], partStart, n); err != nil {
			return err
		}
	}
	if err := s.unjudged(ctx); err != nil {
		return err
	}
	if err := ask(&r.days, partDays, namespaces); err != nil {
		return err
	}
	r.starts[2] = r.days.Start
	s.Now = r.days.End
	if err := ask(&r.again, partStart, namespaces); err != nil {
		return err
	}
	return r.print(stdout)
}

// ask has a process of its own measure one thing.
func (s *scene) ask(ctx context.Context, to any, what string, of int, stderr io.Writer) error {
	q := *s
	q.Part, q.Of = what, of
	text, err := json.Marshal(q)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), asked+"="+string(text)) // not an argument: it holds a password
	cmd.Stdout, cmd.Stderr = &out, stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return json.Unmarshal(out.Bytes(), to)
}

// prepareLedger starts a server that counts statements, with a ledger and the engine's login.
func (s *scene) prepareLedger(ctx context.Context) (server *postgres.Server, err error) {
	server, err = postgres.Start(ctx, postgres.Options{Settings: map[string]string{
		"shared_buffers": "256MB", "max_wal_size": "4GB", "checkpoint_timeout": "30min",
		"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "top",
	}})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, server.Stop(context.WithoutCancel(ctx), postgres.Immediate))
		}
	}()
	s.Owner = server.SocketURL("postgres")
	if _, _, err := migrate.Up(ctx, s.Owner, zap.NewNop()); err != nil {
		return nil, err
	}
	owner, err := pgx.Connect(ctx, s.Owner)
	if err != nil {
		return nil, err
	}
	defer owner.Close(ctx)
	for _, q := range []string{
		"CREATE EXTENSION pg_stat_statements",
		"CREATE ROLE " + login + " LOGIN PASSWORD '" + owner.Config().Password + "'",
	} {
		if _, err := owner.Exec(ctx, q); err != nil {
			return nil, err
		}
	}
	if err := migrate.GrantEngine(ctx, s.Owner, login); err != nil {
		return nil, err
	}
	if err := owner.QueryRow(ctx, "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int").Scan(&s.Postmaster); err != nil {
		return nil, err
	}
	s.Ledgers = filepath.Join(filepath.Dir(server.Log()), "ledgers") // goes with the server
	dir := filepath.Join(s.Ledgers, ledgerName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	url, err := as(server.URL("postgres"))
	if err != nil {
		return nil, err
	}
	return server, os.WriteFile(filepath.Join(dir, contract.LedgerKey), []byte(url), 0o600)
}
