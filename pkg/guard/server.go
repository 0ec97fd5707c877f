package guard

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/onceguard/onceguard/pkg/contract"
	"github.com/onceguard/onceguard/pkg/wire"
)

const (
	// maxConns bounds the connections of one pod: its containers, their hooks and
	// whatever else finds the socket.
	maxConns = 64
	// helloTimeout bounds a connection that says nothing.
	helloTimeout = 10 * time.Second
	// backlog of messages to a wrapper that does not read, for instance a frozen one.
	backlog = 64
	// lastWrite bounds the last message to a connection that is being closed.
	lastWrite = time.Second
)

// server speaks package wire with the wrappers and posts what they say as events.
type server struct {
	listener net.Listener
	log      *zap.Logger
	post     func(Event)

	mu     sync.Mutex
	last   Conn
	conns  map[Conn]*link
	closed bool
	work   sync.WaitGroup
}

// link is one connection.
type link struct {
	conn net.Conn
	out  chan []byte
	gone chan struct{} // closed when reading has ended
	last chan struct{} // closed when nothing more is sent
}

func newServer(l net.Listener, log *zap.Logger, post func(Event)) *server {
	return &server{listener: l, log: log, post: post, conns: map[Conn]*link{}}
}

// accept serves until the listener is closed.
func (s *server) accept() {
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.log.Warn("accepting a wrapper failed", zap.Error(err))
			time.Sleep(100 * time.Millisecond) // out of file descriptors, most likely
			continue
		}
		s.admit(conn)
	}
}

func (s *server) admit(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.conns) >= maxConns {
		farewell(conn, contract.ExitRetry, fmt.Sprintf("the guard has %d connections, more than it serves", len(s.conns)))
		return
	}
	s.last++
	l := &link{conn: conn, out: make(chan []byte, backlog), gone: make(chan struct{}), last: make(chan struct{})}
	s.conns[s.last] = l
	id := s.last
	s.work.Go(func() { s.read(id, l) })
	s.work.Go(l.write)
}

// read posts what the wrapper says, and at last that it is gone.
func (s *server) read(id Conn, l *link) {
	defer func() {
		s.mu.Lock()
		delete(s.conns, id)
		s.mu.Unlock()
		close(l.gone)
		_ = l.conn.Close()
	}()
	r := wire.NewReader(l.conn)
	_ = l.conn.SetReadDeadline(time.Now().Add(helloTimeout))
	m, err := r.Read()
	if err != nil || m.Type != wire.TypeHello {
		s.log.Warn("a connection did not begin with hello", zap.String("type", string(m.Type)), zap.Error(err))
		return
	}
	if m.Version != wire.Version {
		farewell(l.conn, contract.ExitRefused, fmt.Sprintf(
			"guard-exec speaks version %d of the protocol and this guard version %d; both come from the same image, so restart the pod", m.Version, wire.Version))
		return
	}
	_ = l.conn.SetReadDeadline(time.Time{})
	s.post(Hello{Conn: id, Container: m.Container, Kind: m.Kind, PID: m.PID})
	defer s.post(Broken{Conn: id})
	for {
		m, err := r.Read()
		if err != nil {
			return
		}
		switch m.Type {
		case wire.TypeStarted:
			s.post(Started{Conn: id})
		case wire.TypeTerminating:
			s.post(Terminating{Conn: id})
		case wire.TypeExit:
			s.post(Exited{Conn: id, Code: m.Code})
		default: // what a newer wrapper may say
		}
	}
}

// send queues a message. To a wrapper that does not read, trust is not repeated: it
// runs out there, which is what a frozen process must meet when it wakes.
func (s *server) send(id Conn, m wire.Message) {
	s.mu.Lock()
	l := s.conns[id]
	s.mu.Unlock()
	if l == nil {
		return
	}
	b, err := m.Encode()
	if err != nil {
		s.log.Error("a message could not be sent", zap.String("type", string(m.Type)), zap.Error(err))
		return
	}
	select {
	case l.out <- b:
	default:
		if m.Type != wire.TypeTrust && m.Type != wire.TypeWait {
			_ = l.conn.Close()
		}
	}
}

// write sends what is queued until the connection is gone.
func (l *link) write() {
	for {
		select {
		case b := <-l.out:
			if _, err := l.conn.Write(b); err != nil {
				_ = l.conn.Close()
				return
			}
		case <-l.gone:
			return
		case <-l.last:
			l.drain()
			return
		}
	}
}

// drain writes what is still queued, the acknowledgement of an exit for instance,
// and closes.
func (l *link) drain() {
	defer func() { _ = l.conn.Close() }()
	_ = l.conn.SetWriteDeadline(time.Now().Add(lastWrite))
	for {
		select {
		case b := <-l.out:
			if _, err := l.conn.Write(b); err != nil {
				return
			}
		default:
			return
		}
	}
}

// close ends all connections after what is queued for them was written.
func (s *server) close() {
	_ = s.listener.Close()
	s.mu.Lock()
	s.closed = true
	for _, l := range s.conns {
		close(l.last)
	}
	s.mu.Unlock()
	s.work.Wait()
}

// farewell refuses a connection that is not served.
func farewell(conn net.Conn, code int, text string) {
	defer func() { _ = conn.Close() }()
	b, err := wire.Message{Type: wire.TypeRefuse, Code: code, Message: text}.Encode()
	if err != nil {
		return
	}
	_ = conn.SetWriteDeadline(time.Now().Add(lastWrite))
	_, _ = conn.Write(b)
}
