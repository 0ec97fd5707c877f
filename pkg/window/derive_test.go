package window

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
)

const (
	stamp = contract.AnnotationScheduledTimestamp
	inst  = contract.AnnotationInstantiate
)

func settings(change ...func(*contract.Settings)) contract.Settings {
	s := contract.Settings{
		Version: 1, CronJob: "sync", JobName: "shop/sync", Schedule: "*/5 * * * *", TimeZone: "Etc/UTC",
		Since: at("2025-06-01T00:00:00Z"), Manual: contract.ManualWindow,
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

// 2025-06-01T10:00:00Z is minute 29146200.
func TestDerive(t *testing.T) {
	noZone := func(s *contract.Settings) { s.TimeZone = "" }
	every := func(s *contract.Settings) { s.Schedule = "@every 1h" }
	with := func(m contract.Manual) func(*contract.Settings) { return func(s *contract.Settings) { s.Manual = m } }
	since := func(text string) func(*contract.Settings) {
		return func(s *contract.Settings) { s.Since = at(text) }
	}
	for _, c := range []struct {
		name    string
		job     Job
		change  []func(*contract.Settings)
		want    string // window_start, or what the refusal says
		jobName string
		end     string
		source  contract.Source
		trigger contract.Trigger
	}{
		{
			name: "the controller's Job", job: Job{Name: "sync-29146200", Annotations: map[string]string{stamp: "2025-06-01T10:00:00Z"}},
			want: "2025-06-01T10:00:00Z", end: "2025-06-01T10:05:00Z", source: contract.SourceTimestamp, trigger: contract.TriggerScheduled,
		},
		{
			name: "the same instant in another zone", job: Job{Name: "sync-29146200", Annotations: map[string]string{stamp: "2025-06-01T03:00:00-07:00"}},
			want: "2025-06-01T10:00:00Z", end: "2025-06-01T10:05:00Z", source: contract.SourceTimestamp, trigger: contract.TriggerScheduled,
		},
		{
			name: "a copy under another name with the same minutes", job: Job{Name: "twin-7-29146200", Annotations: map[string]string{stamp: "2025-06-01T10:00:00Z"}},
			want: "2025-06-01T10:00:00Z", end: "2025-06-01T10:05:00Z", source: contract.SourceTimestamp, trigger: contract.TriggerScheduled,
		},
		{
			name: "a copy under a free name", job: Job{Name: "sync-again", Annotations: map[string]string{stamp: "2025-06-01T10:00:00Z"}},
			want: `ends in "again", but its annotation`,
		},
		{
			name: "name and timestamp disagree", job: Job{Name: "sync-29146205", Annotations: map[string]string{stamp: "2025-06-01T10:00:00Z"}},
			want: `ends in "29146205", but its annotation batch.kubernetes.io/cronjob-scheduled-timestamp says 2025-06-01T10:00:00Z, which is minute 29146200`,
		},
		{
			name: "an edited schedule does not move a Job", job: Job{Name: "sync-29146201", Annotations: map[string]string{stamp: "2025-06-01T10:01:00Z"}},
			want: "2025-06-01T10:01:00Z", end: "2025-06-01T10:05:00Z", source: contract.SourceTimestamp, trigger: contract.TriggerScheduled,
		},
		{
			name: "created hours early", job: Job{Name: "sync-29146560", Created: at("2025-06-01T10:00:00Z"), Annotations: map[string]string{stamp: "2025-06-01T16:00:00Z"}},
			want: "2025-06-01T16:00:00Z", end: "2025-06-01T16:05:00Z", source: contract.SourceTimestamp, trigger: contract.TriggerScheduled,
		},
		{
			name: "no zone: the end is unknown", job: Job{Name: "sync-29146200", Annotations: map[string]string{stamp: "2025-06-01T10:00:00Z"}},
			change: []func(*contract.Settings){noZone}, want: "2025-06-01T10:00:00Z", source: contract.SourceTimestamp, trigger: contract.TriggerScheduled,
		},
		{name: "malformed timestamp", job: Job{Name: "sync-29146200", Annotations: map[string]string{stamp: "yesterday"}}, want: `"yesterday" is no instant`},
		{name: "empty timestamp", job: Job{Name: "sync-29146200", Annotations: map[string]string{stamp: ""}}, want: `"" is no instant`},
		{name: "fractions", job: Job{Name: "sync-29146200", Annotations: map[string]string{stamp: "2025-06-01T10:00:00.5Z"}}, want: "fractions"},
		{name: "year 1", job: Job{Name: "sync-1", Annotations: map[string]string{stamp: "0001-01-01T00:00:00Z"}}, want: "1970"},

		{name: "name only", job: Job{Name: "sync-29146200"}, want: "2025-06-01T10:00:00Z", end: "2025-06-01T10:05:00Z", source: contract.SourceName, trigger: contract.TriggerScheduled},
		{name: "name only, not in the schedule", job: Job{Name: "sync-29146201"}, want: "no instant of schedule"},
		{name: "name only, in the future", job: Job{Name: "sync-29934995"}, want: "in the future"},
		{name: "name only, no zone", job: Job{Name: "sync-29146200"}, change: []func(*contract.Settings){noZone}, want: "set spec.timeZone"},
		{
			name: "seconds in the name are not minutes", job: Job{Name: "sync-1741199325", Created: at("2025-06-01T10:07:31Z")},
			want: "2025-06-01T10:05:00Z", end: "2025-06-01T10:10:00Z", source: contract.SourceManual, trigger: contract.TriggerManual,
		},

		{
			name: "manual means the newest due window", job: Job{Name: "x", Created: at("2025-06-01T10:07:31Z"), Annotations: map[string]string{inst: "manual"}},
			want: "2025-06-01T10:05:00Z", end: "2025-06-01T10:10:00Z", source: contract.SourceManual, trigger: contract.TriggerManual,
		},
		{
			name: "manual at the very instant", job: Job{Name: "x", Created: at("2025-06-01T10:05:00Z"), Annotations: map[string]string{inst: "manual"}},
			want: "2025-06-01T10:05:00Z", end: "2025-06-01T10:10:00Z", source: contract.SourceManual, trigger: contract.TriggerManual,
		},
		{
			name: "manual in the controller's name form", job: Job{Name: "sync-29934995", Created: at("2025-06-01T10:07:31Z"), Annotations: map[string]string{inst: "manual"}},
			want: "2025-06-01T10:05:00Z", end: "2025-06-01T10:10:00Z", source: contract.SourceManual, trigger: contract.TriggerManual,
		},
		{
			name: "a template cannot give a manual Job its window", job: Job{Name: "x-29146100", Created: at("2025-06-01T10:07:31Z"), Annotations: map[string]string{inst: "manual", stamp: "2025-06-01T08:20:00Z"}},
			want: "2025-06-01T10:05:00Z", end: "2025-06-01T10:10:00Z", source: contract.SourceManual, trigger: contract.TriggerManual,
		},
		{
			name: "another tool's Job", job: Job{Name: "sync-manual-001", Created: at("2025-06-01T10:07:31Z"), CronJob: "sync"},
			want: "2025-06-01T10:05:00Z", end: "2025-06-01T10:10:00Z", source: contract.SourceManual, trigger: contract.TriggerManual,
		},
		{
			name: "nothing due since guarding began", job: Job{Name: "x", Created: at("2025-06-01T10:07:31Z"), Annotations: map[string]string{inst: "manual"}},
			change: []func(*contract.Settings){since("2025-06-01T10:06:00Z")}, want: "when guarding began or the schedule was last changed, and 2025-06-01T10:07:31Z; wait for the first",
		},
		{
			name: "due at the instant guarding began", job: Job{Name: "x", Created: at("2025-06-01T10:07:31Z"), Annotations: map[string]string{inst: "manual"}},
			change: []func(*contract.Settings){since("2025-06-01T10:05:00Z")}, want: "2025-06-01T10:05:00Z", end: "2025-06-01T10:10:00Z", source: contract.SourceManual, trigger: contract.TriggerManual,
		},
		{
			name: "manual without zone", job: Job{Name: "x", Annotations: map[string]string{inst: "manual"}}, change: []func(*contract.Settings){noZone},
			want: "set spec.timeZone, for example to Etc/UTC, or set onceguard.dev/manual=separate",
		},
		{name: "manual with @every", job: Job{Name: "x", Annotations: map[string]string{inst: "manual"}}, change: []func(*contract.Settings){every}, want: "onceguard.dev/manual=separate"},
		{
			name: "separate", job: Job{Name: "x", UID: "u-1", Created: at("2025-06-01T10:07:31Z"), Annotations: map[string]string{inst: "manual"}},
			change: []func(*contract.Settings){with(contract.ManualSeparate), noZone}, want: "2025-06-01T10:07:31Z", jobName: "shop/sync@u-1", source: contract.SourceSeparate, trigger: contract.TriggerManual,
		},
		{name: "refuse", job: Job{Name: "x", Annotations: map[string]string{inst: "manual"}}, change: []func(*contract.Settings){with(contract.ManualRefuse)}, want: "onceguard.dev/manual=refuse"},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, c.job, settings(c.change...), c.want, c.jobName, c.end, c.source, c.trigger)
		})
	}
}

