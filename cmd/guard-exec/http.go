package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/onceguard/onceguard/pkg/wrapper"
)

// maxAnswer bounds what is read of an answer, its head included.
const maxAnswer = 16 << 20

// request is one HTTP request over a Unix socket, which the server ends by closing. It is
// HTTP/1.0 unless its body is a stream, whose length nobody knows.
type request struct {
	socket, token string
	method, path  string
	body          []byte
	stream        io.Reader // instead of body: rows in CSV
}

// errInput is a stream that could not be read to its end.
var errInput = errors.New("the input broke off")

// do sends the request until deadline, a stream until ctx ends, and reads the whole
// answer until ctx ends. An error after the body was sent leaves open whether the server
// acted on it.
func (r request) do(ctx context.Context, deadline time.Time) (code int, body []byte, err error) {
	conn, err := wrapper.Dial(r.socket)
	if err != nil {
		return 0, nil, err
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(deadline); err != nil {
		return 0, nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	// One that refuses early answers and closes before it read all: the answer counts.
	_, sendErr := conn.Write(append(r.head(), r.body...))
	if errors.Is(sendErr, os.ErrDeadlineExceeded) { // it waits for the rest of the body
		return 0, nil, sendErr
	}
	if r.stream != nil && sendErr == nil {
		if err := conn.SetWriteDeadline(time.Time{}); err != nil {
			return 0, nil, err
		}
		if sendErr = sendChunks(conn, r.stream); errors.Is(sendErr, errInput) {
			return 0, nil, sendErr // without an end, so that the server does not take it for all
		}
	}
	code, body, err = answer(conn)
	if err != nil && sendErr != nil {
		err = sendErr
	}
	return code, body, err
}

func (r request) head() []byte {
	var head bytes.Buffer
	version, rest := "1.0", ""
	switch {
	case r.stream != nil:
		version, rest = "1.1", "Content-Type: text/csv\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"
	case r.body != nil:
		rest = fmt.Sprintf("Content-Type: application/json\r\nContent-Length: %d\r\n", len(r.body))
	}
	fmt.Fprintf(&head, "%s %s HTTP/%s\r\nHost: onceguard\r\nAuthorization: Bearer %s\r\n%s\r\n", r.method, r.path, version, r.token, rest)
	return head.Bytes()
}

// sendChunks sends all of from as a chunked body. Without an error of its own it has
// said where the body ends.
func sendChunks(to io.Writer, from io.Reader) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(fmt.Appendf(nil, "%x\r\n%s\r\n", n, buf[:n])); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			_, err = io.WriteString(to, "0\r\n\r\n")
			return err
		case err != nil:
			return fmt.Errorf("%w: %w", errInput, err)
		}
	}
}

// escape makes value part of a URL's query.
func escape(value string) string {
	var b strings.Builder
	for _, c := range []byte(value) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// answer reads one HTTP/1.x answer.
func answer(from io.Reader) (code int, body []byte, err error) {
	limited := &io.LimitedReader{R: from, N: maxAnswer}
	r := bufio.NewReader(limited)
	length, first := -1, true
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, nil, fmt.Errorf("the answer broke off: %w", unexpected(err))
		}
		line = strings.TrimRight(line, "\r\n")
		if first {
			if code, err = statusLine(line); err != nil {
				return 0, nil, err
			}
			first = false
			continue
		}
		if line == "" {
			break
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch {
		case strings.EqualFold(name, "Content-Length"):
			if length, err = strconv.Atoi(value); err != nil || length < 0 || length > maxAnswer {
				return 0, nil, fmt.Errorf("an answer with Content-Length %q, at most %d bytes are read", value, maxAnswer)
			}
		case strings.EqualFold(name, "Transfer-Encoding"):
			return 0, nil, fmt.Errorf("an answer with Transfer-Encoding %q, which HTTP/1.0 does not have", value)
		}
	}
	if length >= 0 {
		var buf bytes.Buffer
		n, err := io.CopyN(&buf, r, int64(length))
		if err != nil {
			return 0, nil, fmt.Errorf("the answer broke off after %d of %d bytes: %w", n, length, unexpected(err))
		}
		return code, buf.Bytes(), nil
	}
	body, err = io.ReadAll(r)
	if err == nil && limited.N == 0 {
		err = fmt.Errorf("an answer of %d bytes or more", maxAnswer)
	}
	return code, body, err
}

func statusLine(line string) (int, error) {
	version, rest, _ := strings.Cut(line, " ")
	digits, _, _ := strings.Cut(rest, " ")
	code, err := strconv.Atoi(digits)
	if !strings.HasPrefix(version, "HTTP/1.") || err != nil || code < 200 || code > 599 {
		return 0, fmt.Errorf("not an HTTP answer: %.80q", line)
	}
	return code, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
