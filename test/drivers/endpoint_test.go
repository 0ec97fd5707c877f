package drivers_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/onceguard/onceguard/test/postgres"
)

var (
	// worked is one example of the document: a script and what it prints.
	worked = regexp.MustCompile("(?s)```sh\n(.*?)```\n```json\n(.*?)```\n")
	// noise is what differs from run to run.
	noise = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)
)

// Every script of docs/endpoint.md is a worker that completes its window and prints what
// stands below it.
func TestScriptsOfTheEndpointsDocument(t *testing.T) {
	for _, program := range []string{"curl", "wget"} {
		if _, err := exec.LookPath(program); err != nil {
			postgres.Unavailable(t, fmt.Errorf("%s %w: test/setup.sh drivers", program, postgres.ErrMissing))
		}
	}
	text, err := os.ReadFile("../../docs/endpoint.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := worked.FindAllStringSubmatch(string(text), -1)
	if n := strings.Count(string(text), "```sh\n"); n != len(examples) || n == 0 {
		t.Errorf("%d of %d scripts are followed by what they print", len(examples), n)
	}
	guardExec, s := built(t, "cmd/guard-exec"), newShop(t)
	for _, e := range examples {
		script, want := e[1], e[2]
		name, _, _ := strings.Cut(script, "\n")
		t.Run(name, func(t *testing.T) {
			s.clear(t)
			script := "set -eu; cd '" + t.TempDir() + "'\n" + strings.ReplaceAll(script, "/onceguard/guard-exec", guardExec)
			got := s.guarded(worker{}, "sh", "-c", script).exits(0)
			got = noise.ReplaceAllString(strings.TrimSpace(strings.ReplaceAll(got, "}{", "}\n{")), "…")
			if got != strings.TrimSpace(want) {
				t.Errorf("%s\nprinted\n%s\nand not\n%s", script, got, want)
			}
			if status := s.value("SELECT status FROM onceguard.job_execution"); status != "completed" {
				t.Error(status)
			}
		})
	}
}
