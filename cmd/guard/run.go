package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/onceguard/onceguard/pkg/claim"
	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/guard"
	"github.com/onceguard/onceguard/pkg/logs"
	"github.com/onceguard/onceguard/pkg/wire"
	"github.com/onceguard/onceguard/pkg/wrapper"
)

// Where guard run finds the ledger's URL when no flag says it. A file is better: an
// environment is shown by ps, inherited and often logged.
const (
	envLedgerURLFile = "ONCEGUARD_LEDGER_URL_FILE"
	envLedgerURL     = "ONCEGUARD_LEDGER_URL"
)

// container is the name of the one command of guard run.
const container = "main"

const usage = `guard run --job NAMESPACE/NAME --schedule FIELDS --time-zone ZONE [flags] -- COMMAND [ARGUMENTS]
guard run --job NAMESPACE/NAME --window-start INSTANT [flags] -- COMMAND [ARGUMENTS]

Runs the command if its window is not done yet, as the guard does in a pod: from cron,
a systemd timer or a shell. The window is the instant for which the run was planned, not
the instant at which it starts: repeat the schedule that starts the command. A crontab
line of a machine in Berlin:

  */5 * * * * root guard run --job shop/report --schedule '*/5 * * * *' --time-zone Europe/Berlin \
    --ledger-url-file /etc/onceguard/url -- /usr/local/bin/report

(in one line; cron does not continue lines). The window is the newest instant of the
schedule that is at most --early (5s) after the start. So a start that is late, by however
long, means the newest window that is due, once: after a reboot a systemd timer with
Persistent=true runs that one, older ones are not made up. --start-deadline closes a window
for which it is too late. A start more than --early before its instant means the window
before, which is done already.

Whatever else plans runs says the instant itself, in UTC, with --window-start.

With --order serial give --since, the first window that is waited for. A window that was
missed since then is waited for, until it is run (--window-start) or cancelled.

While another run has the window, or with --overlap wait, --overlap replace or --order
serial another window is in the way, it waits as long as that takes; --start-deadline
bounds the latter.

Exit code: the command's; 0 when the window is done already or closed; 75 try again later; 78 a
retry makes no sense.
`

// options of guard run.
type options struct {
	config  contract.GuardConfig
	urlFile string
	level   zapcore.Level
	argv    []string
}

// runCommand runs one command with a guard in the same process.
func runCommand(ctx context.Context, args, env []string, started time.Time, stderr io.Writer) int {
	o, err := parse(args, started, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "guard run:", err)
		return exitUsage
	}
	get := environment(env)
	source, where, err := ledgerURL(o.urlFile, get)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "guard run:", err)
		return contract.ExitRefused
	}

	dir, err := os.MkdirTemp("", "onceguard-")
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "guard run:", err)
		return contract.ExitRetry
	}
	defer func() { _ = os.RemoveAll(dir) }()
	log := logs.New(stderr, o.level)
	if text := unpunctual(o.config, started); text != "" {
		logs.New(stderr, zapcore.WarnLevel).Warn(guard.Meaning(o.config) + text)
	} else {
		log.Info(guard.Meaning(o.config))
	}
	host, _ := os.Hostname()
	p := pod{
		config: o.config, name: host, source: source, where: where, log: log,
		origin: claim.Origin{
			Trigger: o.config.Trigger, Source: o.config.Source, WindowEnd: o.config.WindowEnd,
			Schedule: o.config.Schedule, TimeZone: o.config.TimeZone, DST: o.config.DST, Node: host,
		},
		paths: paths{state: dir, execSocket: filepath.Join(dir, "exec.sock"), apis: filepath.Join(dir, "api.sock")},
	}
	opened, err := p.open()
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "guard run:", err)
		return contract.ExitRetry
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	left := make(chan struct{})
	go func() {
		defer close(left)
		opened.serve(serving)
	}()
	code := wrapper.Run(ctx, wrapper.Options{
		Socket: p.paths.execSocket, Container: container, Kind: wire.KindWorker,
		Argv: o.argv, Env: hide(env), Stderr: stderr,
	})
	stop()
	<-left
	return code
}

// hide keeps the ledger's URL from the worker: it has the local endpoint.
func hide(env []string) []string {
	kept := make([]string, 0, len(env))
	for _, e := range env {
		if !strings.HasPrefix(e, envLedgerURL+"=") && !strings.HasPrefix(e, envLedgerURLFile+"=") {
			kept = append(kept, e)
		}
	}
	return kept
}

// ledgerURL finds where the URL is; where names the place for people.
func ledgerURL(file string, env func(string) string) (source func(context.Context) (string, error), where string, err error) {
	if file == "" {
		file = env(envLedgerURLFile)
	}
	if file != "" {
		where = fmt.Sprintf("file %q", file)
		return func(context.Context) (string, error) {
			b, err := os.ReadFile(file)
			if path, ok := errors.AsType[*fs.PathError](err); ok {
				err = fmt.Errorf("%s cannot be read: %w", where, path.Err)
			}
			return string(b), err
		}, where, nil
	}
	if url := env(envLedgerURL); url != "" {
		return func(context.Context) (string, error) { return url, nil }, "environment variable " + envLedgerURL, nil
	}
	return nil, "", fmt.Errorf("no ledger is named: give --ledger-url-file, or set %s or %s", envLedgerURLFile, envLedgerURL)
}

