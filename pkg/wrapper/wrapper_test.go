package wrapper

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/wire"
)

func TestEnvironAddsAndReplaces(t *testing.T) {
	own := []string{"PATH=/bin", "A=1", "odd", "A=2", "B=x=y"}
	got := Environ(own, map[string]string{"A": "new\nline", "Z": "", "C": "3"})
	want := []string{"PATH=/bin", "odd", "B=x=y", "A=new\nline", "C=3", "Z="}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if !reflect.DeepEqual(own, []string{"PATH=/bin", "A=1", "odd", "A=2", "B=x=y"}) {
		t.Error("the caller's environment was changed")
	}
}

// A frozen program that wakes up must not take what lay unread for news.
func TestTrustThatComesTooLateIsNotTaken(t *testing.T) {
	r := &run{trust: stoppedTimer(), grace: trustGrace}
	r.trusted(wire.Message{Type: wire.TypeRun, TrustMS: 60_000})
	first := r.trustEnd
	r.trusted(wire.Message{Type: wire.TypeTrust, TrustMS: 90_000, GraceMS: 7})
	if !r.trustEnd.After(first) || r.grace != 7*time.Millisecond {
		t.Fatalf("a heartbeat in time was not taken: %v after %v, grace %v", r.trustEnd, first, r.grace)
	}
	past := time.Now().Add(-time.Nanosecond)
	r.trustEnd = past
	r.trusted(wire.Message{Type: wire.TypeTrust, TrustMS: 60_000})
	if r.trustEnd != past {
		t.Error("a heartbeat after the end was taken")
	}
}

func TestJournal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "termination-log")
	var out bytes.Buffer
	j := journal{to: &out, termination: file, line: line{Container: "main"}}
	j.name(map[string]string{"ONCEGUARD_JOB_NAME": "shop/x", "ONCEGUARD_TOKEN": "secret"})

	j.last("error", "first")
	if _, err := os.Stat(file); err == nil {
		t.Error("the termination log was created")
	}
	if err := os.WriteFile(file, []byte("longer than what comes"), 0o600); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("窗", 4096)
	j.last("error", long)
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) > 4096 || len(got) < 4090 || !utf8.Valid(got) || !strings.HasPrefix(contract.TerminationPrefix+long, string(got)) {
		t.Errorf("termination message of %d bytes", len(got))
	}
	if strings.Contains(out.String(), "secret") {
		t.Error("the token is in the log")
	}
	for _, l := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		var fields map[string]string
		if err := json.Unmarshal([]byte(l), &fields); err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		if fields["job_name"] != "shop/x" || fields["component"] != "guard-exec" || fields["level"] != "error" {
			t.Errorf("fields %v", fields)
		}
	}
}

func TestDialNamesWhatIsWrong(t *testing.T) {
	long := "/" + strings.Repeat("x", 200)
	if _, err := Dial(long); err == nil || !strings.Contains(err.Error(), "at most 103") {
		t.Errorf("a path that does not fit: %v", err)
	}
	if _, err := Dial(filepath.Join(t.TempDir(), "s")); !os.IsNotExist(err) {
		t.Errorf("no socket: %v", err)
	}
}
