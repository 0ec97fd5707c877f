package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

const checkpointUsage = `guard-exec checkpoint says how far the work of the window has come: a long job commits it in pieces, and the next attempt goes on from there.

  guard-exec checkpoint [get] [--value] [--timeout D]
      prints {"seq": N, "data": JSON} as the last piece left it, seq 0 and data null when there is none;
      --value: only the data, a text without its quotes, nothing when there is none
  guard-exec checkpoint put JSON [--seq N] [--timeout D]
      a piece without statements; --seq: the checkpoint that it goes on from (the stored one), 0: there is none yet
      With statements: guard-exec commit --checkpoint JSON --sql …

` + exitUsage

// checkpoint is the command: GET and PUT /v1/checkpoint.
func checkpoint(ctx context.Context, args, env []string, stdout io.Writer) (int, error) {
	verb := "get"
	if len(args) > 0 && (args[0] == "get" || args[0] == "put") {
		verb, args = args[0], args[1:]
	}
	var err error
	timeout, value, put := 30*time.Second, false, fields{}
	known := flags{"timeout": duration(&timeout)}
	if verb == "put" {
		known["seq"] = flag{set: func(v string) error {
			n, err := count(v)
			put["seq"], _ = json.Marshal(n) // a number always marshals
			return err
		}}
		if len(args) > 0 && (args[0] == "" || args[0][0] != '-' || json.Valid([]byte(args[0]))) { // -1 is no flag
			if put["data"], err = asJSON(args[0]); err != nil {
				return 0, usageError{fmt.Errorf("checkpoint put: %w", err)}
			}
			args = args[1:]
		}
	} else {
		known["value"] = yes(&value)
	}
	rest, err := known.parse(args)
	switch {
	case errors.Is(err, errHelp):
		_, err = io.WriteString(stdout, checkpointUsage)
		return 0, err
	case err != nil:
		return 0, err
	case len(rest) > 0:
		return 0, usageError{fmt.Errorf("checkpoint %s: %q is too much; see guard-exec checkpoint --help", verb, rest)}
	case verb == "put" && put["data"] == nil:
		return 0, usageError{fmt.Errorf("checkpoint put: JSON is missing: it says how far the work has come, and stands before the flags")}
	}
	r, err := endpoint(env)
	if err != nil {
		return 0, err
	}
	r.method, r.path = "GET", "/v1/checkpoint"
	if verb == "put" {
		r.method = "PUT"
		if r.body, err = json.Marshal(put); err != nil {
			return 0, err
		}
	}
	if !value {
		return ask(ctx, r, timeout, stdout)
	}
	var answer bytes.Buffer
	code, err := ask(ctx, r, timeout, &answer)
	if err != nil || code != 0 {
		_, writeErr := stdout.Write(answer.Bytes())
		return code, errors.Join(err, writeErr)
	}
	return 0, printData(stdout, answer.Bytes())
}

// printData prints what a shell wants of a checkpoint.
func printData(to io.Writer, answer []byte) error {
	var c struct{ Data json.RawMessage }
	if err := json.Unmarshal(answer, &c); err != nil {
		return fmt.Errorf("the guard's answer is not a checkpoint: %w", err)
	}
	text := string(c.Data)
	switch {
	case text == "" || text == "null":
		return nil
	case text[0] == '"':
		if err := json.Unmarshal(c.Data, &text); err != nil {
			return err
		}
	}
	_, err := io.WriteString(to, text+"\n")
	return err
}
