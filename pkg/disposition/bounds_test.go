package disposition

import (
	"strings"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
)

// However long nobody looked: ranges stay ranges, and nothing is done once a window.
func TestLongGapsStayRanges(t *testing.T) {
	v := plainView()
	s := &v.CronJob.Settings
	s.Schedule, s.Since = "* * * * *", v.Now.AddDate(-2, 0, 0)
	v.State.JudgedBefore = s.Since

	d := Decide(v)
	if len(d.Gaps) != 2 || d.Gaps[0].Windows != 2*365*24*60-1 || d.Gaps[0].Status != Missed || d.Gaps[1].Status != Late {
		t.Errorf("two years of a minutely schedule: %v", d.Gaps)
	}

	v.State.Suspensions = []Span{{From: v.Now.AddDate(-1, 0, 0), To: v.Now.AddDate(0, -6, 0)}}
	if d = Decide(v); len(d.Gaps) != 4 || d.Gaps[1].Status != Skipped || d.Gaps[1].Windows != 184*24*60 {
		t.Errorf("with a suspension in the middle: %v", d.Gaps)
	}
	if sum := d.Gaps[0].Windows + d.Gaps[1].Windows + d.Gaps[2].Windows; sum != 2*365*24*60-1 {
		t.Errorf("%d windows with a suspension in the middle", sum)
	}

	all(&v)
	s.CatchUpLimit, s.CatchUpAge = contract.MaxCatchUpLimit, contract.Duration(contract.MaxCatchUpAge)
	if d = Decide(v); len(d.Plans) != contract.MaxCatchUpLimit-2 { // one is late, and one may be so soon
		t.Errorf("%d windows are planned, the limit is %d", len(d.Plans), s.CatchUpLimit)
	}
}

// A Job that hangs for ever does not keep the windows behind it from being judged, whatever
// their number.
func TestAWindowThatIsWaitedForHoldsUpOnlySoMany(t *testing.T) {
	v := plainView()
	all(&v)
	v.CronJob.Settings.Schedule, v.CronJob.Settings.Since = "* * * * *", at("08:00").AddDate(0, 0, -3)
	v.State.JudgedBefore = v.CronJob.Settings.Since
	stuck := v.State.JudgedBefore
	hung := Job{WindowStart: stuck, Name: "hung", Created: stuck, Reason: Unschedulable}
	v.Jobs = []Job{hung}
	for w := stuck.Add(time.Minute); !w.After(v.Now); w = w.Add(time.Minute) {
		v.Executions = append(v.Executions, Execution{WindowStart: w, Closed: true})
	}
	d := Decide(v)
	if len(d.Gaps) != 1 || d.Gaps[0].Status != Missed || d.Gaps[0].Reason != Unschedulable || len(d.State.Open) != 1 || !d.State.JudgedBefore.After(at("10:20")) {
		t.Fatalf("%s", tell(d))
	}
	// And should it fail after all, it is caught up.
	v.State, v.Executions = d.State, nil
	v.Jobs = []Job{ended(hung, "10:22", DeadlineExceeded)}
	if d = Decide(v); len(d.Plans) != 0 || len(d.State.Open) != 0 { // not this one: it is not among the newest hundred
		t.Errorf("%s", tell(d))
	}
	v.CronJob.Settings.CatchUpLimit, v.CronJob.Settings.CatchUpAge = contract.MaxCatchUpLimit, contract.Duration(contract.MaxCatchUpAge)
	if d = Decide(v); len(d.Plans) != 1 || !d.Plans[0].WindowStart.Equal(stuck) {
		t.Errorf("%s", tell(d))
	}
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	v := plainView()
	v.State.JudgedBefore = at("08:00")
	for i := range 300 {
		from := at("08:00").Add(time.Duration(i) * 20 * time.Second)
		v.State.Suspensions = append(v.State.Suspensions, Span{From: from, To: from.Add(10 * time.Second)})
	}
	v.Jobs = []Job{job("08:00")} // all of it reaches behind what is judged
	for i := range 1500 {
		v.Executions = append(v.Executions, Execution{WindowStart: at("08:00").Add(time.Duration(i-1500) * time.Minute), Failed: true, UpdatedAt: v.Now})
	}
	d := Decide(v)
	if n := len(d.State.Suspensions); n != mostSpans || !d.State.Suspensions[0].From.Equal(at("08:00")) {
		t.Errorf("%d suspensions", n)
	}
	if n := len(d.State.Open); n != mostOpen || !d.State.Open[n-1].Equal(at("07:59")) {
		t.Errorf("%d open windows, the newest %v", n, d.State.Open[n-1])
	}
}

