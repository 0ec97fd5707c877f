package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/onceguard/onceguard/pkg/wire"
	"github.com/onceguard/onceguard/test/prove"
)

// client is a worker that uses the local endpoint of the pod at those paths.
type client struct {
	t     *testing.T
	token string
	http  http.Client
}

func (at paths) client(t *testing.T) *client {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(at.state, "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	var state struct{ Token string }
	if err := json.Unmarshal(b, &state); err != nil {
		t.Fatal(err)
	}
	return &client{t: t, token: state.Token, http: http.Client{Timeout: 10 * soon, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", at.apis)
	}}}}
}

// asks asks and gives the status, 0 without an answer, and the answer.
func (c *client) asks(method, path string, body io.Reader) (status int, answer string) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(context.WithoutCancel(c.t.Context()), method, "http://guard"+path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+c.token)
	res, err := c.http.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

// gets is asks that must have the status; it gives the answer.
func (c *client) gets(status int, method, path, body string) string {
	c.t.Helper()
	got, answer := c.asks(method, path, strings.NewReader(body))
	if got != status {
		c.t.Fatalf("%s %s: %d %s, want %d", method, path, got, answer, status)
	}
	return answer
}

// opens opens a transaction and gives its path.
func (c *client) opens() string {
	c.t.Helper()
	var tx struct{ ID string }
	if err := json.Unmarshal([]byte(c.gets(201, "POST", "/v1/tx", "")), &tx); err != nil || tx.ID == "" {
		c.t.Fatal(err)
	}
	return "/v1/tx/" + tx.ID
}

const one = `{"sql":"INSERT INTO book VALUES (1)"}`

// A long job from end to end: pieces by each way, a worker that fails between them, and
// the next attempt that goes on.
func TestWorkerInPieces(t *testing.T) {
	_, url := ownServer(t)
	session(t, url, `CREATE TABLE book (n int)`)
	at := testPaths(t, url)
	p := startPod(t, transactional(), at, "a")
	s := p.hello("main", wire.KindWorker, 0)
	s.hears(wire.TypeRun)
	c := at.client(t)
	c.gets(200, "POST", "/v1/commit", `{"statements":[`+one+`],"complete":false,"checkpoint":"one"}`)
	tx := c.opens()
	c.gets(200, "POST", tx+"/copy?table=book", "2\n3\n")
	c.gets(409, "POST", "/v1/commit", `{}`)
	if got := c.gets(200, "POST", tx+"/commit", `{"complete":false,"checkpoint":"two","checkpoint_seq":1}`); !strings.Contains(got, `"completed":false`) {
		t.Error(got)
	}
	c.gets(409, "PUT", "/v1/checkpoint", `{"data":"three","seq":1}`)
	c.gets(200, "PUT", "/v1/checkpoint", `{"data":"three","seq":2}`)
	tx = c.opens() // left open: the exit ends it
	c.gets(200, "POST", tx+"/query", one)
	if ack := s.exits(3); ack.Code != 3 {
		t.Errorf("%+v", ack)
	}
	if got := query[string](t, url, `SELECT count(*) || ' ' || (`+recorded+`) FROM book`); got != "3 failed failed" {
		t.Error(got)
	}
	eventually(t, "the end of the transaction", func() error {
		if status, answer := c.asks("POST", tx+"/query", strings.NewReader(one)); status != http.StatusGone {
			return fmt.Errorf("%d %s", status, answer)
		}
		return nil
	})

	s = p.hello("main", wire.KindWorker, 0) // kubelet starts the container again
	s.hears(wire.TypeRun)
	if got := strings.TrimSpace(c.gets(200, "GET", "/v1/checkpoint", "")); got != `{"seq":3,"data":"three"}` {
		t.Error(got)
	}
	c.gets(410, "POST", tx+"/commit", `{}`)
	tx = c.opens()
	c.gets(200, "POST", tx+"/query", one)
	for _, replayed := range []string{`"replayed":false`, `"replayed":true`} {
		if got := c.gets(200, "POST", tx+"/commit", `{"processed":4}`); !strings.Contains(got, replayed) || !strings.Contains(got, `"completed":true`) {
			t.Error(got)
		}
	}
	if ack := s.exits(0); ack.Code != 0 {
		t.Errorf("%+v", ack)
	}
	if got := query[string](t, url, `SELECT count(*) || ' ' || (`+recorded+`) FROM book`); got != "4 done completed" {
		t.Error(got)
	}
}

// The guard is killed with an open transaction: nothing of it remains, not even a lock,
// and its successor, which holds the same attempt, says so and opens the next.
func TestGuardKilledWithAnOpenTransaction(t *testing.T) {
	_, url := ownServer(t)
	session(t, url, `CREATE TABLE book (n int PRIMARY KEY)`)
	at := testPaths(t, url)
	cmd, _ := startSidecar(t, transactional(), at)
	hello := wire.Message{Type: wire.TypeHello, Version: wire.Version, Container: "main", Kind: wire.KindWorker}
	speak(t, at.execSocket, hello).hears(wire.TypeRun)
	c := at.client(t)
	tx := c.opens()
	c.gets(200, "POST", tx+"/query", one)
	reading, writing := io.Pipe()
	defer func() { _ = writing.Close() }()
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		c.asks("POST", tx+"/copy?table=book", reading) // and it is in the middle of a COPY
	}()
	if _, err := io.WriteString(writing, "2\n3\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "COPY", func() error {
		if query[int](t, url, `SELECT count(*)::int FROM pg_stat_activity WHERE query LIKE 'COPY%' AND state = 'active'`) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	_ = writing.CloseWithError(errors.New("the guard is gone"))
	<-copied

	startSidecar(t, transactional(), at)
	hello.PID = 77
	s := speak(t, at.execSocket, hello)
	eventually(t, "the window", func() error {
		status, answer := c.asks("POST", tx+"/commit", strings.NewReader(`{}`))
		if status == http.StatusNotFound {
			return nil
		}
		return fmt.Errorf("%d %s", status, answer)
	})
	eventually(t, "another transaction", func() error {
		tx = c.opens()
		return nil
	})
	c.gets(200, "POST", tx+"/query", one) // no lock of the old one is in the way
	c.gets(200, "POST", tx+"/commit", `{}`)
	if ack := s.exits(0); ack.Code != 0 {
		t.Errorf("%+v", ack)
	}
	if got := query[string](t, url, `SELECT count(*) || ' ' || (`+recorded+`) FROM book`); got != "1 done completed" {
		t.Error(got)
	}
}