// Of two Jobs that were made by hand in one second each is a run of its own, or both mean
// the same window, whatever tool made them.
func TestTwoManualJobsInOneSecond(t *testing.T) {
	made := at("2025-06-01T10:07:31Z")
	jobs := []Job{
		{Name: "a", UID: "u-1", Created: made, CronJob: "sync", Annotations: map[string]string{inst: "manual"}},
		{Name: "b", UID: "u-2", Created: made, CronJob: "sync"},
		{Name: "c", UID: "u-3", Created: made},
	}
	separate := map[Window]bool{}
	for _, job := range jobs {
		check(t, job, settings(), "2025-06-01T10:05:00Z", "", "2025-06-01T10:10:00Z", contract.SourceManual, contract.TriggerManual)
		d, err := Derive(job, settings(func(s *contract.Settings) { s.Manual = contract.ManualSeparate }), made)
		if err != nil {
			t.Fatal(err)
		}
		separate[d.Window] = true
	}
	if len(separate) != len(jobs) {
		t.Errorf("%d runs of their own for %d Jobs: %v", len(separate), len(jobs), separate)
	}
}

// A Job that Onceguard makes for a window that no Job came for: whatever does not agree is
// refused, and says why.
func TestDeriveCatchUp(t *testing.T) {
	job := func(change ...func(*Job)) Job {
		j := Job{
			Name: CatchUpName("sync", at("2025-06-01T10:00:00Z")), UID: "u-9", CronJob: "sync", CronJobUID: "c-1", CatchUp: contract.Enabled,
			Created: at("2025-06-01T11:07:31Z"), Annotations: map[string]string{stamp: "2025-06-01T10:00:00Z"},
		}
		for _, c := range change {
			c(&j)
		}
		return j
	}
	owned := func(s *contract.Settings) { s.CronJobUID = "c-1" }
	for _, c := range []struct {
		name   string
		job    Job
		change []func(*contract.Settings)
		want   string // a refusal has no trigger
		source contract.Source
		trig   contract.Trigger
	}{
		{name: "as made", job: job(), want: "2025-06-01T10:00:00Z", source: contract.SourceTimestamp, trig: contract.TriggerCatchUp},
		{
			name: "the stamp was written before the CronJob had a UID", job: job(), want: "2025-06-01T10:00:00Z",
			change: []func(*contract.Settings){func(s *contract.Settings) { s.CronJobUID = "" }}, source: contract.SourceTimestamp, trig: contract.TriggerCatchUp,
		},
		{
			name: "an orphan of a deleted CronJob", job: job(func(j *Job) { j.CronJob, j.CronJobUID = "", "" }), want: "2025-06-01T10:00:00Z",
			source: contract.SourceTimestamp, trig: contract.TriggerCatchUp,
		},
		{name: "another label", job: job(func(j *Job) { j.CatchUp = "true" }), want: `has the value "true"; it stands only on Jobs that Onceguard makes`},
		{name: "made by hand without the label", job: job(func(j *Job) { j.CatchUp = "" }), want: "but it lacks the label onceguard.dev/catch-up"},
		{name: "no timestamp", job: job(func(j *Job) { j.Annotations = nil }), want: "but no annotation batch.kubernetes.io/cronjob-scheduled-timestamp"},
		{name: "no instant", job: job(func(j *Job) { j.Annotations = map[string]string{stamp: "then"} }), want: `"then" is no instant`},
		{name: "name and timestamp disagree", job: job(func(j *Job) { j.Name = "sync-r29146205" }), want: "means 2025-06-01T10:05:00Z, but its annotation"},
		{name: "within the minute", job: job(func(j *Job) { j.Annotations = map[string]string{stamp: "2025-06-01T10:00:30Z"} }), want: "says 2025-06-01T10:00:30Z"},
		{name: "the template carries the label", job: job(func(j *Job) { j.Name = "sync-29146200" }), want: "if the CronJob's template carries it, remove it there"},
		{name: "the name of another CronJob", job: job(func(j *Job) { j.Name = "other-r29146200" }), want: "is not of the form sync-r<minutes since 1970>"},
		{name: "no minutes", job: job(func(j *Job) { j.Name = "sync-r029146200" }), want: "is not of the form"},
		{name: "owned by another CronJob", job: job(func(j *Job) { j.CronJob = "other" }), want: "belongs to CronJob other, but it was prepared for CronJob sync"},
		{name: "owned by a CronJob of another time", job: job(func(j *Job) { j.CronJobUID = "c-0" }), want: "with UID c-0, but it was prepared for the one with UID c-1"},
		{
			name: "no instant of the schedule", job: job(func(j *Job) {
				j.Name, j.Annotations = "sync-r29146201", map[string]string{stamp: "2025-06-01T10:01:00Z"}
			}), want: `which is no instant of schedule "*/5 * * * *" in Etc/UTC`,
		},
		{name: "no zone", job: job(), change: []func(*contract.Settings){func(s *contract.Settings) { s.TimeZone = "" }}, want: "cannot be computed: it has no time zone"},
		{name: "no schedule", job: job(), change: []func(*contract.Settings){func(s *contract.Settings) { s.Schedule = "x" }}, want: "is not a cron schedule"},
		{
			name: "kubectl create job sync-r29146200 --from of it", job: job(func(j *Job) { j.Annotations[inst] = "manual" }),
			want: "2025-06-01T11:05:00Z", source: contract.SourceManual, trig: contract.TriggerManual,
		},
		{
			name: "a tool's Job in that form", job: job(func(j *Job) { j.CatchUp, j.Annotations = "", nil }),
			want: "2025-06-01T11:05:00Z", source: contract.SourceManual, trig: contract.TriggerManual,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			end := ""
			if c.trig != "" {
				end = at(c.want).Add(5 * time.Minute).Format(time.RFC3339)
			}
			check(t, c.job, settings(append([]func(*contract.Settings){owned}, c.change...)...), c.want, "", end, c.source, c.trig)
		})
	}
}

