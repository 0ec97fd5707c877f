package wrapper

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
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

// A guard that spoke and froze is given up; one that goes on speaking never is.
func TestTheGuardIsGivenUpWhenItFallsSilent(t *testing.T) {
	for _, speaks := range []int{1, 8} {
		socket := filepath.Join(t.TempDir(), "s")
		ln, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		const silence = 400 * time.Millisecond
		said := make(chan int, 1)
		go func() {
			n := 0
			defer func() { said <- n }()
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			for ; n < speaks; n++ {
				if n > 0 {
					time.Sleep(silence / 4)
				}
				if _, err := io.WriteString(conn, `{"type":"wait","message":"w"}`+"\n"); err != nil {
					return
				}
			}
			_, _ = io.Copy(io.Discard, conn) // open, and silent
		}()
		var out bytes.Buffer
		s := &session{
			o:   Options{Socket: socket, Container: "main", Kind: wire.KindWorker, GuardWait: time.Minute},
			log: journal{to: &out}, silence: silence,
		}
		s.link = newLink(socket, s.hello)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, code, decided := s.verdict(ctx, nil)
		cancel()
		s.link.close()
		_ = ln.Close()
		if n := <-said; n != speaks {
			t.Errorf("given up after %d of %d words", n, speaks)
		}
		if !decided || code != contract.ExitRetry || !strings.Contains(out.String(), "said nothing") {
			t.Errorf("code %d, decided %v: %s", code, decided, out.String())
		}
	}
}

// Connections that break without a word are no guard.
func TestAGuardThatOnlyHangsUpIsGivenUp(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1)) // the hello
			_ = conn.Close()
		}
	}()
	s := &session{o: Options{Socket: socket, Kind: wire.KindWorker, GuardWait: lastPause + lastPause/2}, log: journal{to: io.Discard}}
	s.link = newLink(socket, s.hello)
	defer s.link.close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, code, decided := s.verdict(ctx, nil); !decided || code != contract.ExitRetry {
		t.Errorf("code %d, decided %v", code, decided)
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
