package claim

// Seen is what the ledger sees of a window when an execution_id asks for it. The zero
// value is a window that nobody ever claimed.
type Seen struct {
	Closed  bool   // the window is older than the job's watermark
	Status  Status // of the execution; empty: there is no row
	Current bool   // running, by the very execution_id that asks
	Leased  bool   // the lease row carries the execution_id that asks
	Used    bool   // this execution_id had the window before and lost it
	Alive   bool   // the lease has not run out by the database's clock
	Locked  bool   // another transaction holds the row: it is committing
}

// Decide is the rule of claim. SQL's claim() judges by it twice: as seen without any
// lock, and again under the locks of job, execution and lease; Locked is known only then.
//
//	closed  status     execution_id      lease   locked   verdict  reason
//	yes     -          -                 -       -        skip     closed
//	no      completed  -                 -       -        skip     completed
//	no      running    current, leased   -       -        run      adopted
//	no      running    current           other   -        wait     fence-lost
//	no      any        used before       -       -        wait     fence-lost
//	no      running    another           alive   -        wait     busy
//	no      any        -                 -       yes      wait     committing
//	no      running    another           ended   no       run      takeover
//	no      failed     new               -       no       run      retry
//	no      none       new               -       no       run      first
//
// adopted does not ask whether the lease is alive: as long as nobody took over, the
// execution_id is the fence, and its holder goes on.
func Decide(s Seen) (Verdict, Reason) {
	switch {
	case s.Closed:
		return Skip, Closed
	case s.Status == Completed:
		return Skip, AlreadyCompleted
	case s.Status == Running && s.Current && s.Leased:
		return Run, Adopted
	case s.Status == Running && s.Current, s.Used:
		return Wait, FenceLost
	case s.Status == Running && s.Alive:
		return Wait, BusyHeld
	case s.Locked:
		return Wait, Committing
	case s.Status == Running:
		return Run, Takeover
	case s.Status == Failed:
		return Run, Retry
	default:
		return Run, First
	}
}