func TestDeriveWithoutCronJob(t *testing.T) {
	s := settings(func(s *contract.Settings) { s.CronJob, s.Schedule, s.TimeZone = "", "", "" })
	check(t, Job{Name: "load-7", WindowStart: "2025-06-01T12:00:00+02:00"}, s, "2025-06-01T10:00:00Z", "", "", contract.SourceDeclared, contract.TriggerScheduled)
	check(t, Job{Name: "load-7", WindowStart: "noon"}, s, `"noon" is no instant`, "", "", "", "")
	check(t, Job{Name: "load-7"}, s, "set the annotation onceguard.dev/window-start", "", "", "", "")
	check(t, Job{Name: "load-7", CronJob: "sync", WindowStart: "2025-06-01T10:00:00Z"}, s, "kubectl create job --from=cronjob/sync", "", "", "", "")
}

// Each index of an Indexed Job is a window of its own.
func TestDeriveIndex(t *testing.T) {
	indexed := func(s *contract.Settings) { s.Indexed = true }
	job := func(index string) Job {
		return Job{Name: "sync-29146200", UID: "u-1", Created: at("2025-06-01T10:07:31Z"), Index: index, Annotations: map[string]string{stamp: "2025-06-01T10:00:00Z"}}
	}
	for index, want := range map[string]string{"0": "shop/sync#0", "17": "shop/sync#17"} {
		check(t, job(index), settings(indexed), "2025-06-01T10:00:00Z", want, "2025-06-01T10:05:00Z", contract.SourceTimestamp, contract.TriggerScheduled)
	}
	separate := job("3")
	separate.Annotations = map[string]string{inst: "manual"}
	check(t, separate, settings(indexed, func(s *contract.Settings) { s.Manual = contract.ManualSeparate }),
		"2025-06-01T10:07:31Z", "shop/sync#3@u-1", "", contract.SourceSeparate, contract.TriggerManual)
	alone := settings(indexed, func(s *contract.Settings) { s.CronJob = "" })
	check(t, Job{Name: "load", Index: "1", WindowStart: "2025-06-01T10:00:00Z"}, alone, "2025-06-01T10:00:00Z", "shop/sync#1", "", contract.SourceDeclared, contract.TriggerScheduled)

	for _, c := range []struct{ index, want string }{
		{"", "is Indexed, but the pod has no annotation batch.kubernetes.io/job-completion-index"},
		{"x", `"x" is no index`},
		{"-1", `"-1" is no index`},
		{"07", `"07" is no index`},
		{"1@u", `"1@u" is no index`},
		{"2147483648", "is no index"},
	} {
		check(t, job(c.index), settings(indexed), c.want, "", "", "", "")
	}
	check(t, job("0"), settings(), "was prepared as NonIndexed", "", "", "", "")
}

