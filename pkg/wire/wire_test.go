package wire

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

func TestMessagesSurviveTheWay(t *testing.T) {
	said := []Message{
		{Type: TypeHello, Version: Version, Container: "worker", Kind: KindWorker},
		{Type: TypeHello, Version: Version, Container: "worker", Kind: KindWorker, PID: 17},
		{Type: TypeWait, Message: "der Ledger schläft\nzweite Zeile \"quoted\" 窗口"},
		{Type: TypeRun, Env: map[string]string{"A": "1\n2", "EMPTY": ""}, TrustMS: 27000, GraceMS: 1000},
		{Type: TypeTrust, TrustMS: 1},
		{Type: TypeStarted, PID: 7},
		{Type: TypeStop, Message: "lost", GraceMS: 2000},
		{Type: TypeTerminating, Signal: 15},
		{Type: TypeExit, Code: 143, Signal: 15},
		{Type: TypeAck, Code: 255},
	}
	var stream bytes.Buffer
	for _, m := range said {
		line, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(line, []byte("\n")); n != 1 || !bytes.HasSuffix(line, []byte("\n")) {
			t.Fatalf("%q is not one line", line)
		}
		stream.Write(line)
	}
	r := NewReader(iotest.OneByteReader(&stream))
	for _, want := range said {
		got, err := r.Read()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, %v; want %+v", got, err, want)
		}
	}
	if _, err := r.Read(); !errors.Is(err, io.EOF) {
		t.Fatalf("at the end: %v, want io.EOF", err)
	}
}

func TestUnknownFieldsAreIgnoredUnknownTypesAreNot(t *testing.T) {
	if m, err := Decode([]byte(`{"type":"ack","code":3,"mood":"fine"}`)); err != nil || m.Code != 3 {
		t.Errorf("a field of a newer side: %+v, %v", m, err)
	}
	for _, line := range []string{
		``, `null`, `[]`, `{}`, `{"type":"sing"}`, `{"type":"ack","code":256}`, `{"type":"ack","code":-1}`,
		`{"type":"hello","pid":-2}`, `{"type":"run","trustMs":-1}`, `{"type":"stop","graceMs":9223372036854775807}`,
		`{"type":"exit","signal":-9}`, `{"type":"ack"}{"type":"ack"}`, `{"type":"ack"`, `{"type":7}`,
	} {
		if m, err := Decode([]byte(line)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %+v, %v; want ErrInvalid", line, m, err)
		}
	}
}

func TestReaderIsBounded(t *testing.T) {
	if _, err := NewReader(strings.NewReader(strings.Repeat("x", 2*MaxLine))).Read(); !errors.Is(err, ErrTooLong) {
		t.Errorf("endless line: %v, want ErrTooLong", err)
	}
	if _, err := NewReader(strings.NewReader(`{"type":"ack"`)).Read(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("torso: %v, want io.ErrUnexpectedEOF", err)
	}
	if _, err := (Message{Type: TypeWait, Message: strings.Repeat("x", MaxLine)}).Encode(); !errors.Is(err, ErrTooLong) {
		t.Errorf("encode: %v, want ErrTooLong", err)
	}
	// What Encode lets pass is read.
	frame, _ := Message{Type: TypeWait, Message: "x"}.Encode()
	line, err := Message{Type: TypeWait, Message: strings.Repeat("x", MaxLine-len(frame)+1)}.Encode()
	if err != nil || len(line) != MaxLine {
		t.Fatalf("longest line has %d bytes, %v", len(line), err)
	}
	if _, err := NewReader(bytes.NewReader(line)).Read(); err != nil {
		t.Errorf("longest line: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"type":"run","env":{"A":"b"},"trustMs":5}`))
	f.Add([]byte("{\"type\":\"ack\",\"code\":3}\n{\"type\":\"exit\"}\n"))
	f.Add([]byte(`{"type":"hello","pid":1`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewReader(bytes.NewReader(data))
		for range bytes.Count(data, []byte("\n")) + 2 {
			m, err := r.Read()
			if err != nil {
				return
			}
			line, err := m.Encode()
			if errors.Is(err, ErrTooLong) { // escaping may lengthen a line
				continue
			}
			if err != nil {
				t.Fatalf("%+v was read but cannot be said: %v", m, err)
			}
			back, err := Decode(line)
			if err != nil || back.Type != m.Type || back.Code != m.Code || back.TrustMS != m.TrustMS {
				t.Fatalf("%+v came back as %+v, %v", m, back, err)
			}
		}
		t.Fatal("the reader does not end")
	})
}
