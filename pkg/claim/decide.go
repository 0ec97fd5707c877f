package claim

import "github.com/onceguard/onceguard/pkg/contract"

// Seen is what the ledger sees of a window, and around it, when an execution_id asks for
// it. The zero value is a window that nobody ever claimed, alone in its lane.
type Seen struct {
	Closed   bool   // the window is older than the job's watermark
	Status   Status // of the execution; empty: there is no row
	Stored   Reason // why it is Skipped
	Conflict bool   // it belongs to another payload than the asker's
	Current  bool   // running, by the very execution_id that asks
	Leased   bool   // the lease row carries the execution_id that asks
	Used     bool   // this execution_id had the window before and lost it
	Alive    bool   // the lease has not run out by the database's clock
	Locked   bool   // another transaction holds the row: it is committing

	// What the terms are judged by. Attempts before Decided do not count.
	Reopens   bool // Terms.ReopenBefore is after the instant at which it was closed
	Decided   bool // a person reran or reopened the window
	Planned   bool // it is to be run later than when it was due: caught up, or a backfill
	Stopping  bool // a newer window, which is not closed, asks the holder to stop
	Crashed   bool // the last attempt crashed or was lost, or is dead
	Failures  int  // attempts that failed, crashed or were lost, a dead one included
	Unstarted bool // none of its attempts got as far as a worker
	Late      bool // Terms.StartDeadline has passed by the database's clock
	Stopped   bool // an older window was stopped, or is asked to stop, for this one
	Later     bool // Terms.Serial: a later window of the job is running or completed
	Earlier   bool // Terms.Serial: an earlier one runs, is not closed, is planned, or may still come
	Others    Others
}

// Others are the other windows of the lane that are running, under an Overlap other than
// allow. The lane is the job, or one index of it; separate manual runs belong to it, but
// they and the other windows only wait for each other. Under Serial with overlap allow
// they are those of the very same name.
type Others struct {
	Locked   bool // one is committing; it is alive too
	Older    bool // an older one is alive
	Newer    bool // a newer one is alive
	Separate bool // one is alive, and it or this window is a separate run
	Unasked  bool // an older one that is alive has not been asked to stop
	Dead     bool // the lease of one has run out
}

// Decision is the ledger's answer and what it does in the same transaction.
type Decision struct {
	Verdict Verdict
	Reason  Reason
	Close   Status // the window is closed so, with Reason; empty: it is not
	Stop    bool   // the older ones that are alive are asked to stop
	Fence   bool   // the others are dead: they lose their execution_id
}

// Writes reports whether the decision needs the locks: any other one is answered as
// seen and writes nothing.
func (d Decision) Writes() bool {
	return d.Verdict == Run && d.Reason != Adopted || d.Close != "" || d.Stop
}

