package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onceguard/onceguard/pkg/audit"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/disposition"
)

// The answers that are neither a state of a window nor the status of a gap.
const (
	planned        = "planned"         // it is to be run later
	pruned         = "pruned"          // it is before the job's pruned history
	future         = "future"          // it is not due yet
	beforeGuarding = "before guarding" // an instant of the schedule, but older than what is watched
	notScheduled   = "not scheduled"   // no instant of the schedule
	notJudged      = "not judged"      // due, and the engine has not said anything yet
	unknown        = "unknown"         // nobody has recorded a schedule
	partlyRun      = "partly run"      // indexes of it have not come
)

// facts are what the record has of one window.
type facts struct {
	job          string // full name
	start, now   time.Time
	closedBefore *time.Time
	claimed      bool
	indexes      []audit.Lane // of an Indexed Job, the least closed first
	story        audit.Story  // of an Indexed Job that of the index which is least closed
	due          audit.Due
	schedules    []audit.Schedule
}

// explanation is what became of one window, and why.
type explanation struct {
	JobName     string    `json:"job_name"`
	WindowStart time.Time `json:"window_start"`
	Answer      string    `json:"answer"`
	Reason      string    `json:"reason,omitempty"`
	Means       string    `json:"means"`
	Evidence    []string  `json:"evidence,omitempty"`
	ToDo        string    `json:"to_do,omitempty"`
	Command     string    `json:"command,omitempty"` // that ToDo ends with

	Indexes   []audit.Lane     `json:"indexes,omitempty"` // the least closed first, whose Story it is
	Story     *audit.Story     `json:"story,omitempty"`
	Gaps      []audit.Gap      `json:"gaps,omitempty"`
	Plan      *audit.Plan      `json:"plan,omitempty"`
	Schedules []audit.Schedule `json:"schedules,omitempty"`
}

// partly reports whether indexes have not come, and those that have are closed.
func (f facts) partly() bool { return len(f.indexes) > 0 && f.indexes[0].State == "" }

// explainWindow gives the one answer: the execution if there is one, else the plan, else
// the gap, else what the schedule says.
func explainWindow(f facts) explanation {
	e := explanation{JobName: f.job, WindowStart: f.start, Gaps: f.due.Gaps, Plan: f.due.Plan, Schedules: f.schedules, Indexes: f.indexes}
	if f.claimed || len(f.story.Skips)+len(f.story.Decisions) > 0 {
		e.Story = &f.story
	}
	e.scheduled(f)
	gap, covered := chosenGap(f.due.Gaps)
	switch {
	case f.claimed && f.partly():
		e.partly(f)
	case f.claimed:
		e.executed(f)
	case f.due.Plan != nil:
		e.Answer, e.Means = planned, "no Job has run it yet, and one is to be made for it"
	case f.closedBefore != nil && f.start.Before(*f.closedBefore):
		e.Answer, e.Means = pruned, "the history before "+instant(f.closedBefore)+" was pruned: it is closed, and never runs again"
	case covered:
		e.gone(f, gap)
	case f.start.After(f.now):
		e.future(f)
	}
	if f.due.Plan != nil {
		e.planned(f, *f.due.Plan)
	}
	for _, g := range f.due.Gaps {
		e.evidence("%s", gapEvidence(g))
	}
	for _, x := range f.schedules {
		if note := notLooked(x, f.now); note != "" && !f.claimed {
			e.evidence("CronJob %s: %s", x.CronJob, note)
		}
		if x.Note != "" && x.GoneAt == nil && !f.claimed {
			e.evidence("CronJob %s: %s", x.CronJob, x.Note)
		}
	}
	if n := len(f.story.Skips); n > 0 && !f.claimed {
		e.evidence("%s came for it and did not run (%s), the last at %s", plural(n, "pod"), skipCounts(f.story.Skips), instant(&f.story.Skips[n-1].SkippedAt))
	}
	return e
}

func (e *explanation) evidence(format string, args ...any) {
	e.Evidence = append(e.Evidence, fmt.Sprintf(format, args...))
}

