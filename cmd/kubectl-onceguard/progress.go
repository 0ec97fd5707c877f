package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/onceguard/onceguard/pkg/audit"
)

const (
	// pollEvery is how often it is looked how far a backfill has come.
	pollEvery = time.Second
	// sayEvery is how often that is printed at most where the output is no terminal.
	sayEvery = 10 * time.Second
	// stalledAfter is after how long without a change it is asked whether the engine still looks.
	stalledAfter = time.Minute
	// maxUnfinished is how many windows are named that have ended without being done.
	maxUnfinished = 5
)

// tally is how far a backfill has come, in windows.
type tally struct {
	all, done, planned, running, failed, other int
}

// count adds one window, and reports whether nothing more will become of it.
func (t *tally) count(x audit.Standing) (closed bool) {
	switch {
	case x.State == audit.Running:
		t.running++
		return false
	case x.Planned && x.State == audit.Failed && x.Made > 0, x.Planned && x.State == audit.LeaseEnded:
		t.failed++ // and will be tried again
		return false
	case x.Planned:
		t.planned++
		return false
	case x.State == audit.Done:
		t.done++
	case x.State == audit.Failed, x.State == audit.LeaseEnded, x.State == audit.Held, x.State == audit.Exhausted:
		t.failed++
	default:
		t.other++
	}
	return true
}

func (t tally) String() string {
	s := fmt.Sprintf("%d of %d done, %d running, %d planned, %d failed", t.done, t.all, t.running, t.planned, t.failed)
	if t.other > 0 {
		s += fmt.Sprintf(", %d not run", t.other)
	}
	return s
}

// follow shows how far the windows have come until nothing is left to come.
func (p *program) follow(ctx context.Context, b backfill, s stretch) error {
	if b.detach {
		fmt.Fprintf(p.stdout, "The windows engine makes their Jobs. How far it is: kubectl onceguard gaps %s, or the same command again.\n", s.job)
		return nil
	}
	show := progress{out: p.stdout, terminal: isTerminal(p.stdout)}
	w := watcher{p: p, job: s.job, open: s.windows}
	defer w.close(ctx)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		t, err := w.look(ctx)
		switch {
		case ctx.Err() != nil:
			show.end()
			return errors.New("interrupted: the backfill goes on without this command; the same command shows it again, and with --cancel it takes back what has not begun")
		case err != nil:
			show.end()
			return fmt.Errorf("the backfill goes on, but how far it is cannot be read: %w", err)
		}
		show.say(t, len(w.open) == 0)
		if note := w.stalled(ctx, t, s); note != "" {
			show.end()
			fmt.Fprint(p.stderr, folded("Note: ", note))
		}
		if len(w.open) == 0 {
			return w.result(t)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// watcher reads how far windows have come; of those that are closed it asks no more.
type watcher struct {
	p      *program
	job    string
	open   []time.Time
	closed tally
	ended  []audit.Standing // those that are closed and not done, at most maxUnfinished
	conn   *connection

	last    tally
	changed time.Time // when last came to be; zero once its note was given
}

func (w *watcher) close(ctx context.Context) {
	if w.conn != nil {
		w.conn.close(ctx)
		w.conn = nil
	}
}

// look gives how far it is. A connection that breaks is made again, for as long as --timeout.
func (w *watcher) look(ctx context.Context) (tally, error) {
	ctx, cancel := context.WithTimeout(ctx, w.p.timeout)
	defer cancel()
	for {
		t, err := w.once(ctx)
		if err == nil || errors.Is(err, audit.ErrForbidden) || errors.Is(err, audit.ErrNoSchema) {
			return t, err
		}
		w.close(ctx)
		select {
		case <-ctx.Done():
			return t, err
		case <-time.After(pollEvery):
		}
	}
}

func (w *watcher) once(ctx context.Context) (tally, error) {
	if w.conn == nil {
		conn, err := w.p.connect(ctx)
		if err != nil {
			return tally{}, err
		}
		w.conn = conn
	}
	found, err := audit.Standings(ctx, w.conn, w.job, w.open)
	if err != nil {
		return tally{}, w.conn.explain(err)
	}
	t := w.closed
	var open []time.Time
	for _, x := range found {
		if !t.count(x) {
			open = append(open, x.WindowStart)
			continue
		}
		w.closed.count(x)
		if x.State != audit.Done && len(w.ended) < maxUnfinished {
			w.ended = append(w.ended, x)
		}
	}
	w.open = open
	t.all = t.done + t.running + t.planned + t.failed + t.other
	return t, nil
}

// stalled says, once, why nothing has come of it for long: the engine does not look, or the
// CronJob is suspended, or what its note says.
func (w *watcher) stalled(ctx context.Context, t tally, s stretch) string {
	now := w.p.now()
	if t != w.last {
		w.last, w.changed = t, now
	}
	if w.changed.IsZero() || now.Sub(w.changed) < stalledAfter {
		return ""
	}
	w.changed = now // asked again in another while
	ctx, cancel := context.WithTimeout(ctx, w.p.timeout)
	defer cancel()
	all, err := schedulesOf(ctx, w.conn, w.job)
	if err != nil {
		return "" // the next look says why
	}
	for _, x := range all {
		if note := cmp.Or(notLooked(x, now), suspended(x), x.Note); x.CronJobUID == s.cronJob.CronJobUID && note != "" {
			w.changed = time.Time{}
			return fmt.Sprintf("CronJob %s: %s", x.CronJob, note)
		}
	}
	return ""
}

// result is an error when not all windows are done.
func (w *watcher) result(t tally) error {
	if t.done == t.all {
		return nil
	}
	var names []string
	for _, x := range w.ended {
		state := string(x.State)
		if state == "" {
			state = "not run"
		}
		names = append(names, fmt.Sprintf("%s (%s)", instant(&x.WindowStart), state))
	}
	more := ""
	if n := t.all - t.done - len(names); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("%s of %s came to an end without being done: %s%s; kubectl onceguard explain %s WINDOW says why", plural(t.all-t.done, "window"), w.job, strings.Join(names, ", "), more, w.job)
}

// progress prints a tally in one line: over the former on a terminal, else below it.
type progress struct {
	out      io.Writer
	terminal bool
	last     string
	said     time.Time
}

func (g *progress) say(t tally, end bool) {
	text := t.String()
	switch {
	case g.terminal:
		if text != g.last {
			fmt.Fprintf(g.out, "\r\x1b[K%s", text)
		}
	case text != g.last && (end || time.Since(g.said) >= sayEvery):
		fmt.Fprintln(g.out, text)
		g.said = time.Now()
	default:
		return
	}
	if g.last = text; end {
		g.end()
	}
}

// end leaves the line.
func (g *progress) end() {
	if g.terminal && g.last != "" {
		fmt.Fprintln(g.out)
		g.last = ""
	}
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// confirm asks a person at a terminal.
func (p *program) confirm(ctx context.Context, question string) error {
	if !isTerminal(p.stdin) {
		return usagef("%s? More than %d need --yes", question, unasked)
	}
	fmt.Fprintf(p.stderr, "%s? [y/N] ", question)
	answer := make(chan string, 1)
	go func() { // ends with the program when nobody answers
		text, _ := bufio.NewReader(io.LimitReader(p.stdin, 100)).ReadString('\n')
		answer <- text
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(p.stderr)
		return fmt.Errorf("nothing is changed: %w", ctx.Err())
	case text := <-answer:
		if text = strings.ToLower(strings.TrimSpace(text)); text != "y" && text != "yes" {
			return errors.New("nothing is changed: not confirmed")
		}
	}
	return nil
}
