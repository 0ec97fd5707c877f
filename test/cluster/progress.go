package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// progressEvery is how often a long build says where it is.
const progressEvery = 20 * time.Second

// progress reads what "go build -v" prints, one line per compiled package, and turns
// it into a line now and then. It keeps the last lines for the error message.
type progress struct {
	out   io.Writer
	label string
	begin time.Time // of the whole build

	mu       sync.Mutex
	partial  string
	lines    []string
	compiled int
	last     string
}

const progressTail = 30

// Write takes the output of the build.
func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	lines := strings.Split(p.partial+string(b), "\n")
	p.partial = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		p.lines = append(p.lines, line)
		if len(p.lines) > progressTail {
			p.lines = p.lines[1:]
		}
		if strings.HasPrefix(line, "go: ") {
			p.last = strings.TrimPrefix(line, "go: ")
		} else if !strings.ContainsAny(line, " \t#") {
			p.compiled++
			p.last = "compiling " + line
		}
	}
	return len(b), nil
}

func (p *progress) tail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(append(p.lines[:len(p.lines):len(p.lines)], p.partial), "\n")
}

func (p *progress) say(what string) {
	fmt.Fprintf(p.out, "%7s  %s: %s\n", time.Since(p.begin).Round(time.Second), p.label, what)
}

// watch runs f and reports while it lasts.
func (p *progress) watch(ctx context.Context, f func(context.Context) error) error {
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for {
		select {
		case err := <-done: // f ends by itself when ctx is done
			if err == nil {
				p.say("built")
			}
			return err
		case <-ticker.C:
			p.mu.Lock()
			compiled, last := p.compiled, p.last
			p.mu.Unlock()
			if last == "" {
				last = "reading modules, or linking from Go's cache"
			}
			p.say(fmt.Sprintf("%d packages compiled, %s", compiled, last))
		}
	}
}
