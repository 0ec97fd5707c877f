package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// results are what all of it gave.
type results struct {
	*scene
	typed, metadata memory
	bare            start    // without Jobs
	starts          [3]start // of a quarter, half, all
	again           start    // of all, once more
	days            days
}

func (r *results) print(w io.Writer) error {
	jobs := r.CronJobs * r.Jobs
	fmt.Fprintf(w, "%d CronJobs, %d Jobs\n\n", r.CronJobs, jobs)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "memory\tMB alive\tbytes a Job\t× typed\tMB resident at most\tCPU s\t")
	typed := float64(r.typed.Heap)
	whole := r.starts[2].Memory
	line := func(what string, m memory, heap int64) {
		fmt.Fprintf(t, "%s\t%.1f\t%.0f\t%.3f\t%.0f\t%.1f\t\n", what, mega(heap), float64(heap)/float64(jobs), float64(heap)/typed, mega(m.Peak), m.Own.Seconds())
	}
	line("typed informer of Jobs", r.typed, r.typed.Heap)
	line("metadata informer of Jobs", r.metadata, r.metadata.Heap)
	line("engine, all of it", whole, whole.Heap)
	line("engine without Jobs", r.bare.Memory, r.bare.Memory.Heap)
	fmt.Fprintf(t, "its Jobs: the difference\t%.1f\t%.0f\t%.3f\t\t\t\n", mega(whole.Heap-r.bare.Memory.Heap),
		float64(whole.Heap-r.bare.Memory.Heap)/float64(jobs), float64(whole.Heap-r.bare.Memory.Heap)/typed)
	err := t.Flush()

	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "start\tCronJobs\tlists and watches\tother requests\tstatements\ta hundred CronJobs\tCPU ms a CronJob\tof Postgres\tof the API server\tseconds\trequests in all\t")
	begin := func(what string, n int, c cost) {
		lists := c.of("list cronjobs", "list jobs", "watch cronjobs", "watch jobs")
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%.2f\t%.3f\t%.3f\t%.3f\t%.1f\t%s\t\n", what, n, lists, c.of()-lists, c.Statements, 100*float64(c.Statements)/float64(n),
			milli(c.Own, n), milli(c.Server, n), milli(c.API, n), (c.Took - calm).Seconds(), c.text())
	}
	for i, share := range []int{4, 2, 1} {
		begin([]string{"a quarter", "half", "all"}[i], r.CronJobs/share, r.starts[i].Cost)
	}
	begin("all, known to the ledger", r.CronJobs, r.again.Cost)
	err = errors.Join(err, t.Flush())

	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "what happens\tof\trequests\tfor each\tstatements\tfor each\tCPU ms for each\tof Postgres\tof the API server\tseconds\trequests in all\t")
	happens := func(what string, n int, c cost) {
		each := float64(n)
		fmt.Fprintf(t, "%s\t%d\t%d\t%.3f\t%d\t%.4f\t%.3f\t%.3f\t%.3f\t%.0f\t%s\t\n", what, n, c.of(), float64(c.of())/each, c.Statements, float64(c.Statements)/each,
			milli(c.Own, n), milli(c.Server, n), milli(c.API, n), c.Took.Seconds(), c.text())
	}
	d := r.days
	happens("a second of nothing", int(r.Quiet/time.Second), d.Quiet)
	happens("the hourly word, each CronJob", r.CronJobs, d.Hour)
	happens("a Job comes, each", r.CronJobs, d.Come)
	happens("a window that was run", r.CronJobs, d.Ran)
	happens("a window without a Job, late to missed", r.CronJobs, d.Missed)
	happens("a minute of a Job that does not start", d.Late*d.Minutes, d.Stuck)
	err = errors.Join(err, t.Flush())
	if d.Gaps != int64(r.CronJobs) {
		err = errors.Join(err, fmt.Errorf("%d windows are recorded as missed, want %d", d.Gaps, r.CronJobs))
	}
	return err
}

func mega(n int64) float64 { return float64(n) / 1e6 }

func milli(d time.Duration, n int) float64 { return float64(d.Microseconds()) / 1e3 / float64(n) }
