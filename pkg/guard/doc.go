// Package guard decides, for one pod, whether its wrapped containers may work on
// their window, and holds that right for as long as they do.
//
// [Next] is the whole decision: a pure reducer from a state and an event to a state
// and the effects to perform. [Guard] is the loop that performs them; it is the only
// owner of the state. The wrapper in each container talks to it over a Unix socket
// (package wire, server.go), and the local endpoint through [Guard.Held] and friends.
//
//	         start, hello                    run
//	  idle ───────────────▶ claiming ─────────────────▶ held ──── committed, completed ──▶ done
//	   ▲                     │    ▲                    │   │ │                              ▲
//	   │   busy=fail, ledger │    │ nobody runs and    │   │ └─ all ended, first failure ─┐ │
//	   ├─────── away too long┘    └─── trust ended ────┘   │    (or nobody came in time)  │ │
//	   │                                                   ▼                              ▼ │
//	   ├──────────────── nothing to report ──────────── stopping ───── all gone ──▶ settling┘
//	   └───────────────────────────────────────────────────────────────────────────────┘
//	skip: claiming ─▶ skipping (recorded once) ─▶ done.   a restarted guard: adopting ─▶ held or stopping.
//	refuse: claiming ─▶ idle; who waits ends with 78, and the next hello asks again.
//
// What the verdict depends on besides the window itself (overlap, order, deadlines,
// payload, failures) is composed by [Terms] and judged by the ledger at every question;
// this package only waits, and says for whom.
//
// The ledger's database decides who owns a window; this package only decides how
// long it may believe so without asking. With L the lease:
//
//	margin      = L/10, at least 1 s, at most L/5
//	grace       = L/10, at most 5 s
//	trust ends  = instant before the request was sent + L − margin   (monotonic clock)
//	heartbeat   every L/3 while a wrapped process is connected, or within the start
//	            timeout of the verdict or of the last exit
//	TERM at trust − grace, KILL at trust: before the lease ends, so before another starts
//
// A heartbeat may answer that a newer window replaces this one: the worker is stopped
// while the lease goes on, and the window is given back as soon as it is gone.
//
// What happens when things break:
//
//   - A wrapper's connection breaks without an exit: its container crashed; the attempt
//     is released at once. While the guard itself is away wrappers keep their process
//     and dial again, so a break seen by a living guard is never a restart of the guard.
//   - The ledger cannot be reached: a claim is repeated until the ledger wait is over,
//     then wrappers end with 75; a heartbeat is repeated until trust is nearly over,
//     then the worker is stopped. A completion is repeated as well: it is fenced, so it
//     can never be wrong, only late.
//   - The guard restarts: it reads its execution_id and asks by heartbeat, never by
//     claim, whether the attempt is still current: a row that vanished must not be
//     inserted again while its worker runs.
//   - Exit 0 after a stop never completes the window, whether the guard told the worker to
//     stop or SIGTERM came from outside (deadline, deletion, Replace): breaking off politely
//     is not the same as being done. Only a commit, which the ledger knows of, is.
package guard
