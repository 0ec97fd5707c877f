package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/disposition"
	"github.com/onceguard/onceguard/pkg/gaps"
)

// evidenceTime is how long the cluster is asked about the CronJobs of one look.
const evidenceTime = 20 * time.Second

// one is a CronJob in a look.
type one struct {
	*subject
	c        *cronJob
	jobs     []job // those that were looked at
	heard    *bulletin
	news     map[types.UID]bool
	decision disposition.Decision
	plans    []disposition.Plan
	before   []disposition.Gap // what was recorded before the decision
	more     bool              // the ledger had more to say than one look takes
}

// look takes the CronJobs of a batch all the way: what the ledger knows, what the cluster
// says about the rest, the decision, what is written, the Jobs that are made. All of them
// are back in the heap afterwards; the error is about the ledger.
func (w *worker) look(ctx context.Context, due []*subject) (err error) {
	now := w.now().Truncate(time.Microsecond) // as the ledger keeps it
	back := map[*subject]bool{}
	giveBack := func(s *subject, at time.Time, restless bool) {
		back[s] = true
		w.put(s, at, restless)
	}
	defer func() {
		for _, s := range due {
			switch {
			case back[s]:
			case err != nil && len(due) == 1: // it shall not hold up others
				s.pause = min(max(2*s.pause, firstPause), longestPause)
				w.put(s, now.Add(s.pause), true)
			default:
				w.put(s, now, true)
			}
		}
	}()
	var all []*one
	heard := w.engine.bulletin()
	for _, s := range due {
		c := w.engine.cluster.cronJob(s.uid)
		if c != nil && !w.engine.cluster.whole(c.namespace) {
			giveBack(s, now.Add(unsettled), true)
			continue
		}
		leaves := c == nil || c.Settings.Ledger != w.name
		err := w.enter(ctx, s, c, leaves, now)
		if pause, own := w.aside(s, err); own {
			giveBack(s, now.Add(pause), true)
			continue
		}
		if err != nil {
			return err
		}
		if leaves {
			back[s] = true
			w.forget(s)
			continue
		}
		w.mu.Lock()
		o := &one{subject: s, c: c, news: s.news, heard: heard}
		s.news = nil
		w.mu.Unlock()
		all = append(all, o)
	}
	if len(all) == 0 {
		return nil
	}
	known, err := w.ask(ctx, all, now)
	if err != nil {
		return err
	}
	w.engine.Counters.Looks.Add(int64(len(all)))
	var judged []*one
	enough, cancel := context.WithTimeout(ctx, evidenceTime)
	defer cancel()
	for i, o := range all {
		switch {
		case known[i] == nil:
			giveBack(o.subject, now.Add(longestPause), true)
			continue
		case enough.Err() != nil && i > 0: // the others are not to wait for a slow API server
			w.mu.Lock()
			o.subject.news = o.news
			w.mu.Unlock()
			giveBack(o.subject, now, true)
			continue
		}
		if err := w.decide(ctx, o, *known[i], now); err != nil {
			w.log.Warn("why windows did not run cannot be asked; looking again", zap.String("cronjob", o.c.text()), zap.Error(err))
			giveBack(o.subject, now.Add(disposition.Grace/2), true)
			continue
		}
		judged = append(judged, o)
	}
	if err := w.judge(ctx, judged, now); err != nil {
		return err
	}
	for i, o := range judged {
		if err := w.make(ctx, o); err != nil {
			for _, o := range judged[i:] {
				w.tell(ctx, o) // next time it is no news
			}
			return err
		}
		w.tell(ctx, o)
		o.forget()
		o.pause = 0
		giveBack(o.subject, o.next(now), o.restless(now))
	}
	return nil
}

// enter brings a CronJob that is looked at in line with the cluster.
func (w *worker) enter(ctx context.Context, s *subject, c *cronJob, leaves bool, now time.Time) error {
	if leaves {
		return w.goneFor(ctx, s, now)
	}
	w.mu.Lock()
	s.left = nil
	w.mu.Unlock()
	return w.begin(ctx, s, c, now)
}

