package contract

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"time"
)

// Bounds of the policies.
const (
	MinStartDeadline = time.Second
	MaxStartDeadline = 366 * 24 * time.Hour

	MaxAttemptsLimit = 1_000_000

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

func parseMaxAttempts(v string, _ Subject, to *Settings) string {
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > MaxAttemptsLimit || v != strconv.Itoa(n) {
		return fmt.Sprintf("give a whole number from 1 to %d, like 3", MaxAttemptsLimit)
	}
	to.MaxAttempts = n
	return ""
}

// PayloadDigest names a payload: "sha256:" and the SHA-256 of the text's bytes in
// hexadecimal, as "printf %s TEXT | sha256sum" computes it. A worker that completes its
// window with a driver of its own may give the same to complete(), or nothing.
func PayloadDigest(text string) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text)))
}
