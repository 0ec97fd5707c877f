package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceguard/onceguard/pkg/ledger"
	"github.com/onceguard/onceguard/test/postgres"
)

const (
	origin = `{"trigger":"scheduled","source":"timestamp","namespace":"shop","job":"order-sync-29410000","jobUID":"5f0f7d57-4c0c-4f3b-8d1a-2f1f5e9b9a01",` +
		`"pod":"order-sync-29410000-x7k2p","podUID":"5f0f7d57-4c0c-4f3b-8d1a-2f1f5e9b9a02","node":"node-1","windowEnd":"1970-01-01T00:01:00Z","schedule":"* * * * *","timeZone":"Etc/UTC"}`
	claimed = ", '30 s', '" + origin + "', 'allow', false);\n"
	own     = "('bench/script-' || :client_id, to_timestamp(:n * 60), (:x)::uuid"
	next    = "SELECT nextval('script_window') AS n, gen_random_uuid() AS x \\gset\n"
)

// scripts are what pgbench runs; without text it runs its own simple-update. A window's
// number comes from a sequence, in a statement of its own where it is needed twice.
var scripts = map[string]string{
	"pgbench -N": "",
	"bare INSERT": "INSERT INTO bare (job_name, window_start, execution_id) VALUES ('bench/script-' || :client_id, to_timestamp(nextval('script_window') * 60), gen_random_uuid()) " +
		"ON CONFLICT DO NOTHING RETURNING token;\n",
	"SKIP LOCKED": "UPDATE queue SET taken_by = gen_random_uuid(), taken_at = clock_timestamp() " +
		"WHERE id = (SELECT id FROM queue WHERE taken_by IS NULL ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id;\n",
	"claim in SQL":     "SELECT * FROM onceguard.claim('bench/script-' || :client_id, to_timestamp(nextval('script_window') * 60), gen_random_uuid()" + claimed,
	"refused in SQL":   "SELECT * FROM onceguard.claim('bench/done', to_timestamp(0), gen_random_uuid()" + claimed,
	"heartbeat in SQL": "SELECT onceguard.heartbeat('bench/beat-' || :client_id, to_timestamp(0), '00000000-0000-0000-0000-000000000001', '30 s');\n",
	"run in SQL": next + "SELECT * FROM onceguard.claim" + own + claimed + ledger.Isolation + ";\n" +
		"SELECT onceguard.begin" + own + ");\nINSERT INTO booking VALUES (-(:n)::bigint, 10);\nSELECT onceguard.complete" + own + ", NULL, 'd');\nCOMMIT;\n",
}

// queued is how many rows a round of SKIP LOCKED finds; more than it can take.
const queued = 200_000

func (b *bench) prepareScripts(ctx context.Context) error {
	if _, err := b.pgbench(ctx, "-i", "-q", "-s", "10"); err != nil {
		return err
	}
	c, err := pgx.Connect(ctx, b.url)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(ctx) }()
	for _, q := range []string{
		"CREATE TABLE booking (id bigint PRIMARY KEY, units int NOT NULL)",
		`CREATE TABLE bare (job_name text COLLATE "C", window_start timestamptz, execution_id uuid NOT NULL, token bigint NOT NULL DEFAULT 1, PRIMARY KEY (job_name, window_start))`,
		"CREATE TABLE queue (id bigint PRIMARY KEY, taken_by uuid, taken_at timestamptz) WITH (fillfactor = 80)",
		"CREATE INDEX ON queue (id) WHERE taken_by IS NULL",
		"CREATE SEQUENCE script_window",
		"SELECT onceguard.claim('bench/beat-' || i, to_timestamp(0), '00000000-0000-0000-0000-000000000001', '1 day') FROM generate_series(0, " + strconv.Itoa(b.clients-1) + ") i",
	} {
		if _, err := c.Exec(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

var (
	tps       = regexp.MustCompile(`tps = ([0-9.]+)`)
	processed = regexp.MustCompile(`transactions actually processed: ([0-9]+)`)
	failed    = regexp.MustCompile(`number of failed transactions: ([0-9]+)`)
)

// fill gives SKIP LOCKED a new queue.
func (b *bench) fill(ctx context.Context) error {
	_, err := b.admin.Exec(ctx, "TRUNCATE queue")
	if err == nil {
		_, err = b.admin.Exec(ctx, "INSERT INTO queue SELECT generate_series(1, $1)", queued)
	}
	if err == nil {
		_, err = b.admin.Exec(ctx, "VACUUM ANALYZE queue")
	}
	return err
}

// script runs one of pgbench's kinds; cpu is pgbench's own.
func (b *bench) script(ctx context.Context, kind string) (rate float64, n int64, cpu time.Duration, err error) {
	args := []string{"-n", "-M", "prepared", "-c", strconv.Itoa(b.clients), "-j", "2", "-T", strconv.Itoa(int(b.span.Seconds()))}
	if text := scripts[kind]; text == "" {
		args = append(args, "-N")
	} else {
		name := filepath.Join(filepath.Dir(b.server.Log()), strings.ReplaceAll(kind, " ", "-")+".sql")
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return 0, 0, 0, err
		}
		args = append(args, "-f", name)
	}
	cmd, err := b.pgbench(ctx, args...)
	if err != nil {
		return 0, 0, 0, err
	}
	m, p, f := tps.FindSubmatch(cmd.out), processed.FindSubmatch(cmd.out), failed.FindSubmatch(cmd.out)
	if m == nil || p == nil || f == nil || string(f[1]) != "0" {
		return 0, 0, 0, fmt.Errorf("pgbench's report is not what was expected:\n%s", cmd.out)
	}
	rate, err1 := strconv.ParseFloat(string(m[1]), 64)
	n, err2 := strconv.ParseInt(string(p[1]), 10, 64)
	return rate, n, cmd.cpu, errors.Join(err1, err2)
}

// ran is what a program of pgbench left.
type ran struct {
	out []byte
	cpu time.Duration
}

func (b *bench) pgbench(ctx context.Context, args ...string) (ran, error) {
	bin, err := postgres.Binaries()
	if err != nil {
		return ran{}, err
	}
	cfg, err := pgx.ParseConfig(b.url)
	if err != nil {
		return ran{}, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "pgbench"), args...)
	cmd.Env = append(os.Environ(), "PGHOST="+cfg.Host, "PGPORT="+strconv.Itoa(int(cfg.Port)), "PGUSER="+cfg.User,
		"PGPASSWORD="+cfg.Password, "PGDATABASE="+cfg.Database)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return ran{}, fmt.Errorf("pgbench: %w\n%s", err, out)
	}
	return ran{out, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}, nil
}
