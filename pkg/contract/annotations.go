package contract

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Bounds and defaults of the annotations.
const (
	MinLease     = 5 * time.Second
	MaxLease     = time.Hour
	DefaultLease = 30 * time.Second

	MinStartTimeout     = 10 * time.Second
	MaxStartTimeout     = 24 * time.Hour
	DefaultStartTimeout = 5 * time.Minute

	MinLedgerWait = time.Second
	MaxLedgerWait = 7 * 24 * time.Hour
)

// Container is what the settings must know of one container of a Job's template.
type Container struct {
	Name    string
	Command bool // the template names a command
	Sidecar bool // an init container with restartPolicy Always: it is never wrapped
}

// Subject is the object that carries the annotations: a CronJob, or a Job that no
// CronJob owns.
type Subject struct {
	Namespace   string
	Name        string
	UID         string
	Annotations map[string]string
	Schedule    string // empty for a Job
	TimeZone    string
	Concurrency string // a CronJob's concurrencyPolicy; empty for a Job
	Indexed     bool   // completionMode Indexed
	Completions int32  // of an Indexed Job; zero when unknown
	// The template's containers, in order.
	InitContainers []Container
	Containers     []Container
}

// Problem is one thing that cannot be accepted as it stands. Two problems are the
// same if and only if they are equal.
type Problem struct {
	Field string // an annotation's key, or a path in the object
	Value string // what was found there; may be empty
	Cure  string // what is accepted, or what to do
}

// longestValue is how much of a bad value, in bytes, is repeated to people.
const longestValue = 200

// Error names the field, the value and the cure.
func (p Problem) Error() string {
	value := p.Value
	if value == "" {
		return fmt.Sprintf("%s: %s", p.Field, p.Cure)
	}
	if len(value) > longestValue {
		value = strings.ToValidUTF8(value[:longestValue], "") + "…"
	}
	return fmt.Sprintf("%s: %q is not accepted: %s", p.Field, value, p.Cure)
}

// setting is one annotation: how it is read, and how its field is taken over from
// settings that were accepted earlier.
type setting struct {
	parse func(value string, of Subject, to *Settings) (cure string)
	keep  func(from *Settings, of Subject, to *Settings)
}