func parse(args []string, started time.Time, stderr io.Writer) (options, error) {
	o := options{config: contract.GuardConfig{
		Version: contract.ConfigVersion, Trigger: contract.TriggerScheduled, Source: contract.SourceDeclared,
		Containers: []string{container},
	}}
	c := &o.config
	f := flag.NewFlagSet("guard run", flag.ContinueOnError)
	f.SetOutput(io.Discard) // errors are returned
	f.StringVar(&c.JobName, "job", "", "the job, as `NAMESPACE/NAME`")
	var times timetable
	times.flags(f)
	f.Func("window-start", "the planned `instant` (RFC 3339)", instant(&c.WindowStart))
	f.Func("window-end", "the next planned `instant`, if known", instant(&c.WindowEnd))
	f.Func("window-previous", "the planned `instant` before, if known; with --order serial it is waited for", instant(&c.Previous))
	f.Func("since", "with --order serial only windows from this `instant` on are waited for (default: all; needed with --schedule)", instant(&c.Since))
	f.StringVar(&o.urlFile, "ledger-url-file", "", "`file` that holds the ledger's connection URL")
	completion := f.String("completion", string(contract.CompletionExitCode), "what completes the window: exit-code or transaction")
	policies := policyFlags(f)
	busy := f.String("busy", string(contract.BusyWait), "while another attempt holds the window: wait, skip or fail")
	lease := f.Duration("lease", 30*time.Second, "length of the lease")
	wait := f.Duration("ledger-wait", 0, "how long to wait for the ledger; 0: until the window ends, else 10m")
	f.StringVar(&c.LogLanguage, "log-language", "en", "en or zh")
	// What concerns the worker it is told anyway, by the wrapper.
	f.TextVar(&o.level, "log-level", zapcore.ErrorLevel, "debug, info, warn or error")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			_, _ = io.WriteString(stderr, usage+"\nFlags:\n")
			f.SetOutput(stderr)
			f.PrintDefaults()
		}
		return o, err
	}
	o.argv = f.Args()
	c.Completion, c.Busy = contract.Completion(*completion), contract.Busy(*busy)
	c.Lease, c.LedgerWait = contract.Duration(*lease), contract.Duration(*wait)
	c.StartTimeout = contract.Duration(time.Minute) // the command starts at once
	if err := policies(&c.Policies); err != nil {
		return o, err
	}
	if err := times.set(f, c, started); err != nil {
		return o, err
	}
	namespace, name, ok := strings.Cut(c.JobName, "/")
	switch {
	case !ok || namespace == "" || name == "" || strings.ContainsAny(c.JobName, "#@ ") || strings.Contains(name, "/"):
		return o, fmt.Errorf("--job is %q; it must be NAMESPACE/NAME without spaces, # and @", c.JobName)
	case c.WindowStart.IsZero():
		return o, fmt.Errorf("--schedule is missing; give the fields of the crontab line and --time-zone, or the planned instant as --window-start, like 2026-11-30T13:18:00Z")
	case c.Order == contract.OrderSerial && c.Source == contract.SourceSchedule && c.Since.IsZero():
		// The very first window would wait for one before it that nobody ever starts.
		return o, fmt.Errorf("--since is missing: with --order serial a window waits for those before it, and no start makes up older ones; give the first window that is to be waited for, for example this one: --since %s", c.WindowStart.UTC().Format(time.RFC3339))
	case len(o.argv) == 0:
		return o, fmt.Errorf("no command is given; put it behind --")
	}
	return o, guard.Validate(*c)
}

// policyFlags defines the flags that are annotations of a CronJob too; what it returns
// reads them by the same rules.
func policyFlags(f *flag.FlagSet) func(*contract.Policies) error {
	given := map[string]string{}
	for _, p := range []struct{ key, usage string }{
		{contract.AnnotationOverlap, "while another window of the job runs: allow, skip, wait or replace (default allow)"},
		{contract.AnnotationOrder, "serial: a window waits until all earlier ones are closed; any (default)"},
		{contract.AnnotationStartDeadline, "a window that has not run this `long` after its start is closed as late (1s to 8784h)"},
		{contract.AnnotationPayload, "`text` that the window belongs to; only its digest is kept"},
		{contract.AnnotationMaxAttempts, "`number` of failures after which the window is closed as exhausted"},
		{contract.AnnotationOnCrash, "after a crash: retry (default), or hold until a person decides"},
	} {
		f.Func(strings.TrimPrefix(p.key, contract.Prefix), p.usage, func(v string) error {
			given[p.key] = v
			return nil
		})
	}
	return func(to *contract.Policies) error {
		s, problems, _ := contract.ParseAnnotations(contract.Subject{Annotations: given}, "")
		if len(problems) > 0 {
			p := problems[0]
			p.Field = "--" + strings.TrimPrefix(p.Field, contract.Prefix)
			return p
		}
		*to = s.Policies
		return nil
	}
}

// instant parses an RFC 3339 flag.
func instant(to *time.Time) func(string) error {
	return func(s string) (err error) {
		*to, err = time.Parse(time.RFC3339, s)
		switch {
		case err != nil:
			return fmt.Errorf("%q is not an RFC 3339 instant like 2026-11-30T13:18:00Z", s)
		case to.Nanosecond() != 0: // date +%N: each run would be a window of its own
			return fmt.Errorf("%q has fractions of a second, which are not accepted; windows begin at whole seconds, like 2026-11-30T13:18:00Z", s)
		}
		return nil
	}
}