// aside tells whether an error is about one CronJob only: others go on, and it is looked at
// again after the pause.
func (w *worker) aside(s *subject, err error) (pause time.Duration, own bool) {
	if _, outdated := errors.AsType[*gaps.Outdated](err); outdated {
		w.outdated(s)
		return settle, true
	}
	if errors.Is(err, gaps.ErrInvalid) {
		w.log.Error("the ledger does not accept what is asked of it; this CronJob waits, others go on", zap.String("cronjob", s.recorded.CronJob), zap.String("uid", string(s.uid)), zap.Error(err))
		return longestPause, true
	}
	return 0, false
}

// ask asks the ledger about all; nil is the answer about one that it does not accept.
func (w *worker) ask(ctx context.Context, all []*one, now time.Time) ([]*gaps.Seen, error) {
	asks, known := make([]gaps.Ask, 0, len(all)), make([]*gaps.Seen, len(all))
	for _, o := range all {
		asks = append(asks, gaps.Ask{JobName: o.c.Settings.JobName, CronJobUID: string(o.uid), CronJob: o.c.text(), From: o.state.JudgedBefore, Upto: latest(now, o.state.JudgedBefore), Open: o.state.Open})
	}
	answers, err := look(ctx, w.book, asks)
	for i := range answers {
		known[i] = &answers[i]
	}
	if !errors.Is(err, gaps.ErrInvalid) {
		return known, err
	}
	for i, o := range all { // one by one: the others are to have their answers
		answers, err := look(ctx, w.book, asks[i:i+1])
		if _, own := w.aside(o.subject, err); own {
			continue
		}
		if err != nil {
			return nil, err
		}
		known[i] = &answers[0]
	}
	return known, nil
}

// begin brings what is remembered of a CronJob in line with what it is now: a new one begins
// where guarding began, and so does one whose schedule, zone, ledger or job name was edited.
func (w *worker) begin(ctx context.Context, s *subject, c *cronJob, now time.Time) error {
	if s.recorded.CronJobUID == "" {
		key := rowKey{c.Settings.JobName, s.uid}
		if r, ok := w.rows[key]; ok {
			s.recorded, s.state, s.gaps = r, r.State, r.State.Recorded
			delete(w.rows, key)
		}
	}
	if s.recorded.CronJobUID != "" && s.recorded.JobName != c.Settings.JobName {
		if err := w.end(ctx, s, c, earliest(c.Settings.Since.Add(-time.Second), now)); err != nil {
			return err
		}
		s.reset()
	}
	if !s.state.JudgedBefore.Before(c.Settings.Since) {
		return nil
	}
	if s.recorded.CronJobUID != "" {
		return w.handOver(ctx, s, c, now)
	}
	s.state.JudgedBefore = c.Settings.Since
	return nil
}

// decide fills the decision of one CronJob. The error is about the API server.
func (w *worker) decide(ctx context.Context, o *one, known gaps.Seen, now time.Time) error {
	o.before = o.gaps
	o.plans, o.more = known.Plans, known.Upto.Before(now) && known.Upto.After(o.state.JudgedBefore)
	v := disposition.View{
		Now: now, CronJob: o.c.CronJob, State: o.state, ClosedBefore: known.ClosedBefore, Upto: earliest(known.Upto, now),
		Executions: known.Executions, Plans: known.Plans,
	}
	jobs, err := w.views(ctx, o, v)
	if err != nil {
		return err
	}
	v.Jobs = jobs
	if v.CronJob.RefusedReason, v.CronJob.Refused, v.CronJob.RefusedAt, err = w.refusals(ctx, o, v); err != nil {
		return err
	}
	o.decision = disposition.Decide(v)
	return nil
}