var known = map[string]setting{
	AnnotationGuard: {
		parse: func(v string, _ Subject, _ *Settings) string {
			if v != Enabled {
				return `the one accepted value is "enabled"; to turn the guard off remove the annotation`
			}
			return ""
		},
		keep: func(_ *Settings, _ Subject, _ *Settings) {},
	},
	AnnotationJobName: {parse: parseJobName, keep: func(from *Settings, _ Subject, to *Settings) { to.JobName = from.JobName }},
	AnnotationLedger: {
		parse: func(v string, _ Subject, to *Settings) string {
			if !isLabel(v) {
				return "give the name of a ledger: lower-case letters, digits and '-', at most 63 characters"
			}
			to.Ledger = v
			return ""
		},
		keep: func(from *Settings, _ Subject, to *Settings) { to.Ledger = from.Ledger },
	},
	AnnotationContainers: {parse: parseContainers, keep: keepContainers},
	AnnotationAfter:      {parse: parseAfter, keep: keepAfter},
	AnnotationCompletion: choice(func(s *Settings) *Completion { return &s.Completion }, CompletionExitCode, CompletionTransaction),
	AnnotationBusy:       choice(func(s *Settings) *Busy { return &s.Busy }, BusyWait, BusySkip, BusyFail),
	AnnotationManual:     choice(func(s *Settings) *Manual { return &s.Manual }, ManualWindow, ManualSeparate, ManualRefuse),
	AnnotationStartTimeout: span(func(s *Settings) *Duration { return &s.StartTimeout },
		MinStartTimeout, MaxStartTimeout, "10s to 24h", "5m"),
	AnnotationLedgerWait: span(func(s *Settings) *Duration { return &s.LedgerWait },
		MinLedgerWait, MaxLedgerWait, "1s to 168h", "10m"),
	AnnotationLease:   span(func(s *Settings) *Duration { return &s.Lease }, MinLease, MaxLease, "5s to 1h", "30s"),
	AnnotationOverlap: choice(func(s *Settings) *Overlap { return &s.Overlap }, OverlapAllow, OverlapSkip, OverlapWait, OverlapReplace),
	AnnotationOrder:   choice(func(s *Settings) *Order { return &s.Order }, OrderAny, OrderSerial),
	AnnotationOnCrash: choice(func(s *Settings) *OnCrash { return &s.OnCrash }, OnCrashRetry, OnCrashHold),
	AnnotationStartDeadline: span(func(s *Settings) *Duration { return &s.StartDeadline },
		MinStartDeadline, MaxStartDeadline, "1s to 8784h", "30m"),
	AnnotationPayload:     {parse: parsePayload, keep: func(from *Settings, _ Subject, to *Settings) { to.PayloadDigest = from.PayloadDigest }},
	AnnotationMaxAttempts: number(func(s *Settings) *int { return &s.MaxAttempts }, MaxAttemptsLimit, 3),

	AnnotationCatchUp:          {parse: parseCatchUp, keep: keepCatchUp},
	AnnotationCatchUpLimit:     number(func(s *Settings) *int { return &s.CatchUpLimit }, MaxCatchUpLimit, DefaultCatchUpLimit),
	AnnotationCatchUpAge:       span(func(s *Settings) *Duration { return &s.CatchUpAge }, MinCatchUpAge, MaxCatchUpAge, "1m to 87840h", "168h"),
	AnnotationCatchUpParallel:  number(func(s *Settings) *int { return &s.CatchUpParallel }, MaxCatchUpParallel, 2),
	AnnotationSuspendedWindows: choice(func(s *Settings) *SuspendedWindows { return &s.SuspendedWindows }, SuspendedSkip, SuspendedCatchUp),
	AnnotationDST:              {parse: parseDST, keep: func(from *Settings, _ Subject, to *Settings) { to.DST = from.DST }},
}

// ParseAnnotations turns the annotations of of into settings, every value checked.
// cluster, when not empty, is put before the job name. The settings hold defaults
// where a value was missing or bad; Since is left to the caller. Warnings are
// sentences about values that have no effect.
func ParseAnnotations(of Subject, cluster string) (Settings, []Problem, []string) {
	s := Settings{
		Version: ConfigVersion, CronJob: of.Name, CronJobUID: of.UID,
		JobName: of.Namespace + "/" + of.Name, Ledger: DefaultLedger,
		Schedule: of.Schedule, TimeZone: of.TimeZone, Indexed: of.Indexed, Completions: of.Completions,
		Completion: CompletionExitCode, Busy: BusyWait, Manual: ManualWindow,
		StartTimeout: Duration(DefaultStartTimeout), Lease: Duration(DefaultLease),
		CatchUpLimit: DefaultCatchUpLimit, CatchUpAge: Duration(DefaultCatchUpAge), CatchUpParallel: 1,
		Policies: Policies{Overlap: overlapOf(of.Concurrency), Order: OrderAny, OnCrash: OnCrashRetry},
	}
	for _, c := range of.InitContainers {
		if !c.Sidecar {
			s.InitContainers = append(s.InitContainers, c.Name)
		}
	}
	for _, c := range of.Containers {
		s.Containers = append(s.Containers, c.Name)
	}
	var problems []Problem
	var warnings []string
	for _, key := range slices.Sorted(maps.Keys(of.Annotations)) {
		value := of.Annotations[key]
		if !strings.HasPrefix(key, Prefix) {
			continue
		}
		cure := ""
		if name, ok := strings.CutPrefix(key, AnnotationCommandPrefix); ok {
			cure = parseCommand(name, value, of, &s)
			if cure == "" && commandOf(of, name) {
				delete(s.Commands, name)
				warnings = append(warnings, fmt.Sprintf("%s has no effect: container %q names a command of its own", key, name))
			}
		} else if k, ok := known[key]; ok {
			cure = k.parse(value, of, &s)
		} else {
			cure = unknown(key)
		}
		if cure != "" {
			problems = append(problems, Problem{Field: key, Value: value, Cure: cure})
		}
	}
	warnings = append(warnings, catchUpDefaults(of, &s)...)
	if cluster != "" {
		s.JobName = cluster + ":" + s.JobName
	}
	return s, append(problems, missingCommands(of, s)...), warnings
}

