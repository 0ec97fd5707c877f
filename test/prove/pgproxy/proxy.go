package pgproxy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Proxy stands before one server.
type Proxy struct {
	server   string
	tls      *tls.Config
	listener net.Listener
	served   sync.WaitGroup

	mu    sync.Mutex
	conns map[*conn]struct{}
	rule  Rule
	seen  []Message
	fired []Message
	round int // grows with Watch
	next  int // number of the next connection
	err   error
}

// Start listens on a free port of this host for connections to the server ("host:port").
// With a TLS configuration clients that ask for TLS get it; the server never does.
func Start(server string, c *tls.Config) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{server: server, tls: c, listener: l, conns: map[*conn]struct{}{}, round: 1}
	p.served.Add(1)
	go p.accept()
	return p, nil
}

func (p *Proxy) accept() {
	defer p.served.Done()
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close() // as if nobody listened
			continue
		}
		c := newConn(p, client, server)
		p.mu.Lock()
		p.conns[c] = struct{}{}
		p.mu.Unlock()
		p.served.Add(1)
		go func() {
			defer p.served.Done()
			c.serve()
			p.mu.Lock()
			delete(p.conns, c)
			p.mu.Unlock()
		}()
	}
}

// URL is the connection URL of the server with the proxy's address in its place.
func (p *Proxy) URL(serverURL string) (string, error) {
	u, err := url.Parse(serverURL)
	if err != nil {
		return "", err
	}
	u.Host = p.listener.Addr().String()
	return u.String(), nil
}

// Watch forgets what was seen, counts messages and connections from 0 again, and lets
// faults happen by the rule; nil: none.
func (p *Proxy) Watch(r Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule, p.seen, p.fired, p.next = r, nil, nil, 0
	p.round++
}

// Seen is what came by since Watch. Within one direction of a connection the order is
// that of the wire. What a broken connection no longer carries is not in it.
func (p *Proxy) Seen() []Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.seen)
}

// Fired are the messages since Watch at which a fault happened.
func (p *Proxy) Fired() []Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.fired)
}

// Release ends what waits for it: see CutClient, Silence and Delay.
func (p *Proxy) Release() {
	for _, c := range p.all() {
		c.release()
	}
}

// Live is how many connections the server has through the proxy, and broken how many of
// them no longer have a client: a fault has struck, or it has left. A backend is gone when its connection no longer counts: it
// will do nothing any more.
func (p *Proxy) Live() (live, broken int) {
	for _, c := range p.all() {
		l, b := c.state()
		if l {
			live++
		}
		if l && b {
			broken++
		}
	}
	return live, broken
}

// Err is the first message that the proxy did not understand.
func (p *Proxy) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Close ends the proxy and all of its connections.
func (p *Proxy) Close() {
	_ = p.listener.Close()
	for _, c := range p.all() {
		c.abandon()
	}
	p.served.Wait()
}

func (p *Proxy) all() []*conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*conn
	for c := range p.conns {
		all = append(all, c)
	}
	return all
}

// see notes a message and asks the rule about it.
func (p *Proxy) see(c *conn, d Direction, m pgproto3.Message) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.round != p.round {
		c.round, c.number, c.count = p.round, p.next, map[Direction]int{}
		p.next++
	}
	seen := describe(Point{Conn: c.number, Direction: d, Index: c.count[d]}, m)
	c.count[d]++
	p.seen = append(p.seen, seen)
	if p.rule == nil {
		return Fault{}
	}
	f := p.rule(seen)
	if f.Kind != None {
		p.fired = append(p.fired, seen)
	}
	return f
}

// note keeps a message that no rule is asked about.
func (p *Proxy) note(m Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, m)
}

// fail keeps what went wrong, unless it is only that somebody hung up.
func (p *Proxy) fail(err error) {
	if _, network := errors.AsType[net.Error](err); network || hungUp(err) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
}

// SelfSigned makes a TLS configuration for Start; clients cannot verify it.
func SelfSigned() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}, nil
}
