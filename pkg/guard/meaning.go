package guard

import (
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/window"
)

// Meaning is a sentence about which window the run means, and how that is known.
func Meaning(c contract.GuardConfig) string {
	w := window.Window{JobName: c.JobName, Start: c.WindowStart}
	key := TextMeansDeclared
	switch {
	case c.Trigger == contract.TriggerCatchUp:
		key = TextMeansCatchUp
	case c.Source == contract.SourceSchedule:
		at := c.WindowStart
		if zone, err := time.LoadLocation(c.TimeZone); err == nil {
			at = at.In(zone)
		}
		return say(c.LogLanguage, TextMeansSchedule, w, at.Format("Mon 15:04 MST"), c.Schedule, c.TimeZone)
	case c.Source == contract.SourceManual:
		key = TextMeansManual
	case c.Source == contract.SourceSeparate:
		key = TextMeansSeparate
	case c.Source == contract.SourceTimestamp:
		key = TextMeansTimestamp
	case c.Source == contract.SourceName:
		key = TextMeansName
	case c.Job == "":
		key = TextMeansGiven
	}
	return say(c.LogLanguage, key, w, c.Job)
}

// unusual is the meaning of a run that nobody's schedule explains, and else empty: whoever
// made a Job by hand looks at the worker's log for which window that was.
func (c Conf) unusual() string {
	if c.Trigger == contract.TriggerManual || c.Trigger == contract.TriggerCatchUp {
		return Meaning(c.GuardConfig)
	}
	return ""
}

// explained says with a verdict what was asked for, where that is not plain.
func (m *step) explained(sentence string) string {
	if text := m.conf.unusual(); text != "" {
		return text + ": " + sentence
	}
	return sentence
}
