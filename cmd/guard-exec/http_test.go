package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestAnswer(t *testing.T) {
	for _, c := range []struct {
		text, body string
		code       int
	}{
		{"HTTP/1.0 200 OK\r\n\r\n{}", "{}", 200},
		{"HTTP/1.1 503 \r\nX: y\r\ncontent-length:  3\r\n\r\nabcdef", "abc", 503},
		{"HTTP/1.1 412\r\nContent-Length: 0\r\n\r\n", "", 412},
	} {
		code, body, err := answer(iotest.OneByteReader(strings.NewReader(c.text)))
		if err != nil || code != c.code || string(body) != c.body {
			t.Errorf("%q: %d %q %v", c.text, code, body, err)
		}
	}
	for _, text := range []string{
		"SSH-2.0-x\r\n\r\n", "HTTP/1.1 099 x\r\n\r\n", "HTTP/1.1 600 x\r\n\r\n", "HTTP/1.1\r\n\r\n", "HTTP/2 200\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("x", maxAnswer),
	} {
		if code, _, err := answer(strings.NewReader(text)); err == nil {
			t.Errorf("%.60q was taken for an answer: %d", text, code)
		}
	}
	// A broken answer is no answer: what happened is open.
	for _, text := range []string{"", "HTTP/1.1 200 OK", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"} {
		if _, _, err := answer(strings.NewReader(text)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %v, want io.ErrUnexpectedEOF", text, err)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}")
	f.Add("HTTP/1.1 503 x\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		code, body, err := answer(strings.NewReader(text))
		if err == nil && (code < 200 || code > 599 || len(body) > len(text)) {
			t.Fatalf("%d with %d bytes out of %d", code, len(body), len(text))
		}
	})
}
