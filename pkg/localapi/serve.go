package localapi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	headerTimeout = 10 * time.Second
	bodyTimeout   = time.Minute
	idleTimeout   = 2 * time.Minute
	answerTimeout = time.Minute
	maxHeader     = 16 << 10
	// lastAnswers bounds answers under way when the guard leaves.
	lastAnswers = 200 * time.Millisecond
)

// Serve serves the handler on all listeners until ctx ends.
func Serve(ctx context.Context, h http.Handler, log *zap.Logger, listeners ...net.Listener) {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ErrorLog: zap.NewStdLog(log),
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	var work sync.WaitGroup
	for _, l := range listeners {
		work.Go(func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				log.Error("the local endpoint stopped", zap.String("address", l.Addr().String()), zap.Error(err))
			}
		})
	}
	<-ctx.Done()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAnswers)
	defer cancel()
	if s.Shutdown(last) != nil {
		_ = s.Close()
	}
	work.Wait()
}

// ListenSocket listens on a Unix socket that every user of the pod may connect to,
// taking the place of one that a killed guard left.
func ListenSocket(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	// Workers run as any user. Who may reach the socket is decided by who mounts it.
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", path, err), l.Close())
	}
	return l, nil
}

// ephemeralRange is where the kernel takes ports for outgoing connections from.
const ephemeralRange = "/proc/sys/net/ipv4/ip_local_port_range"

const (
	lowestPort = 20000
	portTries  = 20
)

// ListenLoopback listens on 127.0.0.1 at port, or, when port is 0, at one that no
// outgoing connection can take while a restarting guard is away.
func ListenLoopback(port int) (net.Listener, int, error) {
	if port != 0 {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		return l, port, err
	}
	highest := firstEphemeral() - 1
	if highest <= lowestPort {
		return nil, 0, fmt.Errorf("no loopback port is free of outgoing connections: they begin at %d (%s)", highest+1, ephemeralRange)
	}
	var err error
	for range portTries {
		port = lowestPort + rand.IntN(highest-lowestPort)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return l, port, nil
		}
	}
	return nil, 0, err
}

// firstEphemeral reads the range's lower end; Linux' default when it cannot be read.
func firstEphemeral() int {
	b, err := os.ReadFile(ephemeralRange)
	if err == nil {
		if low, err := strconv.Atoi(strings.Fields(string(b) + " x")[0]); err == nil {
			return low
		}
	}
	return 32768
}
