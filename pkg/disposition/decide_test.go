package disposition

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
)

// at reads a time of the day that the table is about.
func at(clock string) time.Time {
	t, err := time.Parse("2006-01-02 15:04:05", "2026-03-02 "+clock+":00"[:max(0, 8-len(clock))])
	if err != nil {
		panic(err)
	}
	return t
}

// tell is a decision in lines, as the table has them.
func tell(d Decision) string {
	var lines []string
	clock := func(t time.Time) string { return strings.TrimSuffix(t.UTC().Format("15:04:05"), ":00") }
	gap := func(what string, g Gap) {
		span := clock(g.First)
		if !g.Last.Equal(g.First) {
			span += "-" + clock(g.Last)
		}
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %d %s %s %s", what, span, g.Windows, g.Status, g.Reason, g.Rule)))
	}
	for _, g := range d.Gaps {
		gap("gap", g)
	}
	for _, p := range d.Plans {
		lines = append(lines, fmt.Sprintf("plan %s %s", clock(p.WindowStart), p.Reason))
	}
	for _, g := range d.Unplan {
		gap("unplan", g)
	}
	for _, w := range d.Make {
		lines = append(lines, "make "+clock(w))
	}
	for _, g := range d.Exhaust {
		lines = append(lines, fmt.Sprintf("exhaust %s %s", clock(g.First), g.Reason))
	}
	for _, w := range d.State.Open {
		lines = append(lines, "open "+clock(w))
	}
	if d.Note != "" {
		lines = append(lines, "note")
	}
	lines = append(lines, "judged "+clock(d.State.JudgedBefore))
	if d.Next.IsZero() {
		return strings.Join(append(lines, "next never"), "; ")
	}
	return strings.Join(append(lines, "next "+clock(d.Next)), "; ")
}

// Every ten minutes, judged up to 10:00, and it is 10:25: 10:00 and 10:10 cannot come any
// more, 10:20 still may.
func plainView() View {
	return View{
		Now: at("10:25"), Upto: at("10:25"), State: State{JudgedBefore: at("10:00")},
		CronJob: CronJob{Settings: contract.Settings{
			CronJob: "sync", CronJobUID: "u", JobName: "shop/sync", Schedule: "*/10 * * * *", TimeZone: "Etc/UTC", Since: at("08:00"),
		}},
	}
}

// What is suspended says since when, and until when, as far as it was seen.
func TestASuspensionIsEvidence(t *testing.T) {
	v := plainView()
	v.CronJob.Suspended, v.State.Suspensions = true, []Span{{From: at("09:55")}}
	if d := Decide(v); d.Gaps[0].Reason != Suspended || d.Gaps[0].Evidence != "it is suspended since 2026-03-02T09:55:00Z" {
		t.Errorf("%+v", d.Gaps)
	}
	v.CronJob.Suspended = false
	if d := Decide(v); d.Gaps[0].Reason != Suspended || d.Gaps[0].Evidence != "it was suspended from 2026-03-02T09:55:00Z to 2026-03-02T10:25:00Z" {
		t.Errorf("%+v", d.Gaps)
	}
}

// The ledger may be away when a CronJob is suspended and resumed; the watch is not.
func TestSuspensionsThatWereWatched(t *testing.T) {
	span := func(from, to string) Span {
		s := Span{From: at(from)}
		if to != "" {
			s.To = at(to)
		}
		return s
	}
	for _, row := range []struct {
		name         string
		stored, seen []Span
		suspended    bool
		want         string
	}{
		{"nothing was recorded of it", nil, []Span{span("09:00", "09:00"), span("09:55", "10:15")}, false, "[09:55-10:15]"},
		{"it lasts", nil, []Span{span("09:00", "09:00"), span("09:55", "")}, true, "[09:55-]"},
		{"its beginning was recorded", []Span{span("09:54", "")}, []Span{span("09:00", "09:00"), span("09:54", "10:15")}, false, "[09:54-10:15]"},
		{"and another one came", []Span{span("09:54", "")}, []Span{span("09:54", "10:05"), span("10:15", "")}, true, "[09:54-10:05 10:15-]"},
		{"it was resumed before anybody watched", []Span{span("09:54", "")}, []Span{span("10:02", "10:02"), span("10:15", "")}, true, "[09:54-10:02 10:15-]"},
		{"all of it was recorded", []Span{span("09:54", "10:15")}, []Span{span("09:00", "09:00"), span("09:54", "10:15")}, false, "[09:54-10:15]"},
		{"the watch began within it", []Span{span("09:54", "")}, []Span{span("10:02", "")}, true, "[09:54-]"},
	} {
		v := plainView()
		v.State.Suspensions, v.CronJob.Seen, v.CronJob.Suspended = row.stored, row.seen, row.suspended
		var got []string
		for _, s := range suspensions(v) {
			text := s.From.Format("15:04") + "-"
			if !s.To.IsZero() {
				text += s.To.Format("15:04")
			}
			got = append(got, text)
		}
		if fmt.Sprint(got) != row.want {
			t.Errorf("%s: %v, want %s", row.name, got, row.want)
		}
	}
}