// judge writes what has changed, with one statement.
func (w *worker) judge(ctx context.Context, all []*one, now time.Time) error {
	var writes []gaps.Judgement
	var of []*one
	for _, o := range all {
		if j, changed := o.judgement(now); changed {
			writes, of = append(writes, j), append(of, o)
		} else {
			o.state = o.decision.State
		}
	}
	err := judge(ctx, w.book, writes)
	if errors.Is(err, gaps.ErrInvalid) && len(writes) > 1 {
		// One that is refused must not keep the others from being written.
		for i, o := range of {
			if err := w.judgeOne(ctx, o, writes[i], now); err != nil {
				return err
			}
		}
		return nil
	}
	if errors.Is(err, gaps.ErrInvalid) {
		w.refusedJudgement(of[0], err)
		return nil
	}
	outdated, some := errors.AsType[*gaps.Outdated](err)
	if err != nil && !some {
		return err
	}
	for i, o := range of {
		if some && slices.Contains(outdated.Judgements, i) {
			o.missed(w)
			continue
		}
		w.engine.Counters.Judged.Add(1)
		o.record(writes[i], now)
	}
	return nil
}

func (w *worker) judgeOne(ctx context.Context, o *one, j gaps.Judgement, now time.Time) error {
	err := judge(ctx, w.book, []gaps.Judgement{j})
	switch _, outdated := errors.AsType[*gaps.Outdated](err); {
	case errors.Is(err, gaps.ErrInvalid):
		w.refusedJudgement(o, err)
		return nil
	case outdated:
		o.missed(w)
		return nil
	case err != nil:
		return err
	}
	w.engine.Counters.Judged.Add(1)
	o.record(j, now)
	return nil
}

// refusedJudgement leaves a CronJob as it was: nothing is made of what was not recorded.
func (w *worker) refusedJudgement(o *one, err error) {
	w.log.Error("a judgement was not accepted; this CronJob waits, others go on", zap.String("cronjob", o.c.text()), zap.Error(err))
	o.decision = disposition.Decision{State: o.state, Next: w.now().Add(longestPause), Note: shorten("its windows cannot be recorded: " + err.Error())}
}

// missed is for one whose judgement was outdated.
func (o *one) missed(w *worker) {
	w.outdated(o.subject)
	o.decision = disposition.Decision{Next: w.now().Add(settle)}
}

// outdated drops what is remembered of a CronJob that another engine has judged meanwhile, or
// this one without hearing of it; the next look reads it again.
func (w *worker) outdated(s *subject) {
	w.log.Info("it has been judged meanwhile; reading again", zap.String("cronjob", s.recorded.CronJob), zap.String("uid", string(s.uid)))
	s.reset()
	w.loaded = time.Time{}
}

// reset drops what is remembered of the ledger.
func (s *subject) reset() {
	s.recorded, s.state, s.gaps, s.written = gaps.Schedule{}, disposition.State{}, nil, time.Time{}
}

// judgement is what there is to write, and whether it differs from what is written.
func (o *one) judgement(now time.Time) (gaps.Judgement, bool) {
	d, set := o.decision, o.c.Settings
	j := gaps.Judgement{
		Schedule: gaps.Schedule{
			JobName: set.JobName, CronJobUID: string(o.uid), CronJob: o.c.text(), Schedule: set.Schedule, TimeZone: set.TimeZone,
			DST: set.DST, CatchUp: set.CatchUp, Indexes: indexes(set), Since: set.Since, State: d.State, Note: o.note(),
		},
		From: o.recorded.State.JudgedBefore, Gaps: d.Gaps, Plans: d.Plans, Unplan: d.Unplan, Exhaust: d.Exhaust,
		Hold: set.OnCrash == contract.OnCrashHold,
	}
	if j.From.IsZero() {
		j.From = o.state.JudgedBefore
	}
	if len(d.Gaps) > 0 {
		if sched, err := o.c.Schedule(); err == nil {
			if before := sched.Previous(d.Gaps[0].First); !before.Before(set.Since) {
				j.Before = before
			}
		}
	}
	same := o.recorded.CronJobUID != "" && o.recorded.Gone.IsZero() && now.Sub(o.written) < sign &&
		len(d.Plans)+len(d.Unplan)+len(d.Exhaust) == 0 && sameGaps(d.Gaps, o.gaps) && sameSchedule(o.recorded, j.Schedule)
	return j, !same
}

