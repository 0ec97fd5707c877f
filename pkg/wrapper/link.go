package wrapper

import (
	"math/rand/v2"
	"os"
	"time"

	"github.com/onceguard/onceguard/pkg/wire"
)

// link is the connection to the guard, now or again. Its methods are called by one
// goroutine; only reading goes on beside it, per connection.
type link struct {
	socket string
	hello  func() wire.Message // what to say on every new connection

	conn   *os.File
	events chan event
	retry  *time.Timer   // fires when it is time to dial again; stopped while connected
	pause  time.Duration // before the next dial
	lost   error         // why there is no connection
}

// event is a message, or the end of the connection it came from.
type event struct {
	from *os.File
	msg  wire.Message
	err  error
}

const (
	firstPause = 100 * time.Millisecond
	lastPause  = time.Second
	// sendTimeout bounds one message to a guard that does not read. Signals wait for it.
	sendTimeout = 200 * time.Millisecond
)

func newLink(socket string, hello func() wire.Message) *link {
	return &link{socket: socket, hello: hello, events: make(chan event), retry: time.NewTimer(0), pause: firstPause}
}

// connected says whether there is a guard to talk to.
func (l *link) connected() bool { return l.conn != nil }

// dial tries once to connect and to say hello; on failure the retry timer is set.
func (l *link) dial() {
	conn, err := Dial(l.socket)
	if err != nil {
		l.drop(err)
		return
	}
	l.conn, l.lost = conn, nil
	go read(conn, l.events)
	l.send(l.hello())
}

// read passes on what comes; after an error its last word is that error. Sends end
// when the main loop does, with the program.
func read(conn *os.File, events chan<- event) {
	r := wire.NewReader(conn)
	for {
		m, err := r.Read()
		events <- event{from: conn, msg: m, err: err}
		if err != nil {
			return
		}
	}
}

// heard is called for each event of this connection: a guard that answers is there,
// and the next loss starts with the short pause.
func (l *link) heard() { l.pause = firstPause }

// send says m if there is a connection. A failure breaks the connection: the next
// hello tells the whole state again, so nothing is lost by it.
func (l *link) send(m wire.Message) {
	if l.conn == nil {
		return
	}
	b, err := m.Encode()
	if err == nil {
		_ = l.conn.SetWriteDeadline(time.Now().Add(sendTimeout))
		_, err = l.conn.Write(b)
	}
	if err != nil {
		l.drop(err)
	}
}

// drop gives up the connection and sets the time of the next dial: twice the pause
// up to a second, with jitter, so that the wrappers of a pod do not come as one.
func (l *link) drop(err error) {
	if l.conn != nil {
		_ = l.conn.Close()
		l.conn = nil
	}
	l.lost = err
	l.retry.Reset(l.pause/2 + rand.N(l.pause/2+1))
	l.pause = min(2*l.pause, lastPause)
}

// close ends the link for good.
func (l *link) close() {
	l.retry.Stop()
	if l.conn != nil {
		_ = l.conn.Close()
		l.conn = nil
	}
}
