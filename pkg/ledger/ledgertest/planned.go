package ledgertest

import (
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/disposition"
	"github.com/onceguard/onceguard/pkg/ledger"
)

// Windows that are run later than when they were due, and those that nobody runs.

func plans(t *testing.T, s Subject, a claim.Attempt) {
	t.Helper()
	if err := s.Plan(a.Window); err != nil {
		t.Fatal(err)
	}
}

// judges records a gap from one window to another, by one CronJob of shop/a.
func judges(t *testing.T, s Subject, first, last claim.Attempt, status disposition.Status) {
	t.Helper()
	if err := s.Judge("shop/a", "one", first.Window.Start, last.Window.Start, status); err != nil {
		t.Fatal(err)
	}
}

// waitsFor asks under terms and is told to wait in order for another window.
func waitsFor(t *testing.T, s Subject, a claim.Attempt, terms claim.Terms, other claim.Attempt) {
	t.Helper()
	if got := under(t, s, a, terms, claim.Wait, claim.Order); got.Holder.Window != other.Window {
		t.Fatalf("it waits for %s, not for %s", got.Holder.Window, other.Window)
	}
}

// What is planned is wanted: neither its age nor what ran meanwhile closes it.
func testPlanned(t *testing.T, s Subject) {
	for name, terms := range map[string]claim.Terms{
		"late":              {StartDeadline: time.Second},
		"superseded":        {Serial: true},
		"overlap":           {Overlap: contract.OverlapSkip},
		"replaced":          {Overlap: contract.OverlapReplace},
		"a repeat":          {Repeats: fresh("").Window.Start.Add(-time.Hour)},
		"late, not started": {StartDeadline: time.Second},
	} {
		a := fresh("shop/" + name)
		a.Window.Start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		if !terms.Repeats.IsZero() {
			terms.Repeats = a.Window.Start.Add(-time.Hour)
		}
		plans(t, s, a)
		b := next(a, 1)
		asks(t, s, b, claim.Run, claim.First)
		if terms.Serial || terms.Overlap != "" {
			under(t, s, a, terms, claim.Wait, claim.Overlap)
		}
		completes(t, s, b, nil)
		want := claim.First
		if name == "late, not started" {
			asks(t, s, a, claim.Run, claim.First)
			releases(t, s, a, claim.OutcomeNotStarted, claim.OutcomeNotStarted)
			a, want = next(a, 0), claim.Retry
		}
		under(t, s, a, terms, claim.Run, want)
		completes(t, s, a, nil)
		asks(t, s, next(a, 0), claim.Skip, claim.AlreadyCompleted) // the plan says nothing any more
	}
	a := fresh("shop/cancelled")
	plans(t, s, a)
	if err := s.CancelWindow(a.Window); err != nil {
		t.Fatal(err)
	}
	asks(t, s, a, claim.Skip, claim.Cancelled)
	b := fresh("shop/a")
	b.Window.Start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	plans(t, s, b)
	if err := s.Unplan(b.Window); err != nil {
		t.Fatal(err)
	}
	separate := b
	separate.Window.JobName += "@u"
	plans(t, s, b)
	under(t, s, separate, claim.Terms{StartDeadline: time.Second}, claim.Skip, claim.Late)
	if err := s.Unplan(b.Window); err != nil {
		t.Fatal(err)
	}
	under(t, s, b, claim.Terms{StartDeadline: time.Second}, claim.Skip, claim.Late)
}

// A newer window may stop a planned one, which is then tried again.
func testReplacePlanned(t *testing.T, s Subject) {
	for name, ends := range map[string]func(a claim.Attempt){
		"it stops": func(a claim.Attempt) {
			beats(t, s, a, claim.BeatCancel)
			releases(t, s, a, claim.OutcomeStopped, claim.OutcomeStopped)
		},
		"it dies": func(a claim.Attempt) { s.Expire(a.Window) },
	} {
		a := fresh("shop/" + name)
		plans(t, s, a)
		asks(t, s, a, claim.Run, claim.First)
		b := next(a, 1)
		under(t, s, b, replace, claim.Wait, claim.Replacing)
		ends(a)
		under(t, s, b, replace, claim.Run, claim.First)
		a = next(a, 0)
		under(t, s, a, replace, claim.Wait, claim.Overlap)
		completes(t, s, b, nil)
		under(t, s, a, replace, claim.Run, claim.Retry)
	}
	a := fresh("shop/alone")
	plans(t, s, a)
	asks(t, s, a, claim.Run, claim.First)
	under(t, s, next(a, 1), replace, claim.Wait, claim.Replacing)
	s.Expire(a.Window)
	under(t, s, next(a, 0), replace, claim.Run, claim.Takeover)
}

