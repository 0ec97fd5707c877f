package contract

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// unknown says what an unknown key may have meant.
func unknown(key string) string {
	switch key {
	case AnnotationConfig:
		return "Onceguard itself writes it, and on the Job template only; remove it"
	case AnnotationWindowStart:
		return "it belongs on the pod template of a Job that no CronJob owns; a CronJob's windows come from its schedule"
	}
	keys := append(slices.Sorted(maps.Keys(known)), AnnotationCommandPrefix+"NAME")
	best, distance := "", (len(key)-len(Prefix))/2+1 // more than half wrong is no slip of the pen
	for _, k := range keys {
		if d := levenshtein(key, k); d < distance {
			best, distance = k, d
		}
	}
	if best == "" {
		return "this Onceguard knows no such annotation; it knows " + strings.ReplaceAll(strings.Join(keys, ", "), Prefix, "")
	}
	return fmt.Sprintf("this Onceguard knows no such annotation; the nearest is %s", best)
}

// maxKey bounds what is compared: Kubernetes allows longer keys than any of ours.
const maxKey = 80

func levenshtein(a, b string) int {
	a, b = a[:min(len(a), maxKey)], b[:min(len(b), maxKey)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := left
			if a[i] != b[j] {
				cost = 1 + min(left, row[j], row[j+1])
			}
			left, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
