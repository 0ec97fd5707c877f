package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
)

const commitUsage = `guard-exec commit sends business writes to the guard, which commits them and the completed window in one transaction.

  guard-exec commit --sql 'UPDATE balance SET units = units + $1::int WHERE id = $2' --arg 10 --arg main
` + statementUsage + `      --file PATH|-     the whole request as JSON from a file or stdin; the flags below may add to it
      --complete-only   no statements: just complete the window, with what the other flags say of it
` + closingUsage + timeoutUsage + `
One of --sql, --file, --complete-only and --checkpoint says what is to be committed. The answer is printed as JSON.
` + exitUsage

const (
	statementUsage = `      --sql TEXT        a statement; repeat it for more, they run in order
      --arg VALUE       the next argument ($1, $2, …) of the last --sql, as text
      --arg-json JSON   the same as JSON: null, 12.50, {"$type": "bytea", "value": "aGk="}
      --expect-rows N   how many rows the last --sql must affect or return; else nothing is committed
      --returning       the rows of the last --sql are wanted in the answer
`
	closingUsage = `      --payload TEXT    what this run works on; the same window with another payload is refused
      --result JSON     kept with the window and given to whoever asks again
      --processed N     how many items were processed, for the record
      --checkpoint JSON how far the work has come: commits a piece, and leaves the window to be completed later;
                        an equal piece asked again is not run again: let its checkpoint differ, or say the next flag
      --checkpoint-seq N  the checkpoint that the piece goes on from (the stored one); 0: there is none yet
`
	timeoutUsage = `      --timeout D       how long to look for the guard and to ask again while the outcome is open (30s);
                        a request that the guard is working on is waited for, however long it takes
`
	exitUsage = `Exit codes: 0 committed, now or before; 1 refused, the answer says why;
75 not now, or the outcome is not known: run the same command again, nothing is done twice.
`
)

const requestForm = `{"statements": [{"sql": "…", "args": […]}]}`

// maxFile bounds the request read from a file or stdin; the guard's own limit is lower.
const maxFile = 16 << 20

// commit is the command: it asks until the outcome is known or the time is up.
func commit(ctx context.Context, args, env []string, stdin io.Reader, stdout io.Writer) (int, error) {
	body, timeout, err := commitRequest(args, stdin)
	if errors.Is(err, errHelp) {
		_, err = io.WriteString(stdout, commitUsage)
		return 0, err
	}
	if err != nil {
		return 0, err
	}
	r, err := endpoint(env)
	if err != nil {
		return 0, err
	}
	r.method, r.path, r.body = "POST", "/v1/commit", body
	return ask(ctx, r, timeout, stdout)
}

// status is the command: GET /v1/window.
func status(ctx context.Context, args, env []string, stdout io.Writer) (int, error) {
	timeout := 5 * time.Second
	rest, err := flags{"timeout": duration(&timeout)}.parse(args)
	switch {
	case errors.Is(err, errHelp):
		_, err = io.WriteString(stdout, "guard-exec status [--timeout D] prints this run's window as JSON: 0 known, 1 refused, 75 no answer within D (5s).\n")
		return 0, err
	case err != nil:
		return 0, err
	case len(rest) > 0:
		return 0, usageError{fmt.Errorf("status takes no arguments, but there is %q", rest)}
	}
	r, err := endpoint(env)
	if err != nil {
		return 0, err
	}
	r.method, r.path = "GET", "/v1/window"
	ctx, cancel := context.WithTimeout(ctx, timeout) // here also of the answer
	defer cancel()
	return ask(ctx, r, timeout, stdout)
}

// endpoint is where the guard's API is, from the environment that the wrapper set.
func endpoint(env []string) (request, error) {
	var r request
	for _, kv := range env {
		switch name, value, _ := strings.Cut(kv, "="); name {
		case contract.EnvSocket:
			r.socket = value
		case contract.EnvToken:
			r.token = value
		}
	}
	for name, value := range map[string]string{contract.EnvSocket: r.socket, contract.EnvToken: r.token} {
		if value == "" {
			return r, usageError{fmt.Errorf("%s is not set: this command works inside a worker that the guard started", name)}
		}
	}
	if strings.ContainsAny(r.token, "\r\n") {
		return r, usageError{fmt.Errorf("%s has a line break", contract.EnvToken)}
	}
	return r, nil
}

