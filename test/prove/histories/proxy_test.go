package histories_test

import (
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// proxy stands between clients and the server and breaks some connections, so that a
// client does not know whether what it asked for was heard.
type proxy struct {
	listener net.Listener
	server   string
	rate     float64 // of messages that break their connection
	seed     uint64
	faults   map[string]*atomic.Int64 // by name, counted
	wg       sync.WaitGroup
}

// The ways a connection breaks.
const (
	unheard    = "requests lost"            // the server never gets it
	torn       = "requests torn"            // the server gets half of it
	unanswered = "answers lost"             // the server does it, and nobody hears the answer
	belated    = "requests delivered later" // the client is gone when the server gets it
)

func newProxy(server string, rate float64, seed uint64) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, server: server, rate: rate, seed: seed, faults: map[string]*atomic.Int64{}}
	for _, f := range []string{unheard, torn, unanswered, belated} {
		p.faults[f] = &atomic.Int64{}
	}
	p.wg.Add(1)
	go p.serve()
	return p, nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// close ends the listener and waits for the connections, which end with their clients.
func (p *proxy) close() {
	_ = p.listener.Close()
	p.wg.Wait()
}

func (p *proxy) serve() {
	defer p.wg.Done()
	for n := uint64(0); ; n++ {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.carry(client, rand.New(rand.NewPCG(p.seed, n))) })
	}
}

func (p *proxy) carry(client net.Conn, rnd *rand.Rand) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	var mute atomic.Bool // the next answer is not delivered
	answers := make(chan struct{})
	go func() {
		defer close(answers)
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if err != nil || mute.Load() {
				_ = client.Close()
				return
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	p.requests(client, server, rnd, &mute)
	// Not before the server has said what it had to say, or is told that nobody listens.
	if c, ok := server.(*net.TCPConn); ok {
		_ = c.CloseWrite()
	}
	select {
	case <-answers:
	case <-time.After(time.Second):
	}
}

// requests carries what the client says until one of them is gone.
func (p *proxy) requests(client, server net.Conn, rnd *rand.Rand, mute *atomic.Bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		fault := ""
		if rnd.Float64() < p.rate {
			fault = []string{unheard, torn, unanswered, belated}[rnd.IntN(4)]
			p.faults[fault].Add(1)
		}
		switch fault {
		case unheard:
			return
		case torn:
			_, _ = server.Write(buf[:n/2])
			return
		case unanswered:
			mute.Store(true)
		case belated:
			_ = client.Close()
			time.Sleep(time.Duration(1+rnd.IntN(30)) * time.Millisecond)
		}
		if _, err := server.Write(buf[:n]); err != nil || fault == belated {
			return
		}
	}
}
