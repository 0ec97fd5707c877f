package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/onceguard/onceguard/pkg/disposition"
	"github.com/onceguard/onceguard/pkg/kube"
)

// Reasons of the Events on CronJobs.
const (
	ReasonMissed    = "WindowsMissed"    // nothing ran them, and nothing will by itself
	ReasonPlanned   = "WindowsPlanned"   // they are run later
	ReasonCaughtUp  = "WindowsCaughtUp"  // all that was planned is closed
	ReasonNotJudged = "WindowsNotJudged" // something cannot be done for this CronJob
)

// quiet is how long after an Event about missed windows the next ones are gathered, and how
// long after one about planned windows nothing is told of the next ones.
const quiet = 10 * time.Minute

// told is what people were told of a CronJob, and what they are to be told next.
type told struct {
	missed    disposition.Gap // gathered; no windows: nothing
	missedAt  time.Time
	planned   bool // so the end of it is told
	plannedAt time.Time
	note      string
	noteAt    time.Time
}

// tell writes Events about what was just decided: a range of windows is told once, not each
// of them. What cannot be told is logged and forgotten, the record has it.
func (w *worker) tell(ctx context.Context, o *one) {
	now := w.now()
	for _, g := range news(o.decision.Gaps, o.before) {
		if o.told.missed.Windows == 0 {
			o.told.missed = g
			continue
		}
		m := &o.told.missed
		m.Last, m.Windows, m.Reason, m.Evidence = g.Last, m.Windows+g.Windows, g.Reason, g.Evidence
	}
	if m := o.told.missed; m.Windows > 0 && now.Sub(o.told.missedAt) >= quiet {
		text := fmt.Sprintf("%s missed: %s", ranged(m), m.Reason)
		if m.Evidence != "" {
			text += ": " + m.Evidence
		}
		w.event(ctx, o, corev1.EventTypeWarning, ReasonMissed, text, span(m))
		o.told.missed, o.told.missedAt = disposition.Gap{}, now
	}
	mine := slices.ContainsFunc(o.plans, o.mine)
	switch n := len(o.decision.Plans); {
	case n > 0 && !o.told.planned && now.Sub(o.told.plannedAt) >= quiet:
		g := disposition.Gap{First: o.decision.Plans[0].WindowStart, Last: o.decision.Plans[n-1].WindowStart, Windows: int64(n)}
		w.event(ctx, o, corev1.EventTypeNormal, ReasonPlanned, ranged(g)+" will be run later, oldest first", span(g))
		o.told.planned, o.told.plannedAt = true, now
	case n == 0 && !mine && o.told.planned:
		w.event(ctx, o, corev1.EventTypeNormal, ReasonCaughtUp, "all windows that were to be run later are closed", now.UTC().Format(time.RFC3339))
		o.told.planned = false
	case mine && o.told.plannedAt.IsZero():
		o.told.planned = true // by an engine before this one
	}
	if note := o.note(); note != o.told.note && (note == "" || now.Sub(o.told.noteAt) >= quiet) {
		if o.told.note = note; note != "" {
			o.told.noteAt = now
			w.event(ctx, o, corev1.EventTypeWarning, ReasonNotJudged, note, note)
		}
	}
}

// news gives of the missed windows those that were not known as missed before: while an
// older window is waited for, the newer ones are decided at each look.
func news(gaps, before []disposition.Gap) (out []disposition.Gap) {
	for _, g := range gaps {
		if g.Status != disposition.Missed {
			continue
		}
		for _, h := range before {
			if h.Status == disposition.Missed && !g.First.Before(h.First) && !g.First.After(h.Last) {
				g.First, g.Windows = h.Last.Add(time.Second), g.Windows-h.Windows
			}
		}
		if g.Windows > 0 && !g.Last.Before(g.First) {
			out = append(out, g)
		}
	}
	return out
}

func (w *worker) event(ctx context.Context, o *one, kind, reason, message, which string) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	w.engine.Counters.Writes.Add(1)
	err := kube.Event(ctx, w.engine.Clients.Typed, w.log, o.c.reference(), reason, kind, message, string(o.uid)+which, w.now())
	if err != nil {
		w.log.Warn("Event not written", zap.String("cronjob", o.c.text()), zap.String("reason", reason), zap.Error(err))
	}
}

func ranged(g disposition.Gap) string {
	if g.Windows == 1 {
		return "window " + g.First.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("%d windows from %s to %s", g.Windows, g.First.UTC().Format(time.RFC3339), g.Last.UTC().Format(time.RFC3339))
}

func span(g disposition.Gap) string {
	return g.First.UTC().Format(time.RFC3339) + "/" + g.Last.UTC().Format(time.RFC3339)
}