// ask sends r until an answer is final or timeout has passed. The timeout does not cut
// short a request that reached the guard: its statements would be rolled back, each
// time anew. The guard bounds them; if it dies the connection breaks, and if it freezes
// the wrapper ends this process with its worker.
func ask(ctx context.Context, r request, timeout time.Duration, stdout io.Writer) (int, error) {
	return askAs(ctx, r, timeout, stdout, outcome)
}

// askAs is ask where judge says what an answer means.
func askAs(ctx context.Context, r request, timeout time.Duration, stdout io.Writer, judge func(code int, body []byte, err error) (exit int, again bool)) (int, error) {
	deadline := time.Now().Add(timeout)
	pause := 100 * time.Millisecond
	for {
		code, body, err := r.do(ctx, deadline)
		exit, again := judge(code, body, err)
		wait := pause/2 + rand.N(pause)
		if !again || time.Until(deadline) <= wait {
			if err != nil {
				return exit, fmt.Errorf("no answer from the guard, and the --timeout of %s has passed: %w", timeout, err)
			}
			_, err = stdout.Write(append(bytes.TrimRight(body, "\n"), '\n'))
			return exit, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return contract.ExitRetry, ctx.Err()
		}
		pause = min(2*pause, 2*time.Second)
	}
}

// outcome gives the exit code for an answer, and whether the same request is to be
// asked again: while it is open what became of it.
func outcome(code int, body []byte, err error) (exit int, again bool) {
	switch {
	case err == nil && code == 409 && failure(body) == "checkpoint_conflict": // it stays so
		return 1, false
	case err != nil, code == 409, code == 429, code >= 500:
		return contract.ExitRetry, true
	case code == 412: // the right is lost: this worker is being stopped
		return contract.ExitRetry, false
	case code < 300:
		return 0, false
	}
	return 1, false
}

// inTransaction is outcome for what belongs to an interactive transaction: one that is
// over, or that nobody knows any more, cannot be asked again, but the next attempt can do
// the work.
func inTransaction(code int, body []byte, err error) (exit int, again bool) {
	named := failure(body)
	over := code == 404 || code == 410 || code == 503 && (named == "ledger_unavailable" || named == "not_committed")
	if err == nil && over {
		return contract.ExitRetry, false
	}
	return outcome(code, body, err)
}

// failure is the code of an error that the guard answers.
func failure(body []byte) string {
	var f struct{ Error struct{ Code string } }
	_ = json.Unmarshal(body, &f) // another answer has none
	return f.Error.Code
}

// commitRequest makes the body from the command line.
func commitRequest(args []string, stdin io.Reader) (body []byte, timeout time.Duration, err error) {
	timeout = 30 * time.Second
	var statements []statement
	fields := fields{}
	file, completeOnly := "", false
	rest, err := flags{
		"file":          text(&file),
		"complete-only": yes(&completeOnly),
		"timeout":       duration(&timeout),
	}.and(statementFlags(&statements)).and(fields.flags()).parse(args)
	switch {
	case err != nil:
		return nil, 0, err
	case len(rest) > 0:
		return nil, 0, usageError{fmt.Errorf("commit takes flags only, but there is %q", rest)}
	case file != "" && len(statements) > 0:
		return nil, 0, usageError{fmt.Errorf("--file and --sql exclude each other: the file holds the statements")}
	case completeOnly && (file != "" || len(statements) > 0):
		return nil, 0, usageError{fmt.Errorf("--complete-only has no statements, and so no --sql and no --file")}
	case completeOnly && fields["checkpoint"] != nil:
		return nil, 0, usageError{fmt.Errorf("--complete-only completes the window, and --checkpoint leaves it open: say one of them")}
	case file == "" && len(statements) == 0 && !completeOnly && fields["checkpoint"] == nil:
		// Forgotten writes would be gone for good: a completed window never runs again.
		return nil, 0, usageError{fmt.Errorf("nothing to commit: give statements by --sql TEXT, a whole request by --file PATH (--file - reads stdin), --complete-only to complete the window without any, or --checkpoint JSON to say how far the work has come")}
	}
	if statements == nil {
		statements = []statement{}
	}
	if file != "" {
		if err := fields.add(file, stdin); err != nil {
			return nil, 0, err
		}
	} else if fields["statements"], err = json.Marshal(statements); err != nil {
		return nil, 0, err
	}
	body, err = json.Marshal(fields)
	return body, timeout, err
}
