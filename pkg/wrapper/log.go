package wrapper

import (
	"encoding/json"
	"io"
	"os"
	"time"

	"github.com/onceguard/onceguard/pkg/contract"
)

// journal writes our own lines: one JSON object each, with the fields that every
// Onceguard program uses.
type journal struct {
	to          io.Writer
	termination string // file of the termination message, empty for none
	line        line   // what is known of the run
}

type line struct {
	Level       string `json:"level"`
	TS          string `json:"ts"`
	Component   string `json:"component"`
	Msg         string `json:"msg"`
	Container   string `json:"container,omitempty"`
	JobName     string `json:"job_name,omitempty"`
	WindowStart string `json:"window_start,omitempty"`
	ExecutionID string `json:"execution_id,omitempty"`
	Attempt     string `json:"attempt,omitempty"`
}

// name takes over what a message says about the window.
func (j *journal) name(env map[string]string) {
	for key, field := range map[string]*string{
		contract.EnvJobName:     &j.line.JobName,
		contract.EnvWindowStart: &j.line.WindowStart,
		contract.EnvExecutionID: &j.line.ExecutionID,
		contract.EnvAttempt:     &j.line.Attempt,
	} {
		if v := env[key]; v != "" {
			*field = v
		}
	}
}

func (j *journal) write(level, msg string) {
	l := j.line
	l.Level, l.TS, l.Component, l.Msg = level, time.Now().UTC().Format("2006-01-02T15:04:05.000Z07:00"), "guard-exec", msg
	b, err := json.Marshal(l)
	if err != nil {
		return // a struct of strings always marshals
	}
	_, _ = j.to.Write(append(b, '\n')) // a reader that went away is no reason to fail a worker
}

func (j *journal) info(msg string) { j.write("info", msg) }

// last logs the sentence that explains why the container ends otherwise than by its
// worker, and leaves it where kubectl describe shows it. A worker's own termination
// message is never touched in a normal run.
func (j *journal) last(level, msg string) {
	j.write(level, msg)
	if j.termination == "" {
		return
	}
	// Never created: kubelet made it, or the container has none.
	f, err := os.OpenFile(j.termination, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return
	}
	_, _ = f.WriteString(cut(contract.TerminationPrefix+msg, 4096))
	_ = f.Close()
}

// cut shortens s to n bytes without breaking a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}