// The window before is what an ordered one waits for.
func TestDerivePrevious(t *testing.T) {
	for name, job := range map[string]Job{
		"scheduled": {Name: "sync-29146200", Annotations: map[string]string{stamp: "2025-06-01T10:00:00Z"}},
		"by name":   {Name: "sync-29146200"},
		"manual":    {Name: "x", Created: at("2025-06-01T10:02:31Z")},
	} {
		if d, err := Derive(job, settings(), at("2025-06-01T12:00:00Z")); err != nil || !d.Previous.Equal(at("2025-06-01T09:55:00Z")) {
			t.Errorf("%s: %+v %v", name, d, err)
		}
	}
}

func check(t *testing.T, job Job, s contract.Settings, want, jobName, end string, source contract.Source, trigger contract.Trigger) {
	t.Helper()
	d, err := Derive(job, s, at("2025-06-01T12:00:00Z"))
	if source == "" {
		var refusal Refusal
		if !errors.As(err, &refusal) || !strings.Contains(string(refusal), want) {
			t.Fatalf("got %+v and %q, want a refusal with %q", d, err, want)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if jobName == "" {
		jobName = s.JobName
	}
	wantEnd := time.Time{}
	if end != "" {
		wantEnd = at(end)
	}
	if d.Window != (Window{JobName: jobName, Start: at(want)}) || !d.End.Equal(wantEnd) || d.Source != source || d.Trigger != trigger {
		t.Fatalf("got %+v", d)
	}
}

func FuzzDerive(f *testing.F) {
	f.Add("sync-29146200", "2025-06-01T10:00:00Z", "", "", "*/5 * * * *", "Etc/UTC")
	f.Add("sync-29146200", "", "manual", "", "@every 1h", "")
	f.Add("sync-r29146200", "2025-06-01T10:00:00Z", "", "enabled", "*/5 * * * *", "Europe/Berlin")
	f.Fuzz(func(t *testing.T, name, timestamp, instantiate, label, schedule, zone string) {
		job := Job{Name: name, UID: "u", CatchUp: label, Created: at("2025-06-01T10:07:31Z"), Annotations: map[string]string{}}
		if timestamp != "" {
			job.Annotations[stamp] = timestamp
		}
		if instantiate != "" {
			job.Annotations[inst] = instantiate
		}
		s := settings(func(s *contract.Settings) { s.Schedule, s.TimeZone = schedule, zone })
		d, err := Derive(job, s, at("2025-06-01T12:00:00Z"))
		if (err == nil) == d.Window.Start.IsZero() {
			t.Fatalf("neither a window nor a refusal, or both: %+v %v", d, err)
		}
		later, err2 := Derive(job, s, at("2025-07-01T12:00:00Z"))
		if err == nil && (err2 != nil || later.Window != d.Window) {
			t.Fatalf("a retry means another window: %+v, %+v %v", d, later, err2)
		}
	})
}