// chosenGap is the one of several CronJobs' that says most: nothing is settled while one is
// late.
func chosenGap(gaps []audit.Gap) (audit.Gap, bool) {
	for _, status := range []disposition.Status{disposition.Late, disposition.Missed, disposition.Skipped} {
		if i := slices.IndexFunc(gaps, func(g audit.Gap) bool { return g.Status == status }); i >= 0 {
			return gaps[i], true
		}
	}
	return audit.Gap{}, false
}

func gapEvidence(g audit.Gap) string {
	s := fmt.Sprintf("recorded %s: %s, %s", instant(&g.UpdatedAt), g.Status, cmp.Or(reasonMeaning[g.Reason], string(g.Reason)))
	if g.Windows > 1 {
		s += fmt.Sprintf(" (with %s from %s to %s)", plural(int(g.Windows), "window"), instant(&g.FirstWindow), instant(&g.LastWindow))
	}
	if g.Evidence != "" {
		s += "; seen: " + g.Evidence
	}
	return s
}

// scheduled says what the schedules have to do with the window, and answers for the case
// that nothing else does.
func (e *explanation) scheduled(f facts) {
	separate := strings.Contains(f.job, "@")
	e.Answer, e.Means = notScheduled, "it is no instant of the job's schedule: no Job comes for it by itself"
	switch {
	case separate:
		e.Answer, e.Means = unknown, "it is a separate run of its own, which the schedule says nothing about, and it never claimed this window"
		return
	case len(f.schedules) == 0:
		e.Answer, e.Means = unknown, "nobody has claimed it, and "+errNoEngine.Error()
		return
	}
	for _, x := range f.schedules {
		s, is, err := dueBy(x, f.start)
		name := "CronJob " + x.CronJob
		if x.GoneAt != nil {
			name += " (deleted, seen " + instant(x.GoneAt) + ")"
		}
		switch previous, next := s.Previous(f.start), s.Next(f.start); {
		case err != nil:
			e.evidence("%s: %s", name, err)
			if e.Answer == notScheduled {
				e.Answer, e.Means = unknown, "whether it was due cannot be computed"
			}
		case !is && !s.Repeats(f.start).IsZero():
			first := s.Repeats(f.start)
			e.evidence("%s: the clocks are put back there, and %s repeats the civil time of window %s: under dst=once only that one runs", name, instant(&f.start), instant(&first))
		case !is:
			e.evidence("%s: %s is no instant of its schedule %s (nearest: %s and %s)", name, instant(&f.start), zoned(x.Schedule, x.TimeZone), orNone(previous), orNone(next))
		case f.start.Before(x.Since):
			e.evidence("%s: it is an instant of its schedule %s, which is watched since %s", name, zoned(x.Schedule, x.TimeZone), instant(&x.Since))
			if e.Answer != notJudged {
				e.Answer, e.Means = beforeGuarding, "guarding began, or the schedule, its zone, the job's name or its ledger was last changed, only at "+instant(&x.Since)+": older windows are not answered for"
				e.runLater(f, "")
			}
		case x.GoneAt != nil && f.start.After(*x.GoneAt):
			e.evidence("%s: it was gone by then", name)
		case x.GoneAt != nil && (x.JudgedBefore == nil || !f.start.Before(*x.JudgedBefore)):
			e.evidence("%s: it was an instant of its schedule %s, and was not judged by then", name, zoned(x.Schedule, x.TimeZone))
			if e.Answer != notJudged {
				e.Answer, e.Means = notJudged, "its CronJob was deleted before the engine had judged it: whether its Job came is not known, and no other one comes"
				e.runLater(f, "")
			}
		default:
			if s.Invented(f.start) {
				e.evidence("%s: its civil time does not occur that day, since the clocks are put forward: only dst=once has this window, and the engine makes its Job", name)
			}
			e.evidence("%s: it is an instant of its schedule %s, which is watched since %s", name, zoned(x.Schedule, x.TimeZone), instant(&x.Since))
			e.Answer, e.ToDo, e.Command = notJudged, "", ""
			e.Means = "it was due, and nothing is recorded of it so far; a window is called late from a minute after its instant"
		}
	}
}

