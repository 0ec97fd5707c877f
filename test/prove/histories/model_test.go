// Package histories_test records what many clients do to a few windows while their
// connections fail, and asks porcupine whether one window that does one thing after the
// other could have given the same answers.
package histories_test

import (
	"fmt"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/onceguard/onceguard/pkg/claim"
)

// verb is what is asked of a window.
type verb string

const (
	doClaim      verb = "claim"
	doHeartbeat  verb = "heartbeat"
	doComplete   verb = "complete"   // begin, effect, complete, COMMIT
	doCheckpoint verb = "checkpoint" // begin, effect, checkpoint, COMMIT
	doRelease    verb = "release"
	doResolve    verb = "resolve"
	doRead       verb = "read"
	doExpire     verb = "expire" // by the proof: the lease has run out
)

// question is an operation's input; execution_ids are small numbers, each new to its window.
type question struct {
	verb verb
	id   int
	next int // resolve: the id that follows
	seq  int // checkpoint: the sequence it continues from
}

// reply is an operation's output. The zero value of word with unknown set is an answer
// that was lost: what was asked may have happened, at any time after the call, or never.
type reply struct {
	unknown bool
	word    string
	attempt int  // claim, read
	id      int  // read
	seq     int  // read, checkpoint
	dead    bool // claim busy: the lease was seen to have run out
}

const (
	fenced    = "OG001"
	completed = "OG002"
	outOfStep = "OG007"
	done      = "done"
)

// state is one window. It is comparable: sets of ids are strings of bits.
type state struct {
	status   claim.Status
	id       int // that holds or completed the window
	lease    int // the id on the lease; it stays after the completion until the release
	alive    bool
	attempt  int
	seq      int
	used     string // ids that had the window and lost it
	released string // of those, the ones that gave it back themselves
}

func has(set string, id int) bool { return id < len(set) && set[id] == '1' }

func with(set string, id int) string {
	b := []byte(set)
	for len(b) <= id {
		b = append(b, '0')
	}
	b[id] = '1'
	return string(b)
}

// model is the ledger's promise for one window.
var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(s, in, out any) (bool, any) {
		q, r := in.(question), out.(reply)
		next, want := s.(state).answer(q)
		if r.unknown {
			// It takes place here. That it never did is the same as after everything else.
			return true, next
		}
		if hesitant(s.(state), q, r) {
			return true, s
		}
		return r == want, next
	},
	DescribeOperation: func(in, out any) string { return describe(in.(question), out.(reply)) },
}

// hesitant says whether r only means "ask again": another transaction holds the row, so
// nothing was decided. There must be a row, and a claim knows a completed one by looking.
func hesitant(s state, q question, r reply) bool {
	open := s.status == claim.Running || s.status == claim.Failed
	switch {
	case q.verb == doClaim && r.word == word(claim.Wait, claim.Committing):
		return open
	case q.verb == doClaim && r.word == word(claim.Wait, claim.BusyHeld):
		return open && r.dead // its heartbeat was being written
	}
	return q.verb == doResolve && r.word == string(claim.ResolvedPending) && s.status != ""
}

func word(v claim.Verdict, r claim.Reason) string { return string(v) + " " + string(r) }

// answer is what the window says to q, and how it is afterwards.
func (s state) answer(q question) (state, reply) {
	holds := s.status == claim.Running && s.id == q.id
	switch q.verb {
	case doClaim:
		return s.claim(q.id)
	case doHeartbeat:
		if s.lease != q.id {
			return s, reply{word: string(claim.BeatLost)}
		}
		s.alive = true
		return s, reply{word: string(claim.BeatOK)}
	case doComplete:
		if !holds {
			return s, s.refusal()
		}
		s.status = claim.Completed
		return s, reply{word: done}
	case doCheckpoint:
		switch {
		case !holds:
			return s, s.refusal()
		case s.seq != q.seq:
			return s, reply{word: outOfStep}
		}
		s.seq++
		return s, reply{word: done, seq: s.seq}
	case doRelease:
		return s.release(q.id)
	case doResolve:
		return s.resolve(q.id, q.next)
	case doRead:
		return s, reply{word: string(s.status), id: s.id, attempt: s.attempt, seq: s.seq}
	case doExpire:
		s.alive = false
		return s, reply{word: done}
	}
	panic("no such verb: " + q.verb)
}

func (s state) refusal() reply {
	if s.status == claim.Completed {
		return reply{word: completed}
	}
	return reply{word: fenced}
}

func (s state) claim(id int) (state, reply) {
	reason := claim.Retry
	switch {
	case s.status == claim.Completed:
		return s, reply{word: word(claim.Skip, claim.AlreadyCompleted)}
	case s.status == claim.Running && s.id == id:
		s.alive = true
		return s, reply{word: word(claim.Run, claim.Adopted), attempt: s.attempt}
	case has(s.used, id):
		return s, reply{word: word(claim.Wait, claim.FenceLost)}
	case s.status == claim.Running && s.alive:
		return s, reply{word: word(claim.Wait, claim.BusyHeld)}
	case s.status == claim.Running:
		reason = claim.Takeover
		s.used = with(s.used, s.id)
	case s.status == "":
		reason = claim.First
	}
	s.status, s.id, s.lease, s.alive = claim.Running, id, id, true
	s.attempt++
	return s, reply{word: word(claim.Run, reason), attempt: s.attempt}
}

func (s state) release(id int) (state, reply) {
	switch {
	case s.id == id && s.status == claim.Completed:
		if s.lease == id {
			s.lease, s.alive = 0, false
		}
		return s, reply{word: string(claim.OutcomeCompleted)}
	case s.id == id && s.status == claim.Running:
		s.status, s.id, s.lease, s.alive = claim.Failed, 0, 0, false
		s.used, s.released = with(s.used, id), with(s.released, id)
		return s, reply{word: string(claim.OutcomeFailed)}
	case has(s.released, id): // the answer to a lost reply
		return s, reply{word: string(claim.OutcomeFailed)}
	}
	return s, reply{}
}

func (s state) resolve(id, next int) (state, reply) {
	switch {
	case s.status == claim.Completed && s.id == id:
		return s, reply{word: string(claim.ResolvedCommitted)}
	case s.status == claim.Running && s.id == next: // asked again
		return s, reply{word: string(claim.ResolvedNotCommitted)}
	case s.status != claim.Running || s.id != id:
		return s, reply{word: string(claim.ResolvedLost)}
	}
	s.used = with(s.used, id)
	s.id, s.lease = next, next
	return s, reply{word: string(claim.ResolvedNotCommitted)}
}

func describe(q question, r reply) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s(%d", q.verb, q.id)
	switch q.verb {
	case doResolve:
		fmt.Fprintf(&b, " -> %d", q.next)
	case doCheckpoint:
		fmt.Fprintf(&b, ", seq %d", q.seq)
	case doClaim, doHeartbeat, doComplete, doRelease, doRead, doExpire:
	}
	if r.unknown {
		b.WriteString("): ?")
		return b.String()
	}
	fmt.Fprintf(&b, "): %q", r.word)
	if r.attempt != 0 || r.id != 0 || r.seq != 0 {
		fmt.Fprintf(&b, " attempt %d, id %d, seq %d", r.attempt, r.id, r.seq)
	}
	return b.String()
}
