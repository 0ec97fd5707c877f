package pgproxy

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5/pgproto3"
)

// conn is a client's connection and the one to the server that belongs to it.
type conn struct {
	p              *Proxy
	client, server net.Conn
	back           *pgproto3.Backend  // towards the client
	front          *pgproto3.Frontend // towards the server

	// Under p.mu: where this connection stands in what is watched.
	round, number int
	count         map[Direction]int

	striking sync.Mutex // held while the last message is sent; before mu

	mu       sync.Mutex
	fault    Kind
	kept     []byte          // of CutClient
	released bool            // the server has been told
	delayed  []chan struct{} // of Delay; closed by Release
	left     bool            // the client has closed its end
	gone     bool            // the server has
}

func newConn(p *Proxy, client, server net.Conn) *conn {
	return &conn{
		p: p, client: client, server: server,
		back: pgproto3.NewBackend(client, client), front: pgproto3.NewFrontend(server, server),
	}
}

// serve returns when both sides have ended.
func (c *conn) serve() {
	defer c.abandon()
	if !c.open() {
		return
	}
	whole := c.struck() == None // else nothing passes any more
	var toClient sync.WaitGroup
	toClient.Go(func() {
		if whole {
			c.pump(func() (bool, error) { _, more, err := c.fromServer(); return more, err })
		}
		_, _ = io.Copy(io.Discard, c.server)
		c.serverEnded()
	})
	if whole {
		c.pump(func() (bool, error) { _, more, err := c.fromClient(); return more, err })
	}
	_, _ = io.Copy(io.Discard, c.client)
	c.clientEnded()
	toClient.Wait()
}

// open does what comes before queries, where both sides take turns, and says whether
// there is more to do. It is the one part where messages of the client can only be read
// with what the server has said.
func (c *conn) open() bool {
	if !c.greet() {
		return false
	}
	for c.struck() == None {
		m, more, err := c.fromServer()
		if err != nil || !more {
			break
		}
		switch m.(type) {
		case *pgproto3.ReadyForQuery, *pgproto3.ErrorResponse:
			return true
		case *pgproto3.AuthenticationSASL, *pgproto3.AuthenticationSASLContinue,
			*pgproto3.AuthenticationCleartextPassword, *pgproto3.AuthenticationMD5Password:
			if err := c.back.SetAuthType(c.front.GetAuthType()); err != nil {
				c.p.fail(err)
				return false
			}
			if _, _, err := c.fromClient(); err != nil {
				return true // serve sees it again
			}
		}
	}
	return true
}

// greet passes on the client's first message, which has no type.
func (c *conn) greet() bool {
	for c.struck() == None {
		m, err := c.back.ReceiveStartupMessage()
		if err != nil {
			c.p.fail(err)
			return false
		}
		forward := func() error { c.front.Send(m); return c.front.Flush() }
		switch m.(type) {
		case *pgproto3.SSLRequest:
			c.pass(ToServer, m, c.answerTLS)
		case *pgproto3.GSSEncRequest:
			c.pass(ToServer, m, func() error { return c.answer('N') })
		case *pgproto3.CancelRequest:
			c.p.note(describe(Point{Conn: cancelConn, Direction: ToServer}, m))
			c.p.fail(forward())
			_, _ = io.Copy(io.Discard, c.server) // it hangs up when it has done it
			return false
		default:
			c.pass(ToServer, m, forward)
			return true
		}
	}
	return true
}

func (c *conn) answer(b byte) error {
	_, err := c.client.Write([]byte{b})
	return err
}

func (c *conn) answerTLS() error {
	if c.p.tls == nil {
		return c.answer('N')
	}
	if err := c.answer('S'); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.client = tls.Server(c.client, c.p.tls)
	c.back = pgproto3.NewBackend(c.client, c.client)
	return nil
}

// pump passes messages on as long as there are any to pass.
func (c *conn) pump(next func() (more bool, err error)) {
	for {
		switch more, err := next(); {
		case err != nil:
			c.p.fail(err)
			return
		case !more:
			return
		}
	}
}

