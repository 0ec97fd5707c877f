package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/onceguard/onceguard/pkg/wire"
)

// fakeGuard plays the guard's side of one conversation, step by step:
//
//	accept             take the next connection, read its hello
//	send JSON          say a message
//	raw TEXT           say anything
//	expect TYPE        read messages until one of that type
//	eof                read until the wrapper closes
//	close              break the connection
//	kill SIGNAL        send a signal to the process at the other end
//	file PATH          wait until PATH exists
//	pass DURATION      let time pass
//	unlisten, listen   remove the socket, make it again
//
// Everything heard is written to heard, one JSON object a line.
type fakeGuard struct {
	socket string
	heard  io.Writer

	ln   *net.UnixListener
	conn *net.UnixConn
	in   *wire.Reader
}

const patience = 60 * time.Second

// listen makes the socket; the wrapper may be started before or after.
func (g *fakeGuard) listen() (err error) {
	g.ln, err = net.ListenUnix("unix", &net.UnixAddr{Name: g.socket, Net: "unix"})
	return err
}

func (g *fakeGuard) play(steps ...string) error {
	if g.ln == nil {
		if err := g.listen(); err != nil {
			return err
		}
	}
	defer func() {
		_ = g.ln.Close()
		if g.conn != nil {
			_ = g.conn.Close()
		}
	}()
	for i, step := range steps {
		if err := g.step(step); err != nil {
			return fmt.Errorf("step %d %q: %w", i+1, step, err)
		}
	}
	return nil
}

func (g *fakeGuard) step(step string) error {
	verb, what, _ := strings.Cut(step, " ")
	switch verb {
	case "listen":
		return g.listen()
	case "unlisten":
		return g.ln.Close()
	case "accept":
		_ = g.ln.SetDeadline(time.Now().Add(patience))
		conn, err := g.ln.AcceptUnix()
		if err != nil {
			return err
		}
		g.conn, g.in = conn, wire.NewReader(conn)
		_ = conn.SetDeadline(time.Now().Add(patience))
		return g.expect(wire.TypeHello)
	case "send":
		if _, err := wire.Decode([]byte(what)); err != nil {
			return err
		}
		_, err := g.conn.Write([]byte(what + "\n"))
		return err
	case "raw":
		_, err := g.conn.Write([]byte(what + "\n"))
		return err
	case "expect":
		return g.expect(wire.Type(what))
	case "eof":
		// A reset: the wrapper left before it had read everything.
		if err := g.expect(""); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			return fmt.Errorf("wanted the end: %w", err)
		}
		return nil
	case "close":
		return g.conn.Close()
	case "kill":
		return g.kill(what)
	case "pass":
		d, err := time.ParseDuration(what)
		time.Sleep(d)
		return err
	case "file":
		for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
			if _, err := os.Stat(what); err == nil {
				return nil
			}
		}
		return fmt.Errorf("%s did not appear", what)
	}
	return errors.New("unknown step")
}

func (g *fakeGuard) expect(want wire.Type) error {
	for {
		m, err := g.in.Read()
		if err != nil {
			return err
		}
		m.PID = min(m.PID, 1) // only whether there is one
		b, _ := json.Marshal(m)
		_, _ = fmt.Fprintf(g.heard, "%s\n", b)
		if m.Type == want {
			return nil
		}
	}
}

func (g *fakeGuard) kill(name string) error {
	raw, err := g.conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *syscall.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return credErr
	}
	return syscall.Kill(int(cred.Pid), signals[name])
}

var signals = map[string]syscall.Signal{
	"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "KILL": syscall.SIGKILL,
	"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "TERM": syscall.SIGTERM, "WINCH": syscall.SIGWINCH,
	"STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT, "PIPE": syscall.SIGPIPE, "RT": 34 + 6,
}

// echoGuard says run to whoever says hello, and acks every exit with its own code.
func echoGuard(conn *net.UnixConn) {
	in := wire.NewReader(conn)
	for {
		m, err := in.Read()
		if err != nil {
			return
		}
		switch m.Type {
		case wire.TypeHello:
			_, _ = io.WriteString(conn, "{\"type\":\"run\"}\n")
		case wire.TypeExit:
			_, _ = fmt.Fprintf(conn, "{\"type\":\"ack\",\"code\":%d}\n", m.Code)
		}
	}
}