func TestNotesNameTheCure(t *testing.T) {
	for what, row := range map[string]struct {
		with func(v *View)
		want []string
	}{
		"no zone":  {func(v *View) { v.CronJob.Settings.TimeZone = "" }, []string{"spec.timeZone", "Etc/UTC"}},
		"every":    {func(v *View) { v.CronJob.Settings.Schedule = "@every 5m" }, []string{"@every 5m", "five fields"}},
		"unparsed": {func(v *View) { v.CronJob.Settings.Schedule = "99 * * * *" }, []string{"spec.schedule", "99 * * * *", "correct it"}},
		"never":    {func(v *View) { v.CronJob.Settings.Schedule = "0 0 31 4 *" }, []string{"0 0 31 4 *", "never fires", "correct it"}},
		"another ledger": {func(v *View) {
			j := ended(job("10:10"), "10:11", "")
			j.Complete = true
			v.Jobs = []Job{j}
		}, []string{"complete", "another ledger", "same URL", "deleted"}},
	} {
		v := plainView()
		row.with(&v)
		for _, want := range row.want {
			if d := Decide(v); !strings.Contains(d.Note, want) {
				t.Errorf("%s: %q does not say %q", what, d.Note, want)
			}
		}
	}
}

// dst=once: a civil time that does not occur is a window that only the engine can make a Job
// for, whether or not anything is caught up.
func TestAWindowOfTheDSTRuleIsMadeAtOnce(t *testing.T) {
	v := plainView()
	s := &v.CronJob.Settings
	s.Schedule, s.TimeZone, s.DST = "30 2 * * *", "Europe/Berlin", contract.DSTOnce
	moved := time.Date(2026, 3, 29, 1, 30, 0, 0, time.UTC) // 03:30 there; 02:30 is skipped
	s.Since, v.State.JudgedBefore = moved.Add(-time.Hour), moved.Add(-time.Hour)
	v.Now = moved.Add(-30 * time.Minute)
	v.Upto = v.Now
	if d := Decide(v); !d.Next.Equal(moved) {
		t.Errorf("the next look is at %v, the window at %v", d.Next, moved)
	}
	v.Now = moved.Add(time.Second)
	v.Upto = v.Now
	d := Decide(v)
	if len(d.Plans) != 1 || !d.Plans[0].WindowStart.Equal(moved) || d.Plans[0].Reason != ClockMoved || !d.Next.Equal(v.Now) {
		t.Fatalf("%s", tell(d))
	}
	v.State, v.Plans = d.State, d.Plans
	if d = Decide(v); len(d.Make) != 1 || len(d.Unplan)+len(d.Plans) != 0 {
		t.Errorf("%s", tell(d))
	}
	s.DST = ""
	if d = Decide(v); len(d.Unplan) != 1 || d.Unplan[0].Rule != Outside {
		t.Errorf("without the rule: %s", tell(d))
	}
	// Nobody was there for two days.
	s.DST, v.Plans, v.State = contract.DSTOnce, nil, State{JudgedBefore: moved.Add(-time.Hour)}
	v.Now = moved.Add(48 * time.Hour)
	v.Upto = v.Now
	if d = Decide(v); len(d.Plans) != 0 || len(d.Gaps) == 0 || d.Gaps[0].Status != Missed {
		t.Errorf("two days late: %s", tell(d))
	}
}
