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

// request is one HTTP/1.0 request over a Unix socket, which the server ends by closing.
type request struct {
	socket, token string
	method, path  string
	body          []byte
}

// do sends the request until deadline, and reads the whole answer until ctx ends. An
// error after the body was sent leaves open whether the server acted on it.
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
	var head bytes.Buffer
	fmt.Fprintf(&head, "%s %s HTTP/1.0\r\nHost: onceguard\r\nAuthorization: Bearer %s\r\n", r.method, r.path, r.token)
	if r.body != nil {
		fmt.Fprintf(&head, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(r.body))
	}
	head.WriteString("\r\n")
	// One that refuses early answers and closes before it read all: the answer counts.
	_, sendErr := conn.Write(append(head.Bytes(), r.body...))
	if errors.Is(sendErr, os.ErrDeadlineExceeded) { // it waits for the rest of the body
		return 0, nil, sendErr
	}
	code, body, err = answer(conn)
	if err != nil && sendErr != nil {
		err = sendErr
	}
	return code, body, err
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
