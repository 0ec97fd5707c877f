package drivers_test

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// proxy stands before Postgres. It may cut the way of an answer while the server goes on.
type proxy struct {
	url string // where the database is, through the proxy

	mu      sync.Mutex
	clients []net.Conn
	open    chan struct{} // new connections wait until it is closed
}

func startProxy(t *testing.T, at string) *proxy {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	server := u.Host
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u.Host = l.Addr().String()
	p := &proxy{url: u.String(), open: make(chan struct{})}
	close(p.open)
	var work sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		work.Wait()
	})
	work.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.clients = append(p.clients, client)
			open := p.open
			p.mu.Unlock()
			work.Go(func() {
				<-open
				p.carry(client, server)
			})
		}
	})
	return p
}

// carry passes bytes both ways. A client that is gone does not end the server's side:
// what it was told it finishes, then it finds the connection closed.
func (p *proxy) carry(client net.Conn, server string) {
	defer client.Close()
	conn, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer conn.Close()
	go func() { _, _ = io.Copy(conn, client) }()
	if _, err = io.Copy(client, conn); err != nil {
		return // what the server has said since is lost
	}
}

// hold lets new connections wait for the function it returns.
func (p *proxy) hold() (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	open := make(chan struct{})
	p.open = open
	return sync.OnceFunc(func() { close(open) })
}

// cut breaks all connections on the clients' side.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.clients {
		_ = c.Close()
	}
	p.clients = nil
}
