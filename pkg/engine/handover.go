package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/disposition"
	"github.com/onceguard/onceguard/pkg/gaps"
)

// mostPages bounds how often the ledger is asked about the windows of a former schedule.
const mostPages = 20

// handOver ends the windows of a former schedule: those before the edit that have no answer
// yet get one now, as the controller goes by the new schedule from then on. None of them is
// caught up. What is recorded afterwards begins with the edit.
func (w *worker) handOver(ctx context.Context, s *subject, c *cronJob, now time.Time) error {
	since := c.Settings.Since
	if err := w.finish(ctx, s, c, earliest(since.Add(-time.Second), now), since); err != nil {
		return err
	}
	w.log.Info("the schedule was edited; windows count anew", zap.String("cronjob", c.text()), zap.String("now", c.Settings.Schedule), zap.Time("since", since))
	return nil
}

// finish answers the windows of what is recorded of s up to upto. What is judged afterwards
// begins at next.
func (w *worker) finish(ctx context.Context, s *subject, c *cronJob, upto, next time.Time) error {
	for range mostPages {
		former := s.recorded
		known, err := look(ctx, w.book, []gaps.Ask{{
			JobName: former.JobName, CronJobUID: string(s.uid), CronJob: former.CronJob, From: former.State.JudgedBefore, Upto: upto, Open: former.State.Open,
		}})
		if err != nil {
			return err
		}
		d := ending(former, c, known[0], s.seen, w.engine.cluster.jobsOf(s.uid), upto)
		row := former
		row.State, row.Note = disposition.State{JudgedBefore: next, Open: d.State.Open, Suspensions: former.State.Suspensions}, ""
		whole := !known[0].Upto.Before(upto)
		if !whole { // very many executions: go on from there
			row.State.JudgedBefore = known[0].Upto.Add(time.Second)
		}
		if err := judge(ctx, w.book, []gaps.Judgement{{Schedule: row, From: former.State.JudgedBefore, Gaps: d.Gaps}}); err != nil {
			return fmt.Errorf("CronJob %s: %w", c.text(), err)
		}
		w.engine.Counters.Judged.Add(1)
		s.recorded, s.state, s.gaps, s.written = row, row.State, nil, time.Time{}
		if whole {
			return nil
		}
	}
	return fmt.Errorf("CronJob %s: its windows before %s are too many to be judged at once; going on", c.text(), upto.Format(time.RFC3339))
}

// goneFor records that a CronJob is no longer there, or in another ledger.
func (w *worker) goneFor(ctx context.Context, s *subject, now time.Time) error {
	if s.recorded.CronJobUID == "" {
		for key, r := range w.rows { // one that went before its first look
			if key.uid == s.uid && r.Gone.IsZero() {
				s.recorded = r
			}
		}
	}
	if s.recorded.CronJobUID == "" {
		return nil
	}
	w.mu.Lock()
	c, at := s.left, s.leftAt
	w.mu.Unlock()
	if c == nil {
		c, at = trace(s.recorded), now
	}
	return w.end(ctx, s, c, earliest(at, now))
}

// end records that a CronJob is no longer there, or no longer under that name: the windows
// that were due until then get their answer.
func (w *worker) end(ctx context.Context, s *subject, c *cronJob, upto time.Time) error {
	if upto = upto.Truncate(time.Second); !s.recorded.State.JudgedBefore.After(upto) {
		err := w.finish(ctx, s, c, upto, upto.Add(time.Second))
		if errors.Is(err, gaps.ErrInvalid) {
			w.log.Error("the last windows of a CronJob could not be recorded", zap.String("cronjob", s.recorded.CronJob), zap.Error(err))
		} else if err != nil {
			return err
		}
	}
	if err := gone(ctx, w.book, s.uid); err != nil {
		return err
	}
	w.log.Info("CronJob gone", zap.String("cronjob", s.recorded.CronJob), zap.String("job_name", s.recorded.JobName))
	return nil
}

// bury records that nobody looks at a CronJob any more. When it went is not known; but where
// there is one in its place, its windows until that one was guarded are answered.
func (w *worker) bury(ctx context.Context, r gaps.Schedule) error {
	s := &subject{uid: types.UID(r.CronJobUID), recorded: r, state: r.State}
	upto := time.Time{}
	for _, c := range w.engine.cluster.cronJobs() {
		if c.text() == r.CronJob && c.Settings.JobName == r.JobName && c.Settings.Ledger == w.name && c.Settings.Since.After(r.LookedAt) {
			upto = c.Settings.Since.Add(-time.Second)
		}
	}
	err := w.end(ctx, s, trace(r), upto)
	if _, outdated := errors.AsType[*gaps.Outdated](err); outdated {
		return nil // somebody looks at it after all
	}
	return err
}

// trace is what the ledger knows of a CronJob that is not there.
func trace(r gaps.Schedule) *cronJob {
	namespace, name, _ := strings.Cut(r.CronJob, "/")
	c := &cronJob{namespace: namespace, name: name, uid: types.UID(r.CronJobUID)}
	c.Settings.CronJob, c.Settings.CronJobUID, c.Settings.JobName = name, r.CronJobUID, r.JobName
	return c
}

// ending decides the windows of a former schedule up to upto as if its next window had been
// due long since, so that none of them can come any more.
func ending(former gaps.Schedule, c *cronJob, known gaps.Seen, saw map[types.UID]seen, jobs []job, upto time.Time) disposition.Decision {
	v := disposition.View{
		CronJob: c.CronJob, State: former.State, ClosedBefore: known.ClosedBefore, Upto: earliest(known.Upto, upto), Executions: known.Executions,
	}
	v.CronJob.Settings.Schedule, v.CronJob.Settings.TimeZone, v.CronJob.Settings.DST = former.Schedule, former.TimeZone, former.DST
	v.CronJob.Settings.CatchUp, v.CronJob.Settings.SuspendedWindows = "", contract.SuspendedWindows("")
	v.CronJob.Settings.Since = former.Since
	n := len(former.State.Suspensions)
	v.CronJob.Suspended = n > 0 && former.State.Suspensions[n-1].To.IsZero()
	v.Now = upto.Add(2 * disposition.Grace)
	if sched, err := v.CronJob.Schedule(); err == nil && sched.Known() {
		if next := sched.Next(upto); !next.IsZero() {
			v.Now = next.Add(2 * disposition.Grace)
		}
	}
	for _, j := range jobs {
		if at := j.window(); !at.Before(former.Since) && !at.After(upto) {
			was := saw[j.uid]
			if isJudged(former.State, at) { // what was seen of it may be forgotten
				was.ended, was.complete = true, true
			}
			if was.reason == "" {
				was.reason = disposition.Starting
			}
			v.Jobs = append(v.Jobs, disposition.Job{
				WindowStart: at, Name: j.name, CatchUp: j.catchUp, Created: time.Unix(j.created, 0).UTC(),
				Ended: was.ended, EndedAt: was.endedAt, Complete: was.complete, Reason: was.reason, Evidence: was.evidence,
			})
		}
	}
	d := disposition.Decide(v)
	for i := range d.Gaps {
		if g := &d.Gaps[i]; g.Status == disposition.Late {
			// Its Job may still run it; then that is the answer.
			g.Status = disposition.Missed
		}
	}
	return d
}