// Order: a window waits for earlier ones that are planned, until each is closed.
func testOrderOfPlans(t *testing.T, s Subject) {
	a, b, c, d := fresh("shop/a"), next(fresh("shop/a"), 1), next(fresh("shop/a"), 2), next(fresh("shop/a"), 3)
	terms := claim.Terms{Serial: true, Since: a.Window.Start, Overlap: contract.OverlapWait}
	plans(t, s, next(a, -1)) // from before the beginning of order
	plans(t, s, a)
	plans(t, s, b)
	waitsFor(t, s, c, terms, b)
	waitsFor(t, s, b, terms, a)
	plans(t, s, c) // a planned one too
	waitsFor(t, s, c, terms, b)
	under(t, s, a, terms, claim.Run, claim.First)
	waitsFor(t, s, b, terms, a)
	completes(t, s, a, nil)
	asks(t, s, d, claim.Run, claim.First) // one that heeds no order
	under(t, s, b, terms, claim.Wait, claim.Overlap)
	completes(t, s, d, nil)
	waitsFor(t, s, c, terms, b)
	if err := s.CancelWindow(b.Window); err != nil {
		t.Fatal(err)
	}
	under(t, s, c, terms, claim.Run, claim.First)
	completes(t, s, c, nil)
	releases(t, s, c, claim.OutcomeCompleted, claim.OutcomeCompleted)
	releases(t, s, a, claim.OutcomeCompleted, claim.OutcomeCompleted)
	releases(t, s, d, claim.OutcomeCompleted, claim.OutcomeCompleted)
	e, f := next(d, 1), next(d, 2)
	plans(t, s, e)
	waitsFor(t, s, f, terms, e)
	// Below the watermark nothing comes any more; it does not pass what is to run.
	prunes := func(want claim.Attempt) {
		t.Helper()
		if came, err := s.Prune("shop/a", f.Window.Start); err != nil || !came.Equal(want.Window.Start) {
			t.Fatal(came, err)
		}
	}
	for _, stop := range []claim.Attempt{next(a, -1), e} {
		prunes(stop)
		if err := s.Unplan(stop.Window); err != nil {
			t.Fatal(err)
		}
	}
	prunes(f)
	plans(t, s, e)
	under(t, s, f, terms, claim.Run, claim.First)
}

// A plan is one for all indexes; each waits for the window of its own name.
func testOrderOfPlansWithIndexes(t *testing.T, s Subject) {
	plan := fresh("shop/a")
	plans(t, s, plan)
	zero, one := fresh("shop/a#0"), fresh("shop/a#1")
	waitsFor(t, s, next(zero, 1), serial, zero)
	under(t, s, zero, claim.Terms{Serial: true, StartDeadline: time.Second}, claim.Run, claim.First)
	completes(t, s, zero, nil)
	under(t, s, next(zero, 1), serial, claim.Run, claim.First)
	waitsFor(t, s, next(one, 1), serial, one)
	if err := s.Unplan(plan.Window); err != nil {
		t.Fatal(err)
	}
	under(t, s, next(one, 1), serial, claim.Run, claim.First)
}

// Order waits for a window that has no record while it may still come, and no longer.
func testOrderPassesGaps(t *testing.T, s Subject) {
	a, b, c, d := fresh("shop/a"), next(fresh("shop/a"), 1), next(fresh("shop/a"), 2), next(fresh("shop/a"), 3)
	terms := claim.Terms{Serial: true, Since: a.Window.Start, Previous: c.Window.Start}
	waitsFor(t, s, d, terms, c)
	judges(t, s, a, c, disposition.Late)
	waitsFor(t, s, d, terms, c)
	judges(t, s, c, c, disposition.Missed)
	if err := s.Judge("shop/b", "one", a.Window.Start, c.Window.Start, disposition.Late); err != nil { // of another job
		t.Fatal(err)
	}
	judges(t, s, b, b, disposition.Late) // which is before it, and may still come
	waitsFor(t, s, d, terms, b)
	judges(t, s, a, b, disposition.Late)
	waitsFor(t, s, d, terms, b)
	index := d
	index.Window.JobName += "#1" // which has no windows yet
	under(t, s, index, terms, claim.Run, claim.First)
	before := claim.Terms{Serial: true, Since: a.Window.Start, Previous: a.Window.Start}
	waitsFor(t, s, b, before, a)
	under(t, s, a, claim.Terms{Serial: true}, claim.Run, claim.First)
	completes(t, s, a, nil)
	under(t, s, b, before, claim.Run, claim.First)
	completes(t, s, b, nil)
	under(t, s, d, terms, claim.Run, claim.First) // the gap that says that b is late is outdated
	completes(t, s, d, nil)

	e, f, g := next(d, 1), next(d, 2), next(d, 3)
	terms = claim.Terms{Serial: true, Since: a.Window.Start, Previous: f.Window.Start}
	judges(t, s, e, e, disposition.Late)
	judges(t, s, f, f, disposition.Skipped)
	waitsFor(t, s, g, terms, e)
	terms.Since = f.Window.Start // order begins later
	under(t, s, g, terms, claim.Run, claim.First)
	completes(t, s, g, nil)

	// Of two CronJobs of one job either may say it.
	h, i := next(d, 10), next(d, 11)
	terms = claim.Terms{Serial: true, Since: h.Window.Start, Previous: h.Window.Start}
	judges(t, s, h, h, disposition.Late)
	waitsFor(t, s, i, terms, h)
	if err := s.Judge("shop/a", "two", a.Window.Start, h.Window.Start, disposition.Missed); err != nil {
		t.Fatal(err)
	}
	plans(t, s, h)
	waitsFor(t, s, i, terms, h) // and it is planned
	if err := s.Unplan(h.Window); err != nil {
		t.Fatal(err)
	}
	waitsFor(t, s, i, terms, h) // the range of the other may mean other windows
	leaves(t, s, false)
	under(t, s, i, terms, claim.Run, claim.First)
	completes(t, s, i, nil)

	// What is late of a CronJob that nobody looks at is not waited for, nor a plan that none
	// would run.
	j, k, l := next(i, 1), next(i, 2), next(i, 3)
	terms = claim.Terms{Serial: true, Since: j.Window.Start, Previous: k.Window.Start}
	judges(t, s, j, j, disposition.Late)
	judges(t, s, k, k, disposition.Missed)
	waitsFor(t, s, l, terms, j)
	leaves(t, s, false)
	plans(t, s, k)
	waitsFor(t, s, l, terms, k)
	leaves(t, s, true)
	under(t, s, l, terms, claim.Run, claim.First)
	completes(t, s, l, nil)

	// Left or gone, and late itself or before what never comes: it makes no difference.
	for n, gone := range []bool{false, true} {
		m, o, p := next(l, 10*n+10), next(l, 10*n+11), next(l, 10*n+12)
		terms = claim.Terms{Serial: true, Since: m.Window.Start, Previous: o.Window.Start}
		judges(t, s, m, m, disposition.Late)
		judges(t, s, o, o, disposition.Missed)
		waitsFor(t, s, p, terms, m)
		leaves(t, s, gone)
		under(t, s, p, terms, claim.Run, claim.First)
		completes(t, s, p, nil)

		q, r := next(l, 10*n+15), next(l, 10*n+16)
		terms = claim.Terms{Serial: true, Since: q.Window.Start, Previous: q.Window.Start}
		judges(t, s, q, q, disposition.Late)
		if err := s.Judge("shop/a", "two", q.Window.Start, q.Window.Start, disposition.Missed); err != nil {
			t.Fatal(err)
		}
		waitsFor(t, s, r, terms, q)
		leaves(t, s, gone)
		under(t, s, r, terms, claim.Run, claim.First)
		completes(t, s, r, nil)
	}
}