func TestPlansOfASuspendedCronJobSayWhatTheyWaitFor(t *testing.T) {
	v := plainView()
	v.CronJob.Suspended, v.Plans = true, []Plan{{WindowStart: at("10:00"), By: "ada", CronJobUID: "u"}, {WindowStart: at("10:10"), By: "ada", CronJobUID: "other"}}
	if d := Decide(v); d.Note != "it is suspended: no Job is made for its planned windows (1) until the resume" {
		t.Error(d.Note)
	}
	v.Executions = []Execution{ran("10:00")}
	if d := Decide(v); d.Note != "" {
		t.Error(d.Note)
	}
}

func ran(clock string) Execution {
	return Execution{WindowStart: at(clock), Closed: true, UpdatedAt: at(clock)}
}

func failed(clock, updated string) Execution {
	return Execution{WindowStart: at(clock), Failed: true, UpdatedAt: at(updated)}
}

func job(clock string) Job {
	return Job{WindowStart: at(clock), Name: "sync-" + clock, Created: at(clock), Reason: Starting}
}

func ended(j Job, clock string, reason Reason) Job {
	j.Ended, j.EndedAt, j.Reason, j.Evidence = true, at(clock), reason, "Job "+j.Name+" ended"
	return j
}

func planned(clock string, reason Reason) Plan {
	return Plan{WindowStart: at(clock), Reason: reason, CronJobUID: "u"}
}

func all(v *View) {
	s := &v.CronJob.Settings
	s.CatchUp, s.CatchUpLimit, s.CatchUpAge, s.CatchUpParallel = contract.CatchUpAll, 100, contract.Duration(24*time.Hour), 1
}

func serial(v *View) {
	all(v)
	v.CronJob.Settings.Order = contract.OrderSerial
}

