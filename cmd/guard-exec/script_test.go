package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// noWait keeps the race detector from sleeping a second at the end of each program.
const noWait = "atexit_sleep_ms=0"

func TestMain(m *testing.M) {
	_ = os.Setenv("GORACE", noWait)
	testscript.Main(m, map[string]func(){
		"guard-exec": main,
		"fakeguard":  fakeGuardMain,
		"fakeapi":    fakeAPIMain,
		"code":       codeMain,
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error { e.Setenv("GORACE", noWait); return nil },
	})
}

// fakeguard SOCKET STEP…
func fakeGuardMain() {
	g := &fakeGuard{socket: os.Args[1], heard: os.Stdout}
	if err := g.play(os.Args[2:]...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// code N COMMAND… succeeds if COMMAND exits with N.
func codeMain() {
	want, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(os.Args[2], os.Args[3:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if ee, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		fmt.Fprintln(os.Stderr, ee, err)
		os.Exit(1)
	}
	if got := cmd.ProcessState.ExitCode(); got != want {
		fmt.Fprintf(os.Stderr, "exit code %d, want %d\n", got, want)
		os.Exit(1)
	}
}

// fakeapi SOCKET ANSWER… answers one request per ANSWER: the raw text of a whole
// answer with | for line ends, or "" for a broken connection. It prints the requests.
// "/DURATION/" before an answer lets so much time pass first; "/file:PATH/" reads
// nothing until PATH exists.
func fakeAPIMain() {
	ln, err := net.Listen("unix", os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, answer := range os.Args[2:] {
		conn, err := ln.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		pause := ""
		if rest, found := strings.CutPrefix(answer, "/"); found {
			pause, answer, _ = strings.Cut(rest, "/")
		}
		if path, deaf := strings.CutPrefix(pause, "file:"); deaf {
			err = (&fakeGuard{}).step("file " + path)
			pause = ""
		}
		fmt.Println(readRequest(conn))
		if pause != "" {
			err = (&fakeGuard{}).step("pass " + pause)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		_, _ = io.WriteString(conn, strings.ReplaceAll(answer, "|", "\r\n"))
		_ = conn.Close()
	}
	_ = ln.Close()
}

func readRequest(conn net.Conn) string {
	var got []byte
	buf := make([]byte, 4096)
	for {
		head, body, found := strings.Cut(string(got), "\r\n\r\n")
		if found {
			length := 0
			for _, l := range strings.Split(head, "\r\n") {
				if v, ok := strings.CutPrefix(l, "Content-Length: "); ok {
					length, _ = strconv.Atoi(v)
				}
			}
			whole := len(body) >= length
			if strings.Contains(head, "Transfer-Encoding: chunked") {
				whole = strings.HasSuffix(body, "0\r\n\r\n")
			}
			if whole {
				return strings.ReplaceAll(string(got), "\r\n", "\n")
			}
		}
		n, err := conn.Read(buf)
		if err != nil {
			return string(got) + err.Error()
		}
		got = append(got, buf[:n]...)
	}
}