// Decide is the rule of claim. SQL's claim() judges by it twice: as seen without any
// lock and, if the decision writes, again under the locks of job, execution and lease;
// Locked is known only then. The first row that fits counts:
//
//	closed  status               execution_id     lease  and                    verdict  reason        closes as
//	yes     -                    -                -                             skip     closed
//	no      any                  -                -      another payload        refuse   payload
//	no      completed            -                -                             skip     completed
//	no      running              current, leased  -                             run      adopted
//	no      running              current          other                         wait     fence-lost
//	no      any                  used before      -                             wait     fence-lost
//	no      held                 -                -                             refuse   held
//	no      skipped              -                -      not reopened           skip     as stored
//	no      exhausted            -                -      not reopened           refuse   exhausted
//	no      running              another          alive                         wait     busy
//	no      any                  -                -      locked                 wait     committing
//	no      running              another          ended  stopping (1)           skip     superseded    skipped
//	no      running or failed    -                ended  crashed, HoldOnCrash   refuse   held          held
//	no      running or failed    -                ended  MaxAttempts reached    refuse   exhausted     exhausted
//	no      none (1)             -                -      Repeats                skip     dst           skipped
//	no      none, failed (1)(2)  -                -      late, nobody stopped   skip     late          skipped
//	no      none (1)             -                ended  Serial, later          skip     superseded    skipped
//	no      any                  -                ended  Serial, earlier        wait     order
//	no      any                  -                ended  others locked          wait     committing    (replace: stop them)
//	no      none (1)             -                ended  skip, others alive     skip     overlap       skipped
//	no      any (1)              -                ended  replace, newer         skip     superseded    skipped
//	no      any                  -                ended  replace, only older    wait     replacing     (stop them)
//	no      any                  -                ended  others alive           wait     overlap
//	no      running              another          ended                         run      takeover      (fence others)
//	no      failed               new              -                             run      retry         (fence others)
//	no      skipped, exhausted   new              -      reopened               run      reopened      (fence others)
//	no      none                 new              -                             run      first         (fence others)
//
// (1) unless the window is wanted: a person asks for it (ReopenBefore, or decided before), or
// it is planned. A plan says something only of a window that is not closed, so it may outlive
// the end of its window.
// (2) when no attempt got as far as a worker.
//
// reopened means that it was closed before ReopenBefore. Serial closes only what never ran:
// a window that was tried began in its turn, so it runs again, though a later one may have
// completed meanwhile; it waits while a later one runs. "skip, others alive" does not mean
// separate runs, nor are those replaced or asked to stop: they are waited for.
//
// adopted does not ask whether the lease is alive: as long as nobody took over, the
// execution_id is the fence, and its holder goes on. What was closed is never closed
// again: asked again it is answered as seen.
func Decide(t Terms, s Seen) Decision {
	switch {
	case s.Closed:
		return Decision{Verdict: Skip, Reason: Closed}
	case s.Conflict:
		return Decision{Verdict: Refuse, Reason: PayloadConflict}
	case s.Status == Completed:
		return Decision{Verdict: Skip, Reason: AlreadyCompleted}
	case s.Status == Running && s.Current && s.Leased:
		return Decision{Verdict: Run, Reason: Adopted}
	case s.Status == Running && s.Current, s.Used:
		return Decision{Verdict: Wait, Reason: FenceLost}
	case s.Status == Held:
		return Decision{Verdict: Refuse, Reason: IsHeld}
	case s.Status == Skipped && !s.Reopens:
		return Decision{Verdict: Skip, Reason: s.Stored}
	case s.Status == Exhausted && !s.Reopens:
		return Decision{Verdict: Refuse, Reason: IsExhausted}
	case s.Status == Running && s.Alive:
		return Decision{Verdict: Wait, Reason: BusyHeld}
	case s.Locked:
		return Decision{Verdict: Wait, Reason: Committing}
	}
	return decideTerms(t, s)
}

// decideTerms is Decide for a window that can be taken: SQL's judge_terms().
func decideTerms(t Terms, s Seen) Decision {
	tried := s.Status == Running || s.Status == Failed
	wanted := !t.ReopenBefore.IsZero() || s.Decided || s.Planned
	o := s.Others
	overlaps := t.Serial || t.Overlap != "" && t.Overlap != contract.OverlapAllow
	replaces := t.Overlap == contract.OverlapReplace
	switch {
	case s.Status == Running && s.Stopping && !wanted:
		return Decision{Verdict: Skip, Reason: Superseded, Close: Skipped}
	case tried && t.HoldOnCrash && s.Crashed:
		return Decision{Verdict: Refuse, Reason: IsHeld, Close: Held}
	case tried && t.MaxAttempts > 0 && s.Failures >= t.MaxAttempts:
		return Decision{Verdict: Refuse, Reason: IsExhausted, Close: Exhausted}
	case s.Status == "" && !t.Repeats.IsZero() && !wanted:
		return Decision{Verdict: Skip, Reason: DST, Close: Skipped}
	case (s.Status == "" || s.Status == Failed && s.Unstarted) && t.StartDeadline > 0 && s.Late && !s.Stopped && !wanted:
		return Decision{Verdict: Skip, Reason: Late, Close: Skipped}
	case s.Status == "" && t.Serial && s.Later && !wanted:
		return Decision{Verdict: Skip, Reason: Superseded, Close: Skipped}
	case t.Serial && s.Earlier:
		return Decision{Verdict: Wait, Reason: Order}
	case overlaps && o.Locked:
		return Decision{Verdict: Wait, Reason: Committing, Stop: replaces && o.Unasked && !o.Newer}
	case t.Overlap == contract.OverlapSkip && (o.Older || o.Newer) && s.Status == "" && !wanted:
		return Decision{Verdict: Skip, Reason: Overlap, Close: Skipped}
	case replaces && o.Newer && !wanted:
		return Decision{Verdict: Skip, Reason: Superseded, Close: Skipped}
	case replaces && o.Older && !o.Newer:
		return Decision{Verdict: Wait, Reason: Replacing, Stop: o.Unasked}
	case overlaps && (o.Older || o.Newer || o.Separate):
		return Decision{Verdict: Wait, Reason: Overlap}
	}
	d := Decision{Verdict: Run, Reason: First, Fence: overlaps && o.Dead}
	switch {
	case s.Status == Running:
		d.Reason = Takeover
	case s.Status == Failed:
		d.Reason = Retry
	case s.Status != "":
		d.Reason = Reopened
	}
	return d
}