func orNone(t time.Time) string {
	if t.IsZero() {
		return none
	}
	return instant(&t)
}

// executed answers from the window's row.
func (e *explanation) executed(f facts) {
	x := f.story.Window
	flags, unable := f.runner()
	e.Answer, e.Means = string(x.State), state(x)
	e.ToDo, e.Command = toDo(x)
	if x.Reason != nil {
		e.Reason = *x.Reason
	}
	if x.State == audit.Done {
		e.Means = fmt.Sprintf("done at %s by attempt %d; it never runs again, unless a person says rerun", instant(x.CompletedAt), x.Attempts)
	}
	if len(f.indexes) > 0 {
		e.evidence("%s; the answer is that of the least closed, %s", indexText(f.indexes), x.JobName)
	}
	if x.Trigger != nil && *x.Trigger == string(contract.TriggerCatchUp) {
		e.evidence("caught up: Job %s was made for it by the windows engine", place(x.Namespace, x.Job))
	}
	if x.Trigger != nil && *x.Trigger == string(contract.TriggerManual) {
		e.evidence("run by a manual Job: %s", place(x.Namespace, x.Job))
	}
	if x.DuplicatesPrevented > 0 {
		e.evidence("%s prevented (listed below)", plural(int(x.DuplicatesPrevented), "duplicate"))
	}
	if n := len(f.story.Attempts); n > 0 && x.State != audit.Done {
		last := f.story.Attempts[n-1]
		e.evidence("attempt %d in pod %s: %s", last.Attempt, place(last.Namespace, last.Pod), ending(&last.Outcome, last.ExitCode, last.Message))
	}
	switch {
	case unable != "" || strings.ContainsAny(f.job, "#@"):
	case x.State == audit.Failed, x.State == audit.LeaseEnded:
		e.ToDo, e.Command = "its Job's next retry runs it, if there is one left; else", backfillOf(f, flags+" --reprocess failed")
	case x.State == audit.Exhausted:
		e.Command = backfillOf(f, flags+" --reprocess failed")
	case x.State == audit.Skipped:
		e.Command = backfillOf(f, flags)
	}
}

// partly answers for an Indexed Job of which indexes have not come.
func (e *explanation) partly(f facts) {
	missing := f.indexes[0].JobName
	e.Answer, e.Means = partlyRun, "indexes of it have not come yet; those that have are closed"
	e.ToDo = "let its Job go on; if that is gone, close each index that never came:"
	e.Command = fmt.Sprintf("kubectl onceguard cancel %s %s %s", printable(missing), instant(&f.start), byOwner)
	if f.due.Plan != nil {
		e.Answer, e.Means = planned, "indexes of it have not come, and a Job is to be made for it"
	}
	e.evidence("%s", indexText(f.indexes))
}

// maxIndexes is how many indexes of one state are named.
const maxIndexes = 20

// indexText says how each index stands, the least closed first.
func indexText(lanes []audit.Lane) string {
	var texts []string
	for i := 0; i < len(lanes); {
		n := i
		var names []string
		for n < len(lanes) && lanes[n].State == lanes[i].State {
			if _, index, is := strings.Cut(lanes[n].JobName, "#"); is && len(names) < maxIndexes {
				names = append(names, index)
			}
			n++
		}
		text := strings.Join(names, ", ")
		if more := n - i - len(names); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		texts = append(texts, cmp.Or(string(lanes[i].State), "not come")+": "+text)
		i = n
	}
	return "indexes " + strings.Join(texts, "; ")
}

// gone answers from a gap.
func (e *explanation) gone(f facts, g audit.Gap) {
	e.Answer, e.Reason = string(g.Status), string(g.Reason)
	e.Means = cmp.Or(reasonMeaning[g.Reason], e.Reason)
	cure := reasonCure[g.Reason]
	switch g.Status {
	case disposition.Late:
		e.Means = "it may still run: " + e.Means
		e.ToDo = cmp.Or(cure, "nothing yet")
	case disposition.Missed:
		if rule := ruleMeaning[g.Rule]; rule != "" {
			e.Means += "; not caught up: " + rule
		}
		e.runLater(f, cure)
	case disposition.Skipped:
		e.runLater(f, "")
	}
}

