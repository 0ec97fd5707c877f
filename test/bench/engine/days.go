package main

import (
	"context"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/onceguard/onceguard/pkg/kube"
)

// few is how many CronJobs have a Job that does not start.
const few = 200

// stuck is for how long.
const stuck = 10 * time.Minute

// days goes on after the start.
func (l *led) days(ctx context.Context, st start) (d days, err error) {
	d.Start = st
	measure := func(to *cost, do func() error) {
		if err != nil {
			return
		}
		var before cost
		if before, err = l.cost(ctx); err != nil {
			return
		}
		if err = do(); err == nil {
			*to, err = l.since(ctx, before)
		}
	}
	all := int64(l.CronJobs)
	looked := func(more int64) error { return l.settle(ctx, l.Counters.Looks.Load()+more) }
	// upTo has the clock go on in steps, to see each look that is asked for.
	upTo := func(from time.Time, after time.Duration) error {
		for t := from; !t.After(from.Add(after)); t = t.Add(30 * time.Second) {
			l.move(t)
			if err := looked(0); err != nil {
				return err
			}
		}
		return nil
	}
	hourBefore := func(n int) error {
		l.move(l.window(n).Add(-30 * time.Minute))
		return looked(all)
	}

	measure(&d.Quiet, func() error {
		select {
		case <-time.After(l.Quiet):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	measure(&d.Hour, func() error { return hourBefore(0) })

	// A window that was run, by the Job that came for it.
	measure(&d.Come, func() error { return l.jobsOf(ctx, 0, l.CronJobs) })
	if err == nil {
		err = l.ran(ctx, 0, 1)
	}
	measure(&d.Ran, func() error {
		l.move(l.window(0).Add(61 * time.Second))
		return looked(all)
	})

	// A window that no Job came for.
	if err == nil {
		err = hourBefore(1)
	}
	measure(&d.Missed, func() error { return upTo(l.window(1).Add(61*time.Second), deadline+2*time.Minute) })
	if err == nil {
		d.Gaps, err = l.gaps(ctx)
	}

	// A window whose Job does not start.
	d.Late = min(few, l.CronJobs)
	if err == nil {
		err = hourBefore(2)
	}
	if err == nil {
		err = l.ran(ctx, 2, 3)
	}
	if err == nil {
		err = l.ownerDo(ctx, `DELETE FROM onceguard.job_execution WHERE window_start = $1 AND job_name IN (
			SELECT format('bench-%s/nightly-order-sync-%s', i % $2, lpad(i::text, 5, '0')) FROM generate_series(0, $3 - 1) i)`, l.window(2), namespaces, d.Late)
	}
	if err == nil {
		err = l.jobsOf(ctx, 2, d.Late)
	}
	if err == nil {
		l.move(l.window(2).Add(61 * time.Second))
		err = looked(all)
	}
	d.Minutes = int(stuck / time.Minute)
	measure(&d.Stuck, func() error { return upTo(l.window(2).Add(90*time.Second), stuck) })
	d.End = l.now()
	return d, err
}

// jobsOf has another process make the Jobs of a window, for the first CronJobs.
func (l *led) jobsOf(ctx context.Context, window, cronJobs int) error {
	q := *l.scene
	q.Window, q.First = window, cronJobs
	var none struct{}
	return q.ask(ctx, &none, partFill, namespaces, os.Stderr)
}

// fill makes the Jobs of a window.
func (s *scene) fill(ctx context.Context) error {
	clients, err := kube.Connect(s.Kubeconfig, "onceguard-bench")
	if err != nil {
		return err
	}
	f := &filler{scene: s, clients: clients, progress: os.Stderr}
	for i := range s.First {
		c, err := clients.Typed.BatchV1().CronJobs(namespace(i)).Get(ctx, name(i), metav1.GetOptions{})
		if err != nil {
			return err
		}
		f.uids = append(f.uids, c.UID)
	}
	f.CronJobs = s.First
	return f.jobs(ctx, s.Window, s.Window+1)
}
