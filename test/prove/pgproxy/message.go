package pgproxy

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Direction of a message.
type Direction string

// The directions.
const (
	ToServer Direction = "to server"
	ToClient Direction = "to client"
)

// Point is the place of a message in what came by since Watch.
type Point struct {
	// Conn numbers the connections from 0, in the order of their first message since Watch.
	Conn int
	Direction
	Index int // within connection and direction, from 0
}

// Message is one message that came by.
type Message struct {
	Point
	Type string // as package pgproto3 has it: Query, Sync, DataRow
	Text string // SQL of Query and Parse, tag of CommandComplete, SQLSTATE of ErrorResponse
}

// String is for people: "0 to server 3 Execute".
func (m Message) String() string {
	return strings.TrimSpace(fmt.Sprintf("%d %s %d %s %s", m.Conn, m.Direction, m.Index, m.Type, m.Text))
}

// cancelConn is the Conn of a cancel request. It has a connection of its own, comes when
// it likes, and so takes no number from the others.
const cancelConn = -1

func describe(at Point, m pgproto3.Message) Message {
	d := Message{Point: at, Type: strings.TrimPrefix(fmt.Sprintf("%T", m), "*pgproto3.")}
	switch m := m.(type) {
	case *pgproto3.Query:
		d.Text = m.String
	case *pgproto3.Parse:
		d.Text = m.Query
	case *pgproto3.CommandComplete:
		d.Text = string(m.CommandTag)
	case *pgproto3.ErrorResponse:
		d.Text = m.Code
	}
	return d
}

// RoundTrips counts how often a client had to wait for the server. A round trip is the
// client's flush of all that it has to say, ended by a message that makes the server
// answer (Query, Sync, Flush, FunctionCall), and the server's answers up to
// ReadyForQuery. The exchange that opens a connection is not counted, nor is Terminate,
// which nobody answers.
func RoundTrips(seen []Message) (n int) {
	for _, m := range seen {
		switch m.Type {
		case "Query", "Sync", "Flush", "FunctionCall":
			n++
		}
	}
	return n
}

// Kind of a fault.
type Kind int

// The kinds of faults.
const (
	None Kind = iota
	// Cut ends the connection on both sides.
	Cut
	// CutClient ends it for the client only. What the client has sent, and not the server
	// has got, is kept until Release: the server hears it then, and the end.
	CutClient
	// CutServer ends it for the server only; the client hears nothing more.
	CutServer
	// Silence lets nothing pass any more, and both sides believe in the connection:
	// half-open. Release tells the server the end, as its keepalive would.
	Silence
	// Delay keeps the message, and those behind it, until Release; then all goes on.
	Delay
)

func (k Kind) String() string {
	return [...]string{"none", "cut", "cut of the client", "cut of the server", "silence", "delay"}[k]
}

// Fault is what happens at a message.
type Fault struct {
	Kind
	After bool // the message itself still passes
}

// String is for people: "cut before".
func (f Fault) String() string {
	if f.After {
		return f.Kind.String() + " after"
	}
	return f.Kind.String() + " before"
}

// Rule says what happens at a message. The proxy asks it for one message at a time.
type Rule func(Message) Fault

// At is the Rule that f happens at one point, once.
func At(p Point, f Fault) Rule {
	return func(m Message) Fault {
		if m.Point == p {
			return f
		}
		return Fault{}
	}
}