func TestDecide(t *testing.T) {
	second := func(d time.Duration) *time.Duration { return &d }
	madeFor := func(p Plan, made int, clock string) Plan {
		p.Made, p.MadeAt = made, at(clock)
		return p
	}
	catchUp := func(j Job) Job {
		j.CatchUp, j.Name = true, "sync-r"
		return j
	}
	for _, row := range []struct {
		name string
		with func(v *View)
		want string
	}{
		{"nobody came", func(*View) {}, "gap 10:00-10:10 2 missed controller; gap 10:20 1 late controller; judged 10:20; next 10:31"},
		{"all ran", func(v *View) { v.Executions = []Execution{ran("10:00"), ran("10:10"), ran("10:20")} }, "judged 10:25:01; next 10:31"},
		{"one did not", func(v *View) { v.Executions = []Execution{ran("10:00"), ran("10:20")} }, "gap 10:10 1 missed controller; judged 10:25:01; next 10:31"},
		{"a minute is no delay", func(v *View) {
			v.Now, v.State.JudgedBefore = at("10:20:59"), at("10:20")
			v.Upto = v.Now
		}, "judged 10:20; next 10:21"},
		{"the next one is due, but only just", func(v *View) {
			v.Now, v.State.JudgedBefore = at("10:20:59"), at("10:10")
			v.Upto = v.Now
		}, "gap 10:10 1 late controller; judged 10:10; next 10:21"},
		{"the ledger's page ends early", func(v *View) { v.Upto = at("10:05") }, "gap 10:00 1 missed controller; judged 10:05:01; next 10:25"},

		{"windows before Since are none of ours", func(v *View) { v.CronJob.Settings.Since = at("10:05") }, "gap 10:10 1 missed controller; gap 10:20 1 late controller; judged 10:20; next 10:31"},
		{"the watermark closes what is before it", func(v *View) { v.ClosedBefore = at("10:15") }, "gap 10:20 1 late controller; judged 10:20; next 10:31"},
		{"the clock went back", func(v *View) { v.State.JudgedBefore = at("11:00") }, "note; judged 11:00; next 10:31"},
		{"a Job of a window to come", func(v *View) {
			v.State.JudgedBefore, v.Jobs = at("10:25"), []Job{job("10:30")}
		}, "judged 10:25:01; next 10:31"},

		{"no zone", func(v *View) {
			v.CronJob.Settings.TimeZone, v.Executions = "", []Execution{failed("10:00", "10:01")}
			v.Jobs = []Job{ended(job("10:00"), "10:02", JobFailed)}
		}, "exhaust 10:00 job-failed; open 10:00; note; judged 10:25:01; next 10:30"},
		{"@every", func(v *View) { v.CronJob.Settings.Schedule = "@every 10m" }, "note; judged 10:25:01; next never"},
		{"unparsable", func(v *View) { v.CronJob.Settings.Schedule = "61 * * * *" }, "note; judged 10:25:01; next never"},
		{"a date that does not exist", func(v *View) { v.CronJob.Settings.Schedule = "0 0 30 2 *" }, "note; judged 10:25:01; next never"},

		{"its Job starts", func(v *View) { v.Jobs = []Job{job("10:20")}; v.State.JudgedBefore = at("10:20") }, "gap 10:20 1 late starting; judged 10:20; next 10:30"},
		{"its image cannot be pulled", func(v *View) {
			j := job("10:10")
			j.Reason = Image
			v.Jobs = []Job{j}
		}, "gap 10:00 1 missed controller; gap 10:10 1 late image; gap 10:20 1 late controller; judged 10:10; next 10:30"},
		{
			"its Job ended without a claim", func(v *View) { v.Jobs = []Job{ended(job("10:20"), "10:22", DeadlineExceeded)} },
			"gap 10:00-10:10 2 missed controller; gap 10:20 1 missed deadline-exceeded; judged 10:25:01; next 10:31",
		},
		{
			"its Job ended just now", func(v *View) { v.Jobs = []Job{ended(job("10:20"), "10:24:30", DeadlineExceeded)} },
			"gap 10:00-10:10 2 missed controller; gap 10:20 1 late deadline-exceeded; judged 10:20; next 10:25:30",
		},
		{
			"its Job is gone, since when is not known", func(v *View) { v.CronJob.LastScheduled = at("10:20") },
			"gap 10:00-10:10 2 missed controller; gap 10:20 1 late job-gone; judged 10:20; next 10:26",
		},
		{"its Job has been gone for a minute", func(v *View) {
			v.CronJob.LastScheduled = at("10:20")
			v.State.Sights = []Sight{{WindowStart: at("10:20"), Reason: Unschedulable, Gone: at("10:24")}}
		}, "gap 10:00-10:10 2 missed controller; gap 10:20 1 missed unschedulable; judged 10:25:01; next 10:31"},
		{"complete, and the ledger knows nothing of it", func(v *View) {
			j := ended(job("10:10"), "10:12", "")
			j.Complete = true
			v.Jobs = []Job{j}
		}, "note; judged 10:00; next 10:30"},
		{"complete just now", func(v *View) {
			j := ended(job("10:20"), "10:24:30", "")
			j.Complete = true
			v.Jobs = []Job{j}
		}, "gap 10:00-10:10 2 missed controller; gap 10:20 1 late job-failed; judged 10:20; next 10:25:30"},

		{
			"startingDeadlineSeconds has passed", func(v *View) { v.CronJob.StartingDeadline = second(30 * time.Second) },
			"gap 10:00-10:20 3 missed start-deadline; judged 10:25:01; next 10:31",
		},
		{
			"startingDeadlineSeconds is to come", func(v *View) { v.CronJob.StartingDeadline = second(8 * time.Minute) },
			"gap 10:00-10:10 2 missed start-deadline; gap 10:20 1 late controller; judged 10:20; next 10:29",
		},
		{"Forbid, and the Job before runs", func(v *View) {
			v.CronJob.Forbid, v.Executions, v.Jobs = true, []Execution{{WindowStart: at("10:00"), Alive: true, UpdatedAt: at("10:00")}}, []Job{job("10:00")}
		}, "gap 10:10 1 missed overlap; gap 10:20 1 late overlap; open 10:00; judged 10:20; next 10:31"},
		{"Forbid, and the Job before ran until then", func(v *View) {
			v.CronJob.Forbid, v.Executions, v.Jobs = true, []Execution{ran("10:00")}, []Job{ended(job("10:00"), "10:15", "")}
		}, "gap 10:10 1 missed overlap; gap 10:20 1 late controller; judged 10:20; next 10:31"},
		{"what the engine made does not forbid", func(v *View) {
			v.CronJob.Forbid, v.Executions, v.Jobs = true, []Execution{{WindowStart: at("10:00"), Alive: true}}, []Job{catchUp(job("10:00"))}
		}, "gap 10:10 1 missed controller; gap 10:20 1 late controller; open 10:00; judged 10:20; next 10:31"},
		{"refused at 10:12", func(v *View) {
			v.CronJob.Refused, v.CronJob.RefusedReason, v.CronJob.RefusedAt = "exceeded quota", Quota, at("10:12")
		}, "gap 10:00-10:10 2 missed quota; gap 10:20 1 late controller; judged 10:20; next 10:31"},
		{"what was recorded behind a late one stays", func(v *View) {
			v.Jobs = []Job{job("10:00")}
			v.State.Recorded = []Gap{{First: at("10:10"), Last: at("10:10"), Windows: 1, Status: Missed, Reason: Quota}}
		}, "gap 10:00 1 late starting; gap 10:10 1 missed quota; gap 10:20 1 late controller; judged 10:00; next 10:30"},

		{"suspended now, seen just now", func(v *View) { v.CronJob.Suspended = true }, "gap 10:00-10:10 2 missed controller; gap 10:20 1 late controller; judged 10:20; next 10:35"},
		{"suspended", func(v *View) {
			v.CronJob.Suspended, v.State.Suspensions = true, []Span{{From: at("10:05")}}
		}, "gap 10:00 1 missed controller; gap 10:10 1 skipped suspended; gap 10:20 1 late suspended; judged 10:20; next 10:35"},
		{"a suspension in the middle", func(v *View) {
			v.State.JudgedBefore, v.State.Suspensions = at("09:00"), []Span{{From: at("09:15"), To: at("09:45")}}
		}, "gap 09:00-09:10 2 missed controller; gap 09:20-09:40 3 skipped suspended; gap 09:50-10:10 3 missed controller; gap 10:20 1 late controller; judged 10:20; next 10:31"},
		{"suspended, to be caught up", func(v *View) {
			all(v)
			v.CronJob.Settings.SuspendedWindows = contract.SuspendedCatchUp
			v.CronJob.Suspended, v.State.Suspensions = true, []Span{{From: at("10:05")}}
		}, "gap 10:10-10:20 2 late suspended; plan 10:00 controller; judged 10:10; next 10:35"},
		{"resumed, to be caught up", func(v *View) {
			all(v)
			v.CronJob.Settings.SuspendedWindows = contract.SuspendedCatchUp
			v.State.Suspensions = []Span{{From: at("09:55")}}
		}, "gap 10:20 1 late suspended; plan 10:00 suspended; plan 10:10 suspended; judged 10:20; next 10:25"},
		{"caught up, but not what was suspended", func(v *View) {
			all(v)
			v.State.Suspensions = []Span{{From: at("10:05"), To: at("10:15")}}
		}, "gap 10:10 1 skipped suspended suspended; gap 10:20 1 late controller; plan 10:00 controller; judged 10:20; next 10:25"},

		{"caught up: all", all, "gap 10:20 1 late controller; plan 10:00 controller; plan 10:10 controller; judged 10:20; next 10:25"},
		{
			"caught up: the newest two", func(v *View) { all(v); v.CronJob.Settings.CatchUpLimit = 2 },
			"gap 10:00 1 missed controller limit; gap 10:20 1 late controller; plan 10:10 controller; judged 10:20; next 10:25",
		},
		{
			"caught up: no older than 20 minutes", func(v *View) { all(v); v.CronJob.Settings.CatchUpAge = contract.Duration(20 * time.Minute) },
			"gap 10:00 1 missed controller age; gap 10:20 1 late controller; plan 10:10 controller; judged 10:20; next 10:25",
		},
		{"caught up: latest", func(v *View) {
			all(v)
			v.CronJob.Settings.CatchUp, v.Jobs = contract.CatchUpLatest, []Job{ended(job("10:20"), "10:22", JobFailed)}
		}, "gap 10:00-10:10 2 skipped superseded latest; plan 10:20 job-failed; judged 10:25:01; next 10:25"},
		{
			"a name without room", func(v *View) { all(v); v.CronJob.Settings.CronJob = strings.Repeat("x", 54) },
			"gap 10:00-10:10 2 missed controller no-job-name; gap 10:20 1 late controller; judged 10:20; next 10:31",
		},

		{
			"planned already", func(v *View) { all(v); v.Plans = []Plan{planned("10:00", Controller), planned("10:10", Controller)} },
			"gap 10:20 1 late controller; make 10:00; open 10:00; judged 10:20; next 10:26",
		},
		{"two at a time", func(v *View) {
			all(v)
			v.CronJob.Settings.CatchUpParallel = 2
			v.Plans = []Plan{planned("09:50", Controller), planned("10:00", Controller), planned("10:10", Controller)}
		}, "gap 10:20 1 late controller; make 09:50; make 10:00; open 09:50; open 10:00; judged 10:20; next 10:26"},
		{"one runs", func(v *View) {
			all(v)
			v.Plans = []Plan{madeFor(planned("10:00", Controller), 1, "10:20"), planned("10:10", Controller)}
			v.Jobs = []Job{catchUp(job("10:00"))}
		}, "gap 10:20 1 late controller; open 10:00; judged 10:20; next 10:31"},
		{"one was made, and is not seen yet", func(v *View) {
			all(v)
			v.Plans = []Plan{madeFor(planned("10:00", Controller), 1, "10:24:30"), planned("10:10", Controller)}
		}, "gap 10:20 1 late controller; open 10:00; judged 10:20; next 10:25:30"},
		{"one was made, and has vanished", func(v *View) {
			all(v)
			v.Plans = []Plan{madeFor(planned("10:00", Controller), 1, "10:20"), planned("10:10", Controller)}
		}, "gap 10:20 1 late controller; make 10:00; open 10:00; judged 10:20; next 10:26"},
		{"made often enough", func(v *View) {
			all(v)
			v.Plans = []Plan{madeFor(planned("10:00", Controller), MakeLimit, "10:20"), planned("10:10", Controller)}
		}, "gap 10:20 1 late controller; unplan 10:00 1 missed controller given-up; make 10:10; open 10:00; open 10:10; judged 10:20; next 10:26"},
		{"suspended: nothing is made", func(v *View) {
			all(v)
			v.CronJob.Suspended, v.Plans = true, []Plan{planned("10:00", Controller), planned("10:10", Controller)}
		}, "gap 10:20 1 late controller; note; judged 10:20; next 10:35"},
		{"a plan of another CronJob of the job", func(v *View) {
			all(v)
			p := planned("10:00", Controller)
			p.CronJobUID = "other"
			v.Plans = []Plan{p}
		}, "gap 10:20 1 late controller; plan 10:10 controller; judged 10:20; next 10:25"},
		{"a person's plan: the window has its answer all the same", func(v *View) {
			v.Plans = []Plan{{WindowStart: at("10:00"), By: "ada", CronJobUID: "u"}}
		}, "gap 10:00-10:10 2 missed controller; gap 10:20 1 late controller; make 10:00; open 10:00; judged 10:20; next 10:26"},
		{"catch-up was turned off: the engine's plans go", func(v *View) {
			v.Plans = []Plan{{WindowStart: at("09:40"), By: "ada", CronJobUID: "u"}, planned("09:50", Overlap)}
			v.State.JudgedBefore = at("10:20")
		}, "gap 10:20 1 late controller; unplan 09:50 1 missed overlap; make 09:40; open 09:40; judged 10:20; next 10:26"},
		{"planned before the schedule was edited", func(v *View) {
			all(v)
			v.CronJob.Settings.Since, v.Plans = at("10:15"), []Plan{planned("10:05", Overlap)}
		}, "gap 10:20 1 late controller; unplan 10:05 1 missed overlap outside; judged 10:20; next 10:31"},
		{"planned, and too old by now", func(v *View) {
			all(v)
			v.CronJob.Settings.CatchUpAge, v.Plans = contract.Duration(time.Hour), []Plan{planned("09:20", Overlap)}
			v.State.JudgedBefore = at("10:20")
		}, "gap 10:20 1 late controller; unplan 09:20 1 missed overlap age; judged 10:20; next 10:31"},
		{"planned, and a newer one is due: latest", func(v *View) {
			all(v)
			v.CronJob.Settings.CatchUp, v.Plans, v.State.JudgedBefore = contract.CatchUpLatest, []Plan{planned("10:10", JobFailed)}, at("10:20")
		}, "gap 10:20 1 late controller; unplan 10:10 1 skipped superseded latest; judged 10:20; next 10:31"},

		{"failed, and its Job has given up", func(v *View) {
			v.Executions, v.Jobs = []Execution{failed("10:00", "10:03"), ran("10:10"), ran("10:20")}, []Job{ended(job("10:00"), "10:03", JobFailed)}
		}, "exhaust 10:00 job-failed; open 10:00; judged 10:25:01; next 10:30"},
		{"failed, and its Job tries again", func(v *View) {
			v.Executions, v.Jobs = []Execution{failed("10:00", "10:03"), ran("10:10"), ran("10:20")}, []Job{job("10:00")}
		}, "open 10:00; judged 10:25:01; next 10:31"},
		{"failed long ago, one of the open ones", func(v *View) {
			v.State.Open, v.State.JudgedBefore = []time.Time{at("09:00")}, at("10:25")
			v.Executions = []Execution{failed("09:00", "09:03")}
		}, "exhaust 09:00 job-gone; open 09:00; judged 10:25:01; next 10:30"},
		{"an open one was closed", func(v *View) {
			v.State.Open, v.State.JudgedBefore, v.Executions = []time.Time{at("09:00")}, at("10:25"), []Execution{ran("09:00")}
		}, "judged 10:25:01; next 10:31"},
		{"failed just now", func(v *View) {
			v.State.JudgedBefore = at("10:20")
			v.Executions, v.Jobs = []Execution{failed("10:20", "10:24:30")}, []Job{ended(job("10:20"), "10:24:30", JobFailed)}
		}, "open 10:20; judged 10:25:01; next 10:25:30"},
		{"failed, under a name that others may have", func(v *View) {
			v.CronJob.Settings.JobName, v.State.JudgedBefore = "shop/shared", at("10:20")
			v.Executions, v.Jobs = []Execution{failed("10:20", "10:22")}, []Job{ended(job("10:20"), "10:22", JobFailed)}
		}, "open 10:20; judged 10:25:01; next 10:31"},
		{"its lease ended, and there is no Job", func(v *View) {
			v.State.JudgedBefore, v.Executions = at("10:20"), []Execution{{WindowStart: at("10:00"), UpdatedAt: at("10:00")}}
			v.State.Open = []time.Time{at("10:00")}
		}, "gap 10:20 1 late controller; exhaust 10:00 job-gone; open 10:00; judged 10:20; next 10:30"},
		{"alive without a Job", func(v *View) {
			v.State.JudgedBefore, v.Executions = at("10:20"), []Execution{{WindowStart: at("10:20"), Alive: true, UpdatedAt: at("10:20")}}
		}, "open 10:20; judged 10:25:01; next 10:30"},
		{"failed, and another CronJob's Job ran it", func(v *View) {
			e := failed("10:00", "10:03")
			e.Foreign = true
			v.Executions, v.Jobs = []Execution{e, ran("10:10"), ran("10:20")}, []Job{ended(job("10:00"), "10:01", JobFailed)}
		}, "open 10:00; judged 10:25:01; next 10:31"},
		{"another CronJob's Job has tried what is caught up here", func(v *View) {
			all(v)
			v.State.JudgedBefore, v.State.Open, v.Executions = at("10:20"), []time.Time{at("09:00")}, []Execution{failed("09:00", "10:20")}
			v.Executions[0].Foreign = true
			v.Plans = []Plan{madeFor(planned("09:00", Overlap), 1, "10:15")}
		}, "gap 10:20 1 late controller; make 09:00; open 09:00; judged 10:20; next 10:26"},
		{"a person runs again what was tried", func(v *View) { // by then it counts as never made
			all(v)
			v.State.JudgedBefore, v.State.Open, v.Executions = at("10:20"), []time.Time{at("09:00")}, []Execution{failed("09:00", "10:20")}
			v.Plans = []Plan{madeFor(planned("09:00", Overlap), 0, "10:15")}
			v.Jobs = []Job{catchUp(ended(job("09:00"), "10:16", JobFailed))}
		}, "gap 10:20 1 late controller; make 09:00; open 09:00; judged 10:20; next 10:26"},
		{"serial: one is not makable yet, and no newer one is made", func(v *View) {
			serial(v)
			v.Plans = []Plan{madeFor(planned("10:00", Controller), 1, "10:15"), planned("10:10", Controller)}
			v.Jobs = []Job{catchUp(ended(job("10:00"), "10:24:30", DeadlineExceeded))}
		}, "gap 10:20 1 late controller; open 10:00; judged 10:20; next 10:25:30"},
		{"serial: nor while another CronJob has to make an older one", func(v *View) {
			serial(v)
			v.State.JudgedBefore = at("10:20")
			v.Plans = []Plan{planned("10:00", Controller), planned("10:10", Controller)}
			v.Plans[0].CronJobUID = "other"
		}, "gap 10:20 1 late controller; judged 10:20; next 10:30"},
		{"serial: an older one is made though newer ones have not ended: they wait for it", func(v *View) {
			serial(v)
			v.State.JudgedBefore = at("10:20")
			v.Plans = []Plan{planned("09:50", Controller), planned("10:00", Controller), madeFor(planned("10:10", Controller), 1, "10:22")}
			v.Jobs = []Job{catchUp(job("10:10"))}
		}, "gap 10:20 1 late controller; make 09:50; open 09:50; open 10:10; judged 10:20; next 10:26"},
		{"serial: but not beside a still older one", func(v *View) {
			serial(v)
			v.State.JudgedBefore, v.Executions = at("10:20"), []Execution{ran("09:40")} // its pod ends
			v.Plans = []Plan{planned("09:50", Controller)}
			v.Jobs = []Job{catchUp(job("09:40"))}
		}, "gap 10:20 1 late controller; judged 10:20; next 10:31"},
		{"a person runs a failed one again", func(v *View) {
			v.State.JudgedBefore, v.State.Open, v.Executions = at("10:20"), []time.Time{at("09:00")}, []Execution{failed("09:00", "09:03")}
			v.Plans = []Plan{{WindowStart: at("09:00"), By: "ada", CronJobUID: "u"}}
		}, "gap 10:20 1 late controller; make 09:00; open 09:00; judged 10:20; next 10:26"},
		{"what was caught up failed as well", func(v *View) {
			all(v)
			v.State.JudgedBefore, v.State.Open, v.Executions = at("10:20"), []time.Time{at("09:00")}, []Execution{failed("09:00", "10:20")}
			v.Plans = []Plan{madeFor(planned("09:00", Overlap), 1, "10:15")}
			v.Jobs = []Job{catchUp(ended(job("09:00"), "10:20", JobFailed))}
		}, "gap 10:20 1 late controller; exhaust 09:00 job-failed; open 09:00; judged 10:20; next 10:30"},
	} {
		t.Run(row.name, func(t *testing.T) {
			v := plainView()
			row.with(&v)
			d := Decide(v)
			if got := tell(d); got != row.want {
				t.Errorf("decided\n\t%s\nwant\n\t%s", got, row.want)
			}
			if again := tell(Decide(v)); again != tell(d) {
				t.Errorf("asked again it decides\n\t%s", again)
			}
			for _, g := range slices.Concat(d.Gaps, d.Unplan, d.Exhaust) {
				if g.Reason == "" || g.Windows < 1 || g.Status == "" {
					t.Errorf("a gap lacks something: %+v", g)
				}
			}
		})
	}
}
