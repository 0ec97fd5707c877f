package engine

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/disposition"
	"github.com/onceguard/onceguard/pkg/gaps"
)

// handOver ends the windows of a former schedule: those before the edit that have no answer
// yet get one now, as the controller goes by the new schedule from then on. None of them is
// caught up. What is recorded afterwards begins with the edit.
func (w *worker) handOver(ctx context.Context, s *subject, c *cronJob, now time.Time) error {
	former, since := s.recorded, c.Settings.Since
	upto := earliest(since.Add(-time.Second), now)
	known, err := look(ctx, w.book, []gaps.Ask{{
		JobName: former.JobName, CronJobUID: string(s.uid), From: former.State.JudgedBefore, Upto: upto, Open: former.State.Open,
	}})
	if err != nil {
		return err
	}
	d := ending(former, c, known[0], s.seen, w.engine.cluster.jobsOf(s.uid), upto)
	next := former
	next.State = disposition.State{JudgedBefore: since, Open: d.State.Open, Suspensions: former.State.Suspensions}
	next.Note = ""
	if known[0].Upto.Before(upto) { // very many executions: go on from there
		next.State.JudgedBefore = known[0].Upto.Add(time.Second)
	}
	if err := judge(ctx, w.book, []gaps.Judgement{{Schedule: next, From: former.State.JudgedBefore, Gaps: d.Gaps}}); err != nil {
		return fmt.Errorf("CronJob %s: %w", c.text(), err)
	}
	w.engine.Counters.Judged.Add(1)
	w.log.Info("the schedule was edited; windows count anew", zap.String("cronjob", c.text()),
		zap.String("before", former.Schedule), zap.String("now", c.Settings.Schedule), zap.Time("since", since))
	s.recorded, s.state, s.gaps, s.written = next, next.State, nil, time.Time{}
	if s.state.JudgedBefore.Before(since) {
		return w.handOver(ctx, s, c, now)
	}
	return nil
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