// runLater says how a window that nobody has run can be run after all; cure is what is to
// be done about the CronJob before.
func (e *explanation) runLater(f facts, cure string) {
	flags, unable := f.runner()
	if unable != "" {
		e.ToDo, e.Command = unable, ""
		return
	}
	e.ToDo, e.Command = runAfterAll, backfillOf(f, flags)
	if cure != "" {
		e.ToDo = cure + "; " + e.ToDo
	}
}

// runner gives the flags with which a backfill of the window is accepted, or why none is.
func (f facts) runner() (flags, unable string) {
	if len(f.schedules) == 0 {
		return "", "only a Job made by hand can run it: " + errNoEngine.Error()
	}
	var there, able []audit.Schedule
	for _, x := range f.schedules {
		if x.GoneAt != nil {
			continue
		}
		there = append(there, x)
		if _, is, err := dueBy(x, f.start); err == nil && is {
			able = append(able, x)
		}
	}
	if len(there) == 0 {
		return "", "its CronJob was deleted, so nothing can run it; create it again, then backfill it with --before-guarding"
	}
	if len(able) == 0 {
		return "", "only a Job made by hand can run it: its CronJob's schedule has no such instant any more, or cannot be computed"
	}
	x := able[max(0, slices.IndexFunc(able, func(x audit.Schedule) bool { return !f.start.Before(x.Since) }))]
	if len(there) > 1 {
		flags = " --cronjob " + printable(x.CronJob)
	}
	if f.start.Before(x.Since) {
		flags += " --before-guarding"
	}
	return flags, ""
}

func (e *explanation) planned(f facts, x audit.Plan) {
	e.evidence("%s", planEvidence(x))
	i := slices.IndexFunc(f.schedules, func(s audit.Schedule) bool { return s.GoneAt == nil && s.CronJob == x.CronJob })
	if i < 0 {
		e.evidence("CronJob %s was deleted: no Job is made for it until one of this job is there again", cmp.Or(x.CronJob, none))
	} else if note := suspended(f.schedules[i]); note != "" {
		e.evidence("CronJob %s: %s", x.CronJob, note)
	}
	if e.ToDo == "" || e.Answer == planned {
		e.ToDo, e.Command = "wait; or take it back:", backfillOf(f, " --cancel")
	}
}

// planEvidence says why a window is planned, by whom, and how far that is.
func planEvidence(x audit.Plan) string {
	who := "to be caught up, since it was missed (" + cmp.Or(reasonMeaning[x.Reason], string(x.Reason)) + ")"
	if x.PlannedBy != "" {
		who = "planned by " + x.PlannedBy + ": " + x.Why
	}
	made := "no Job was made for it yet: the engine makes them oldest first"
	switch {
	case x.Made == 1:
		made = fmt.Sprintf("Job %s was made for it at %s", cmp.Or(x.Job, none), instant(x.MadeAt))
	case x.Made > 1:
		made = fmt.Sprintf("%d Jobs were made for it, the last is %s, at %s", x.Made, cmp.Or(x.Job, none), instant(x.MadeAt))
	}
	return fmt.Sprintf("%s (%s); %s", who, instant(&x.PlannedAt), made)
}

func (e *explanation) future(f facts) {
	if e.Answer == notScheduled || e.Answer == unknown {
		return
	}
	e.Answer, e.Means, e.ToDo = future, "it is not due yet", "wait; or close it in advance:"
	e.Command = fmt.Sprintf("kubectl onceguard cancel %s %s %s", printable(f.job), instant(&f.start), byOwner)
}

const runAfterAll = "to run it after all:"

// backfillOf is the command that plans one window, with a further flag.
func backfillOf(f facts, flag string) string {
	at := instant(&f.start)
	return fmt.Sprintf("kubectl onceguard backfill %s --from %s --to %s%s %s", printable(base(f.job)), at, at, flag, byOwner)
}