// indexes is gaps.Schedule.Indexes.
func indexes(s contract.Settings) int {
	switch {
	case !s.Indexed:
		return 0
	case s.Completions == 0:
		return -1
	}
	return int(s.Completions)
}

// record remembers what was written.
func (o *one) record(j gaps.Judgement, now time.Time) {
	o.recorded, o.written, o.state = j.Schedule, now, o.decision.State
	o.gaps = slices.DeleteFunc(slices.Clone(j.Gaps), func(g disposition.Gap) bool { return g.First.Before(o.state.JudgedBefore) })
}

// sameSchedule compares all but how far it is judged: that is written with the next change,
// or with the next sign.
func sameSchedule(a, b gaps.Schedule) bool {
	sameSpans := slices.EqualFunc(a.State.Suspensions, b.State.Suspensions, func(x, y disposition.Span) bool {
		return x.From.Equal(y.From) && x.To.Equal(y.To)
	})
	return a.JobName == b.JobName && a.CronJobUID == b.CronJobUID && a.CronJob == b.CronJob && a.Schedule == b.Schedule && a.TimeZone == b.TimeZone &&
		a.DST == b.DST && a.CatchUp == b.CatchUp && a.Indexes == b.Indexes && a.Since.Equal(b.Since) && a.Note == b.Note && sameSpans &&
		slices.EqualFunc(a.State.Open, b.State.Open, time.Time.Equal)
}

func sameGaps(a, b []disposition.Gap) bool {
	return slices.EqualFunc(a, b, func(x, y disposition.Gap) bool {
		first, last := x.First.Equal(y.First), x.Last.Equal(y.Last)
		x.First, x.Last, y.First, y.Last = time.Time{}, time.Time{}, time.Time{}, time.Time{}
		return first && last && x == y
	})
}

// next is when to look again.
func (o *one) next(now time.Time) time.Time {
	next := now.Add(sign)
	if at := o.decision.Next; !at.IsZero() {
		next = earliest(next, at)
	}
	if at := o.making.after; at.After(now) {
		next = earliest(next, at)
	}
	if o.more {
		return now
	}
	return latest(next, now.Add(settle)) // never in circles
}

// restless reports whether news of its Jobs matter.
func (o *one) restless(now time.Time) bool {
	// The Job of a window that is young may run it any moment: that is no news.
	old := func(s disposition.Sight) bool { return now.Sub(s.WindowStart) >= disposition.Grace }
	late := func(g disposition.Gap) bool { return g.Status == disposition.Late }
	return slices.ContainsFunc(o.decision.Gaps, late) || slices.ContainsFunc(o.plans, o.mine) || len(o.decision.Plans) > 0 || slices.ContainsFunc(o.decision.State.Sights, old)
}

// mine reports whether the Job of a plan is to be made from this CronJob.
func (o *one) mine(p disposition.Plan) bool {
	return p.CronJobUID == "" || p.CronJobUID == string(o.uid)
}

// note is what cannot be done for the CronJob, for people.
func (o *one) note() string {
	if o.making.refused == "" {
		return o.decision.Note
	}
	if o.decision.Note == "" {
		return o.making.refused
	}
	return o.decision.Note + "; " + o.making.refused
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// The calls, each bounded.

func load(ctx context.Context, db gaps.DB) ([]gaps.Schedule, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return gaps.Load(ctx, db)
}

func look(ctx context.Context, db gaps.DB, asks []gaps.Ask) ([]gaps.Seen, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return gaps.Look(ctx, db, asks)
}

func ledgerClock(ctx context.Context, db gaps.DB) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return gaps.Clock(ctx, db)
}

func wanted(ctx context.Context, db gaps.DB) ([]gaps.Asked, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return gaps.Wanted(ctx, db)
}

func judge(ctx context.Context, db gaps.DB, all []gaps.Judgement) error {
	if len(all) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return gaps.Judge(ctx, db, all)
}

func gone(ctx context.Context, db gaps.DB, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if err := gaps.Gone(ctx, db, string(uid)); err != nil {
		return fmt.Errorf("CronJob with UID %s: %w", uid, err)
	}
	return nil
}
