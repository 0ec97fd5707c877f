package wire

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Errors of Decode and Reader.
var (
	// ErrTooLong: a line of MaxLine bytes or more.
	ErrTooLong = errors.New("message too long")
	// ErrInvalid: not a message; the text says which field has which value.
	ErrInvalid = errors.New("not a message of this protocol")
)

// Decode reads one line, with or without its newline. Unknown fields are ignored, so
// that a newer side may say more; an unknown type, or a number out of range, is
// ErrInvalid. Version and Kind of hello are the guard's to judge and to answer.
func Decode(line []byte) (Message, error) {
	if len(line) > MaxLine {
		return Message{}, fmt.Errorf("%w: %d bytes, at most %d are read", ErrTooLong, len(line), MaxLine)
	}
	var m Message
	if err := json.Unmarshal(line, &m); err != nil {
		return Message{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return m, m.check()
}

// check refuses what no correct side sends.
func (m Message) check() error {
	switch m.Type {
	case TypeHello, TypeStarted, TypeTerminating, TypeExit,
		TypeWait, TypeRun, TypeSkip, TypeRefuse, TypeTrust, TypeStop, TypeAck:
	default:
		return fmt.Errorf("%w: unknown type %q", ErrInvalid, m.Type)
	}
	switch {
	case m.Code < 0 || m.Code > 255:
		return fmt.Errorf("%w: %s with code %d, must be 0 to 255", ErrInvalid, m.Type, m.Code)
	case m.PID < 0:
		return fmt.Errorf("%w: %s with pid %d", ErrInvalid, m.Type, m.PID)
	case m.Signal < 0 || m.Signal > 127:
		return fmt.Errorf("%w: %s with signal %d", ErrInvalid, m.Type, m.Signal)
	case m.TrustMS < 0 || m.TrustMS > maxMS:
		return fmt.Errorf("%w: %s with trustMs %d", ErrInvalid, m.Type, m.TrustMS)
	case m.GraceMS < 0 || m.GraceMS > maxMS:
		return fmt.Errorf("%w: %s with graceMs %d", ErrInvalid, m.Type, m.GraceMS)
	}
	return nil
}

// maxMS keeps a duration far from overflow: ten years.
const maxMS = 10 * 366 * 24 * 3600 * 1000

// Reader reads messages from a stream and never holds more than MaxLine bytes of it.
type Reader struct{ lines *bufio.Scanner }

// NewReader reads from r.
func NewReader(r io.Reader) *Reader {
	lines := bufio.NewScanner(r)
	// A kilobyte is enough for all but run, and the wrapper's memory is the worker's.
	lines.Buffer(make([]byte, 0, 1024), MaxLine)
	lines.Split(whole)
	return &Reader{lines: lines}
}

// Read gives the next message. io.EOF is the end of the stream between two messages,
// io.ErrUnexpectedEOF the end inside of one; after any error the stream is of no use.
func (r *Reader) Read() (Message, error) {
	if r.lines.Scan() {
		return Decode(r.lines.Bytes())
	}
	switch err := r.lines.Err(); {
	case err == nil:
		return Message{}, io.EOF
	case errors.Is(err, bufio.ErrTooLong):
		return Message{}, fmt.Errorf("%w: no end of line within %d bytes", ErrTooLong, MaxLine)
	default:
		return Message{}, err
	}
}

// whole splits at newlines and, unlike bufio.ScanLines, does not take the torso of a
// broken connection for a line.
func whole(data []byte, atEOF bool) (int, []byte, error) {
	n, line, err := bufio.ScanLines(data, false)
	if n == 0 && atEOF && len(data) > 0 {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return n, line, err
}