func leaves(t *testing.T, s Subject, gone bool) {
	t.Helper()
	if err := s.Leave("shop/a", "one", gone); err != nil {
		t.Fatal(err)
	}
}

// Whatever was said of a window that nobody had run: a Job that comes after all runs it.
func testGap(t *testing.T, s Subject) {
	for minutes, status := range []disposition.Status{disposition.Late, disposition.Missed, disposition.Skipped} {
		a := next(fresh("shop/a"), minutes)
		judges(t, s, a, a, status)
		under(t, s, a, claim.Terms{Serial: true, Overlap: contract.OverlapSkip}, claim.Run, claim.First)
		releases(t, s, a, claim.OutcomeFailed, claim.OutcomeFailed)
		a = next(a, 0)
		asks(t, s, a, claim.Run, claim.Retry)
		completes(t, s, a, nil)
	}
}

// Of a civil time that comes twice the second is closed, unless it was tried or a person
// asks for it; that says nothing about the first.
func testRepeats(t *testing.T, s Subject) {
	a, b := fresh("shop/a"), next(fresh("shop/a"), 60)
	twice := claim.Terms{Repeats: a.Window.Start, StartDeadline: time.Second}
	for _, reason := range []claim.Reason{claim.DST, claim.DST} {
		under(t, s, next(b, 0), twice, claim.Skip, reason)
	}
	asks(t, s, b, claim.Skip, claim.DST)
	under(t, s, a, claim.Terms{StartDeadline: time.Second}, claim.Skip, claim.Late) // nothing was stopped for it
	under(t, s, b, claim.Terms{Repeats: a.Window.Start, ReopenBefore: soon}, claim.Run, claim.Reopened)
	completes(t, s, b, nil)

	c := fresh("shop/tried")
	asks(t, s, c, claim.Run, claim.First)
	under(t, s, next(c, 0), claim.Terms{Repeats: c.Window.Start.Add(-time.Hour)}, claim.Wait, claim.BusyHeld)
	releases(t, s, c, claim.OutcomeFailed, claim.OutcomeFailed)
	c = next(c, 0)
	under(t, s, c, claim.Terms{Repeats: c.Window.Start.Add(-time.Hour)}, claim.Run, claim.Retry)
	completes(t, s, c, nil)

	d := fresh("shop/asked")
	under(t, s, d, claim.Terms{Repeats: d.Window.Start.Add(-time.Hour), ReopenBefore: soon}, claim.Run, claim.First)
	completes(t, s, d, nil)
	e := fresh("shop/first")
	got := under(t, s, next(e, 60), claim.Terms{Repeats: e.Window.Start}, claim.Skip, claim.DST)
	if got.Holder.Window != e.Window {
		t.Fatalf("%+v", got.Holder)
	}
	completes(t, s, next(e, 60), ledger.ErrFenced)
}
