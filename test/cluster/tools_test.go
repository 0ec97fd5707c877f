package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAToolAppearsOnlyWhenItIsComplete(t *testing.T) {
	l := testLayout(t)
	all := tools()
	pause := all[len(all)-1]
	if pause.name != "pause" || l.built(pause) {
		t.Fatalf("%+v is built: %v", pause, l.built(pause))
	}
	// What a build of an older list of programs left.
	if err := os.MkdirAll(l.toolDir(pause), 0o755); err != nil {
		t.Fatal(err)
	}
	if l.built(pause) {
		t.Fatal("an empty folder counts as built")
	}
	p := &progress{out: &bytes.Buffer{}}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.buildTool(cancelled, pause, p); !errors.Is(err, context.Canceled) || l.built(pause) {
		t.Fatalf("a cancelled build: %v, built %v", err, l.built(pause))
	}
	if err := l.buildTool(t.Context(), pause, p); err != nil {
		t.Fatal(err)
	}
	if !l.built(pause) || !static(l.program("pause")) {
		t.Error("pause was built and is not there, or is not static")
	}
	if left, err := filepath.Glob(filepath.Join(l.cache, "tools", ".build-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestVersionsComeFromThePinnedModule(t *testing.T) {
	for _, tool := range tools() {
		if !strings.HasPrefix(tool.version, "v") || (len(tool.packages) > 0 && len(tool.packages) != len(tool.programs)) {
			t.Errorf("%+v", tool)
		}
		if tool.pinned && !strings.Contains(kubernetesMod, " "+tool.version+"\n") {
			t.Errorf("%s %s is not what kubernetes.mod requires", tool.name, tool.version)
		}
	}
}

func TestLockWaitsForTheOther(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), file, func() { t.Error("waited for nobody") })
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan struct{})
	got := make(chan error, 1)
	go func() {
		second, err := lock(t.Context(), file, func() { close(waiting) })
		if err == nil {
			second()
		}
		got <- err
	}()
	<-waiting
	select {
	case err := <-got:
		t.Fatalf("the second got the lock of the first: %v", err)
	default:
	}
	unlock()
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	unlock, err = lock(t.Context(), file, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := lock(ctx, file, func() {}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting without end: %v", err)
	}
}

func TestProgressCountsPackagesAndKeepsTheEnd(t *testing.T) {
	p := &progress{out: &bytes.Buffer{}}
	fmt.Fprint(p, "go: downloading example.org/a v1.0.0\nexample.org/a\nexample")
	if p.compiled != 1 || p.last != "compiling example.org/a" {
		t.Errorf("%d, %q", p.compiled, p.last)
	}
	fmt.Fprint(p, ".org/b\n# example.org/b\n./b.go:1:1: undefined: x\n")
	if p.compiled != 2 || !strings.Contains(p.tail(), "undefined: x") {
		t.Errorf("%d, %q", p.compiled, p.tail())
	}
	for i := range 100 {
		fmt.Fprintln(p, i)
	}
	if n := strings.Count(p.tail(), "\n"); n != progressTail {
		t.Errorf("keeps %d lines", n)
	}
}

func TestPollEndsAtOnceWhereWaitingCannotHelp(t *testing.T) {
	want := errors.New("broken")
	calls := 0
	err := poll(t.Context(), func(context.Context) (bool, error) { calls++; return false, fatalError{want} })
	if !errors.Is(err, want) || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errNotUp)
	defer cancel()
	if err := poll(ctx, func(context.Context) (bool, error) { return false, want }); !errors.Is(err, errNotUp) || !errors.Is(err, want) {
		t.Errorf("%v names neither the bound nor what was missing", err)
	}
}