// Keep replaces in s, the settings of of, what the annotation key stands for by what
// earlier settings say. It is for a bad value that was there before and must not
// change a guarded CronJob because a newer webhook finds fault with it.
func (s *Settings) Keep(key string, earlier Settings, of Subject) {
	if k, ok := known[key]; ok {
		k.keep(&earlier, of, s)
	} else if name, ok := strings.CutPrefix(key, AnnotationCommandPrefix); ok && earlier.Commands[name] != nil {
		if s.Commands == nil {
			s.Commands = map[string][]string{}
		}
		s.Commands[name] = earlier.Commands[name]
	}
}

// DecodeSettings reads the text of AnnotationConfig.
func DecodeSettings(text string) (Settings, error) {
	var s Settings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return Settings{}, Problem{Field: AnnotationConfig, Cure: "it is written by Onceguard and cannot be read: " + err.Error()}
	}
	if s.Version != ConfigVersion {
		return Settings{}, Problem{Field: AnnotationConfig, Cure: fmt.Sprintf(
			"it has version %d, this Onceguard reads version %d: change any onceguard.dev/ annotation of the CronJob to have it written anew", s.Version, ConfigVersion)}
	}
	return s, nil
}

func parseJobName(v string, of Subject, to *Settings) string {
	if !isSubdomain(v) {
		return "give a name inside the namespace: lower-case letters, digits, '-' and '.', at most 253 characters"
	}
	to.JobName = of.Namespace + "/" + v
	return ""
}

func parseContainers(v string, of Subject, to *Settings) string {
	var names []string
	for _, n := range strings.Split(v, ",") {
		n = strings.TrimSpace(n)
		switch {
		case n == "":
			return "give container names, separated by commas"
		case find(of.InitContainers, n) != nil:
			return fmt.Sprintf("%q is an init container; they are wrapped in any case, name only containers", n)
		case find(of.Containers, n) == nil:
			return fmt.Sprintf("there is no container %q; the template has %s", n, list(of.Containers))
		case slices.Contains(names, n):
			return fmt.Sprintf("%q is named twice", n)
		}
		names = append(names, n)
	}
	// in the template's order, so that rewriting the list changes nothing
	to.Containers = slices.DeleteFunc(to.Containers, func(n string) bool { return !slices.Contains(names, n) })
	return ""
}

func parseAfter(v string, of Subject, to *Settings) string {
	at := slices.IndexFunc(of.InitContainers, func(c Container) bool { return c.Name == v })
	if at < 0 {
		return fmt.Sprintf("give the name of an init container of the template; it has %s", list(of.InitContainers))
	}
	to.After = v
	// what runs before the guard cannot be wrapped by it
	to.InitContainers = nil
	for _, c := range of.InitContainers[at+1:] {
		if !c.Sidecar {
			to.InitContainers = append(to.InitContainers, c.Name)
		}
	}
	return ""
}

// keepContainers keeps those that the template still has; when it has none of them
// all are wrapped, as without the annotation.
func keepContainers(from *Settings, of Subject, to *Settings) {
	kept := slices.DeleteFunc(slices.Clone(from.Containers), func(n string) bool { return find(of.Containers, n) == nil })
	if len(kept) > 0 {
		to.Containers = kept
	}
}