// fromClient and fromServer pass one message on. more is false when nothing else is to be
// passed in this direction.
func (c *conn) fromClient() (m pgproto3.FrontendMessage, more bool, err error) {
	if m, err = c.back.Receive(); err != nil {
		return nil, false, err
	}
	return m, c.pass(ToServer, m, func() error { c.front.Send(m); return c.front.Flush() }), nil
}

func (c *conn) fromServer() (m pgproto3.BackendMessage, more bool, err error) {
	if m, err = c.front.Receive(); err != nil {
		return nil, false, err
	}
	return m, c.pass(ToClient, m, func() error { c.back.Send(m); return c.back.Flush() }), nil
}

// pass sends a message, unless a fault prevents it, and says whether another one may
// follow in its direction.
func (c *conn) pass(d Direction, m pgproto3.Message, send func() error) (more bool) {
	if c.struck() != None {
		return d == ToServer && c.keep(m)
	}
	f := c.p.see(c, d, m)
	if f.Kind == Delay {
		if f.After && send() != nil {
			return false
		}
		<-c.delay()
		return f.After || send() == nil
	}
	if f.Kind == None {
		return send() == nil
	}
	sent := false
	forward := send
	send = func() error {
		sent = true
		if f.After {
			return forward()
		}
		if d == ToServer {
			c.keep(m) // before the client hears of its end, and may ask for the release
		}
		return nil
	}
	if c.strike(f.Kind, send) != nil || d == ToClient {
		return false
	}
	if sent {
		return c.keep(nil)
	}
	return c.keep(m)
}

// strike breaks the connection behind a last message. The other direction passes nothing
// on any more when it is sent: else the answer to it could still come through.
func (c *conn) strike(k Kind, send func() error) error {
	c.striking.Lock()
	defer c.striking.Unlock()
	if !c.mark(k) {
		return nil // the other direction was first
	}
	if err := send(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if k == Cut || k == CutClient {
		hangUp(c.client)
	}
	if k == Cut || k == CutServer {
		hangUp(c.server)
	}
	return nil
}

func (c *conn) mark(k Kind) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault != None {
		return false
	}
	c.fault = k
	return true
}

func (c *conn) struck() Kind {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fault
}

// keep keeps what a client has sent for a server that is to hear it late, and says
// whether there may be more of it.
func (c *conn) keep(m pgproto3.Message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault != CutClient || c.released {
		return false
	}
	if m != nil {
		kept, err := m.Encode(c.kept)
		if err != nil {
			return false
		}
		c.kept = kept
	}
	return true
}

// delay gives a channel that Release closes.
func (c *conn) delay() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := make(chan struct{})
	c.delayed = append(c.delayed, d)
	return d
}

func (c *conn) release() {
	c.striking.Lock()
	defer c.striking.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.delayed {
		close(d)
	}
	c.delayed = nil
	if c.released || c.fault != CutClient && c.fault != Silence {
		return
	}
	c.released = true
	_, _ = c.server.Write(c.kept)
	hangUp(c.server)
}

// clientEnded and serverEnded carry the end over to the other side, if it can be heard.
func (c *conn) clientEnded() {
	c.mu.Lock()
	c.left = true
	c.mu.Unlock()
	if c.struck() == None {
		hangUp(c.server)
	}
}

func (c *conn) serverEnded() {
	c.mu.Lock()
	c.gone = true
	c.mu.Unlock()
	if c.struck() == None {
		hangUp(c.client)
	}
}

// state says whether the server's end is still there, and whether the client's is not.
func (c *conn) state() (live, broken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.gone, c.fault != None || c.left
}

// abandon closes both sides at once.
func (c *conn) abandon() {
	c.release()
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.client.Close()
	_ = c.server.Close()
}

// hangUp ends the stream to one side, behind what was sent already.
func hangUp(side net.Conn) {
	if s, ok := side.(interface{ CloseWrite() error }); ok {
		_ = s.CloseWrite()
	}
}

// hungUp says whether an error is only the end of a connection.
func hungUp(err error) bool {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}
