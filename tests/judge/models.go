package main

import (
	"fmt"
	"math"

	"github.com/anishathalye/porcupine"
)

const (
	anySeq = int64(-1)
	// never ends an operation without an answer: it may take effect at any moment after its call, or not at all.
	never = int64(math.MaxInt64)
	// underWay is how long a delivery may take from its leader to its client (docs/reliability.md: for a few seconds
	// after a leader was cut off, a message on its way may still arrive).
	underWay = int64(7e9)
)

// call is one operation on an object; which fields count depends on kind.
type call struct {
	kind     string
	value    string
	seq      int64
	expected int64
	// after is the largest known sequence of the object below seq. Sequences grow, so that write comes first: without it
	// the writes of concurrent clients would be tried in every permutation.
	after int64
	// repeated is set on an ack that says that its message was stored before.
	repeated bool
}

func (c call) String() string {
	text := fmt.Sprintf("%s %s seq %d", c.kind, c.value, c.seq)
	if c.expected != anySeq {
		text += fmt.Sprintf(" expected %d", c.expected)
	}
	if c.repeated {
		text += " duplicate"
	}
	return text
}

func nondeterministic(initial any, step func(state any, c call) []any) porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{initial} },
		Step: func(state, input, _ any) []any { return step(state, input.(call)) },
		DescribeOperation: func(input, _ any) string {
			return input.(call).String()
		},
	}
	return model.ToModel()
}

// held is the state of a register: sequence and value of its last message. If the sequence of that message is not
// known, seq is the sequence of the one before.
type held struct {
	seq   int64
	value string
	known bool
}

func (s held) may(seq int64) bool {
	if s.known {
		return s.seq == seq
	}
	return s.seq < seq
}

// register is a key of a bucket, or a subject of a stream, with its last message. A write gives it a new value and a
// larger sequence, and may expect the sequence of the message before; a read at the leader returns its value.
var register = nondeterministic(held{known: true}, func(state any, c call) []any {
	s := state.(held)
	fits := c.expected == anySeq || s.may(c.expected)
	switch c.kind {
	case "write":
		if fits && c.seq > s.seq && s.seq >= c.after {
			return []any{held{c.seq, c.value, true}}
		}
	case "perhaps": // a write without an answer
		if fits {
			return []any{s, held{s.seq, c.value, false}}
		}
		return []any{s}
	case "refused":
		if c.seq == 0 && !(s.known && s.seq == c.expected) {
			return []any{s}
		}
		if c.seq != 0 && c.seq != c.expected && s.may(c.seq) {
			return []any{held{c.seq, s.value, true}}
		}
	case "read":
		if s.value == c.value && s.may(c.seq) {
			return []any{held{c.seq, s.value, true}}
		}
	}
	return nil
})

// sequence is a stream: its last sequence. A write takes the next ones, or later ones where chunks of objects are between
// them, and a read at the end finds the last one.
var sequence = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, input, _ any) (bool, any) {
		last, c := state.(int64), input.(call)
		if c.kind == "last" {
			return last == c.seq, last
		}
		if c.kind == "later" {
			return last < c.expected, c.seq
		}
		return last+1 == c.expected, c.seq // expected: the first of its sequences
	},
	DescribeOperation: func(input, _ any) string { return input.(call).String() },
}

// somewhere is the sequence of a message that is stored where nobody has seen it yet.
const somewhere = int64(-2)

// message is one message by its identity: absent (0), or stored once at its sequence. A repeated publish is told that
// it is a duplicate.
var message = nondeterministic(int64(0), func(state any, c call) []any {
	at := state.(int64)
	switch c.kind {
	case "write":
		if !c.repeated && at == 0 || c.repeated && (at == c.seq || at == somewhere) {
			return []any{c.seq}
		}
	case "perhaps":
		if at == 0 {
			return []any{at, somewhere}
		}
		return []any{at}
	case "refused":
		return []any{at}
	case "seen":
		if at == c.seq || at == somewhere {
			return []any{c.seq}
		}
	case "absent":
		if at == 0 {
			return []any{at}
		}
	}
	return nil
})

// progress is the state of one message at one consumer.
type progress struct{ delivered, acked bool }

// delivery is one message of one consumer: delivered at least once, and not again after its ack was confirmed. A work
// queue, or a stream with interest, holds it until it is acked.
var delivery = nondeterministic(progress{}, func(state any, c call) []any {
	s := state.(progress)
	switch c.kind {
	case "deliver":
		if !s.acked {
			return []any{progress{true, false}}
		}
	case "ack":
		if s.delivered {
			return []any{progress{true, true}}
		}
	case "perhaps":
		if s.delivered {
			return []any{s, progress{true, true}}
		}
		return []any{s}
	case "end": // of a stream that keeps its messages
		if s.delivered {
			return []any{s}
		}
	case "gone": // from a work queue, or a stream with interest
		if s.acked {
			return []any{s}
		}
	case "left": // in a work queue
		if !s.acked {
			return []any{s}
		}
	}
	return nil
})

// ordered is an ordered consumer: the sequence that it delivered last.
var ordered = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, input, _ any) (bool, any) {
		c := input.(call)
		return state.(int64)+1 == c.seq, c.seq
	},
	DescribeOperation: func(input, _ any) string { return input.(call).String() },
}