// keepAfter keeps the place. What is behind it is read off the template, so that a
// container that was added since does not run unguarded.
func keepAfter(from *Settings, of Subject, to *Settings) {
	if parseAfter(from.After, of, to) != "" {
		to.After = from.After // gone from the template: its pods say so
	}
}

func parseCommand(name, v string, of Subject, to *Settings) string {
	if find(of.Containers, name) == nil && find(of.InitContainers, name) == nil {
		return fmt.Sprintf("there is no container %q; the template has %s", name, list(slices.Concat(of.InitContainers, of.Containers)))
	}
	var argv []string
	if err := json.Unmarshal([]byte(v), &argv); err != nil || len(argv) == 0 || argv[0] == "" {
		return `give a JSON array of strings, like ["/bin/report","--daily"]`
	}
	if to.Commands == nil {
		to.Commands = map[string][]string{}
	}
	to.Commands[name] = argv
	return ""
}

// missingCommands lists the wrapped containers of which nobody says what they run.
func missingCommands(of Subject, s Settings) []Problem {
	var out []Problem
	check := func(path string, all []Container, wrapped []string) {
		for _, n := range wrapped {
			if c := find(all, n); c != nil && !c.Command && s.Commands[n] == nil {
				out = append(out, MissingCommand(path, n))
			}
		}
	}
	check("initContainers", of.InitContainers, s.InitContainers)
	check("containers", of.Containers, s.Containers)
	return out
}

// MissingCommand is the problem of a container that leaves its command to its image;
// list is "containers" or "initContainers".
func MissingCommand(list, name string) Problem {
	return Problem{Field: fmt.Sprintf("%s[%s].command", list, name), Cure: fmt.Sprintf(
		`the container leaves its command to its image; set command, or the annotation %s%s to what the image runs, like '["/entrypoint.sh"]'`,
		AnnotationCommandPrefix, name)}
}

func commandOf(of Subject, name string) bool {
	c := find(of.Containers, name)
	if c == nil {
		c = find(of.InitContainers, name)
	}
	return c != nil && c.Command
}

func find(all []Container, name string) *Container {
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}

func list(all []Container) string {
	if len(all) == 0 {
		return "none"
	}
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.Name
	}
	return strings.Join(names, ", ")
}

// choice reads one of a few words.
func choice[T ~string](field func(*Settings) *T, accepted ...T) setting {
	words := make([]string, len(accepted))
	for i, a := range accepted {
		words[i] = string(a)
	}
	return setting{
		parse: func(v string, _ Subject, to *Settings) string {
			if !slices.Contains(accepted, T(v)) {
				return "give one of " + strings.Join(words, ", ")
			}
			*field(to) = T(v)
			return ""
		},
		keep: func(from *Settings, _ Subject, to *Settings) {
			if was := *field(from); was != "" { // an older Onceguard did not know the setting: the default stays
				*field(to) = was
			}
		},
	}
}

// span reads a duration within bounds.
func span(field func(*Settings) *Duration, least, most time.Duration, bounds, example string) setting {
	return setting{
		parse: func(v string, _ Subject, to *Settings) string {
			d, err := time.ParseDuration(v)
			if err != nil || d < least || d > most {
				return fmt.Sprintf("give a duration from %s, like %s", bounds, example)
			}
			*field(to) = Duration(d)
			return ""
		},
		keep: func(from *Settings, _ Subject, to *Settings) { *field(to) = *field(from) },
	}
}

// isLabel reports whether s is a DNS label as Kubernetes understands it.
func isLabel(s string) bool {
	return len(s) <= 63 && isSubdomain(s) && !strings.Contains(s, ".")
}

// isSubdomain reports whether s is a DNS subdomain as Kubernetes understands it.
func isSubdomain(s string) bool {
	if len(s) == 0 || len(s) > 253 {
		return false
	}
	for part := range strings.SplitSeq(s, ".") {
		if part == "" || part[0] == '-' || part[len(part)-1] == '-' {
			return false
		}
		for _, c := range []byte(part) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return false
			}
		}
	}
	return true
}
