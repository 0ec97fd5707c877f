package contract

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Bounds of the policies.
const (
	MinStartDeadline = time.Second
	MaxStartDeadline = 366 * 24 * time.Hour

	MaxAttemptsLimit = 1_000_000

	DefaultCatchUpLimit = 100
	MaxCatchUpLimit     = 10_000
	DefaultCatchUpAge   = 7 * 24 * time.Hour
	MinCatchUpAge       = time.Minute
	MaxCatchUpAge       = 10 * 366 * 24 * time.Hour
	MaxCatchUpParallel  = 50

	// MaxPayload bounds a payload's text, in bytes. All annotations of an object together
	// must not exceed 256 KiB.
	MaxPayload = 64 << 10
)

// Policies are the wishes that the ledger judges when a window is claimed.
type Policies struct {
	Overlap Overlap `json:"overlap,omitempty"` // empty: allow
	Order   Order   `json:"order,omitempty"`   // empty: any
	// StartDeadline after its start a window that never ran is closed as late; 0: never.
	StartDeadline Duration `json:"startDeadline,omitempty"`
	PayloadDigest string   `json:"payloadDigest,omitempty"` // see [PayloadDigest]; empty: none
	MaxAttempts   int      `json:"maxAttempts,omitempty"`   // 0: no limit
	OnCrash       OnCrash  `json:"onCrash,omitempty"`       // empty: retry
	DST           DST      `json:"dst,omitempty"`           // empty: kubernetes; recorded with the window
}

// overlapOf is what a CronJob's concurrencyPolicy means for windows of one job. Under
// Forbid Kubernetes delays a window whose predecessor's Job still runs, so it waits here
// too: closing it would lose it for ever because an old pod takes long to end.
func overlapOf(concurrency string) Overlap {
	switch concurrency {
	case "Forbid":
		return OverlapWait
	case "Replace":
		return OverlapReplace
	}
	return OverlapAllow
}

func parsePayload(v string, _ Subject, to *Settings) string {
	if v == "" || len(v) > MaxPayload {
		return fmt.Sprintf("give a text of 1 to %d bytes; of something larger give a digest", MaxPayload)
	}
	to.PayloadDigest = PayloadDigest(v)
	return ""
}

// parseCatchUp refuses what cannot be kept: windows that nobody can enumerate.
func parseCatchUp(v string, of Subject, to *Settings) string {
	cure := choice(func(s *Settings) *CatchUp { return &s.CatchUp }, CatchUpNone, CatchUpLatest, CatchUpAll).parse(v, of, to)
	if cure == "" && to.CatchUp != CatchUpNone {
		cure = enumerable(of)
	}
	if cure != "" || to.CatchUp == CatchUpNone {
		to.CatchUp = ""
	}
	return cure
}

// keepCatchUp takes over also what depends on it: the bounds, which are empty while the
// annotation's value is bad, and the default of overlap.
func keepCatchUp(from *Settings, of Subject, to *Settings) {
	if to.CatchUp = from.CatchUp; from.CatchUp == "" {
		return
	}
	to.CatchUpLimit, to.CatchUpAge, to.CatchUpParallel, to.SuspendedWindows = from.CatchUpLimit, from.CatchUpAge, from.CatchUpParallel, from.SuspendedWindows
	if _, written := of.Annotations[AnnotationOverlap]; !written {
		to.Overlap = from.Overlap
	}
}

func parseDST(v string, of Subject, to *Settings) string {
	cure := choice(func(s *Settings) *DST { return &s.DST }, DSTKubernetes, DSTOnce).parse(v, of, to)
	if cure == "" && to.DST == DSTOnce {
		cure = enumerable(of)
	}
	if cure != "" || to.DST == DSTKubernetes {
		to.DST = ""
	}
	return cure
}

// catchUpDefaults sets what depends on catch-up and was not written. While missed windows
// are caught up a scheduled one waits for its turn: skipped, it would only be missed again,
// and replacing would stop a window that somebody asked for.
func catchUpDefaults(of Subject, s *Settings) (warnings []string) {
	written := func(key string) bool { _, ok := of.Annotations[key]; return ok }
	if s.CatchUp == CatchUpAll {
		if s.SuspendedWindows == "" {
			s.SuspendedWindows = SuspendedCatchUp
		}
		if !written(AnnotationOverlap) {
			s.Overlap = OverlapWait
		}
	}
	if s.SuspendedWindows == SuspendedSkip {
		s.SuspendedWindows = ""
	}
	if s.CatchUp != "" {
		return nil
	}
	for _, key := range []string{AnnotationCatchUpLimit, AnnotationCatchUpAge, AnnotationCatchUpParallel, AnnotationSuspendedWindows} {
		if written(key) && of.Annotations[key] != string(SuspendedSkip) {
			warnings = append(warnings, fmt.Sprintf("%s has no effect: nothing is caught up without %s", key, AnnotationCatchUp))
		}
	}
	s.CatchUpLimit, s.CatchUpAge, s.CatchUpParallel, s.SuspendedWindows = 0, 0, 0, ""
	return warnings
}

// enumerable says why the windows of of cannot be computed, and the cure; empty when they can.
func enumerable(of Subject) string {
	switch {
	case of.Schedule == "":
		return "only a CronJob has a schedule whose windows can be computed; remove it"
	case strings.Contains(of.Schedule, "@every"):
		return "the windows of @every depend on when the CronJob was made and cannot be computed; use a schedule of five fields"
	case of.TimeZone == "" && !strings.HasPrefix(of.Schedule, "TZ=") && !strings.HasPrefix(of.Schedule, "CRON_TZ="):
		return "without spec.timeZone nobody but kube-controller-manager knows the CronJob's windows; set it, for example to Etc/UTC"
	}
	return ""
}

// number reads a whole number from 1 to most.
func number(field func(*Settings) *int, most, example int) setting {
	return setting{
		parse: func(v string, _ Subject, to *Settings) string {
			n, err := strconv.Atoi(v)
			if err != nil || n < 1 || n > most || v != strconv.Itoa(n) {
				return fmt.Sprintf("give a whole number from 1 to %d, like %d", most, example)
			}
			*field(to) = n
			return ""
		},
		keep: func(from *Settings, _ Subject, to *Settings) {
			if was := *field(from); was != 0 {
				*field(to) = was
			}
		},
	}
}

// PayloadDigest names a payload: "sha256:" and the SHA-256 of the text's bytes in
// hexadecimal, as "printf %s TEXT | sha256sum" computes it. A worker that completes its
// window with a driver of its own may give the same to complete(), or nothing.
func PayloadDigest(text string) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text)))
}
