package main

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	namespaces = 4 // each holds as many CronJobs
	day        = 24 * time.Hour
	login      = "engine"
	ledgerName = "default"
	// deadline is startingDeadlineSeconds of each CronJob: a window without a Job is closed
	// when it has passed.
	deadline = 5 * time.Minute
)

// scene is what is measured, and what a measuring process must know of it.
type scene struct {
	Kubeconfig     string
	Owner          string // URL of the ledger's owner
	Ledgers        string // engine.Ledgers
	Postmaster     int    // the server's first process
	API            []int  // the processes of the API server and its etcd
	CronJobs, Jobs int    // in all; of each CronJob
	Schedule       string // daily, the same for all: the worst case
	Next           time.Time
	Quiet          time.Duration

	Part string    // what to measure
	Of   int       // in how many of the namespaces
	Now  time.Time // the engine's clock at the start

	Window, First int // of partFill: the window, and how many CronJobs
}

// window is the n-th due window from Next on; negative: before.
func (s *scene) window(n int) time.Time { return s.Next.Add(time.Duration(n) * day) }

// since is when guarding began: before the first of the Jobs' windows.
func (s *scene) since() time.Time { return s.window(-s.Jobs).Add(-time.Hour) }

func namespace(cronJob int) string { return fmt.Sprintf("bench-%d", cronJob%namespaces) }

func name(cronJob int) string { return fmt.Sprintf("nightly-order-sync-%05d", cronJob) }

func jobName(cronJob int) string { return namespace(cronJob) + "/" + name(cronJob) }

// ownerDo runs statements as the ledger's owner.
func (s *scene) ownerDo(ctx context.Context, sql string, args ...any) error {
	owner, err := pgx.Connect(ctx, s.Owner)
	if err != nil {
		return err
	}
	defer owner.Close(ctx)
	_, err = owner.Exec(ctx, sql, args...)
	return err
}

// unjudged has the ledger forget that there was an engine.
func (s *scene) unjudged(ctx context.Context) error {
	return s.ownerDo(ctx, "TRUNCATE onceguard.job_schedule, onceguard.job_gap, onceguard.job_plan")
}

// gaps is how many windows the ledger has as missed.
func (s *scene) gaps(ctx context.Context) (n int64, err error) {
	owner, err := pgx.Connect(ctx, s.Owner)
	if err != nil {
		return 0, err
	}
	defer owner.Close(ctx)
	err = owner.QueryRow(ctx, "SELECT coalesce(sum(windows), 0)::bigint FROM onceguard.job_gap WHERE status = 'missed'").Scan(&n)
	return n, err
}

// as is the superuser's URL with the engine's login, which has the same password.
func as(superuser string) (string, error) {
	u, err := url.Parse(superuser)
	if err != nil {
		return "", fmt.Errorf("the server's URL: %w", err)
	}
	password, _ := u.User.Password()
	u.User = url.UserPassword(login, password)
	return u.String(), nil
}