// A client that vanishes in the middle of its rows leaves nothing, and the next may come.
func TestClientVanishesInItsRows(t *testing.T) {
	_, url := ownServer(t)
	session(t, url, `CREATE TABLE book (n int)`)
	at := testPaths(t, url)
	startPod(t, transactional(), at, "a").hello("main", wire.KindWorker, 0).hears(wire.TypeRun)
	c := at.client(t)
	tx := c.opens()
	conn, err := net.Dial("unix", at.apis)
	if err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintf(conn, "POST %s/copy?table=book HTTP/1.1\r\nHost: guard\r\nAuthorization: Bearer %s\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n1\n2\n\r\n", tx, c.token)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "COPY", func() error {
		if query[int](t, url, `SELECT count(*)::int FROM pg_stat_activity WHERE query LIKE 'COPY%' AND state = 'active'`) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	_ = conn.Close()
	eventually(t, "another transaction", func() error {
		status, answer := c.asks("POST", "/v1/tx", nil)
		if status == http.StatusCreated {
			return nil
		}
		return fmt.Errorf("%d %s", status, answer)
	})
	c.gets(410, "POST", tx+"/commit", `{}`)
	if got := query[int](t, url, `SELECT count(*)::int FROM book`); got != 0 {
		t.Error(got)
	}
}

// Rows that break off are the request's fault, though HTTP takes them for a client that left.
func TestRowsBreakOff(t *testing.T) {
	_, url := ownServer(t)
	session(t, url, `CREATE TABLE book (n int)`)
	at := testPaths(t, url)
	startPod(t, transactional(), at, "a").hello("main", wire.KindWorker, 0).hears(wire.TypeRun)
	c := at.client(t)
	tx := c.opens()
	conn, err := net.Dial("unix", at.apis)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = fmt.Fprintf(conn, "POST %s/copy?table=book HTTP/1.1\r\nHost: guard\r\nAuthorization: Bearer %s\r\nContent-Length: 100\r\n\r\n1\n2\n", tx, c.token)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400") || !strings.Contains(string(answer), "the rows broke off: unexpected EOF") {
		t.Errorf("%s %v", answer, err)
	}
}

// lines gives n rows of CSV, made while they are read.
type lines struct {
	n, i int
	pad  string
	left []byte
	each func(i int)
}

func (l *lines) Read(p []byte) (int, error) {
	for len(l.left) == 0 {
		if l.i == l.n {
			return 0, io.EOF
		}
		for range 500 {
			if l.i < l.n {
				l.i++
				l.left = append(strconv.AppendInt(l.left, int64(l.i), 10), l.pad...)
			}
		}
		l.each(l.i)
	}
	n := copy(p, l.left)
	l.left = l.left[n:]
	return n, nil
}

// anonymous is the memory that a process has of its own, in bytes.
func anonymous(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Skip("this kernel does not say RssAnon")
	return 0
}

// A COPY passes through the guard, whatever its length: the memory of the process does not
// grow with it.
func TestProveCopyHasFlatMemory(t *testing.T) {
	_, url := ownServer(t)
	session(t, url, `CREATE UNLOGGED TABLE wide (n int, pad text)`)
	at := testPaths(t, url)
	cmd, _ := startSidecar(t, transactional(), at)
	speak(t, at.execSocket, wire.Message{Type: wire.TypeHello, Version: wire.Version, Container: "main", Kind: wire.KindWorker}).hears(wire.TypeRun)
	c := at.client(t)
	tx := c.opens()
	// What any COPY needs is there before it is measured.
	const pad = 400
	row := "," + strings.Repeat("x", pad) + "\n"
	if status, answer := c.asks("POST", tx+"/copy?table=wide", &lines{n: 5000, pad: row, each: func(int) {}}); status != 200 {
		t.Fatalf("%d %s", status, answer)
	}
	before, most := anonymous(t, cmd.Process.Pid), 0
	n := prove.Times(100_000, 1_000_000)
	status, answer := c.asks("POST", tx+"/copy?table=wide", &lines{n: n, pad: row, each: func(i int) {
		if i%(n/50) == 0 {
			most = max(most, anonymous(t, cmd.Process.Pid))
		}
	}})
	if status != 200 || strings.TrimSpace(answer) != fmt.Sprintf(`{"rows":%d}`, n) {
		t.Fatalf("%d %s", status, answer)
	}
	c.gets(200, "POST", tx+"/commit", fmt.Sprintf(`{"processed":%d}`, n))
	if got := query[int](t, url, `SELECT count(*)::int FROM wide`); got != n+5000 {
		t.Errorf("%d rows", got)
	}
	// A tenth of the rows would be far more.
	grown, passed := most-before, n*pad
	if limit := 8 << 20; grown > limit {
		t.Errorf("grown by %d KiB while %d MiB passed", grown>>10, passed>>20)
	}
	prove.Report(t, "COPY has flat memory", "%d rows, %d MiB; the guard had %d KiB before and %d KiB at most", n, passed>>20, before>>10, most>>10)
}
