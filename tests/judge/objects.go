package main

import (
	"sort"

	"github.com/anishathalye/porcupine"
)

// object is one object of a model with the operations on it.
type object struct {
	name       string
	operations []porcupine.Operation
}

func (o *object) add(client int, began, ended int64, c call) {
	o.operations = append(o.operations, porcupine.Operation{ClientId: client, Input: c, Call: began, Return: ended})
}

// objects has the objects of one model in the order of their first operations.
type objects struct {
	byName map[string]*object
	all    []*object
}

func (o *objects) get(name string) *object {
	if found := o.byName[name]; found != nil {
		return found
	}
	if o.byName == nil {
		o.byName = map[string]*object{}
	}
	made := &object{name: name}
	o.byName[name] = made
	o.all = append(o.all, made)
	return made
}

// judged is everything that the models judge of one history.
type judged struct {
	registers, sequences, messages, deliveries, ordered objects
	clients                                             map[string]int
}

func (j *judged) client(name string) int {
	number, known := j.clients[name]
	if !known {
		number = len(j.clients)
		j.clients[name] = number
	}
	return number
}

// split translates the events of a history into operations on objects.
func split(h *history) *judged {
	j := &judged{clients: map[string]int{}}
	first := map[id]int64{} // the first attempt to write a message
	counted := map[id]bool{}
	for n := range h.events {
		e := &h.events[n]
		switch e.Kind {
		case "publish", "batch", "put":
			key := id{e.Stream, e.members()[0]}
			if _, tried := first[key]; !tried {
				first[key] = e.Began
			}
			j.write(h, e, first[key])
		}
	}
	j.unanswered(h, first)
	for n := range h.events {
		e := &h.events[n]
		client := j.client(e.Client)
		name := e.Stream + " " + e.Value
		switch e.Kind {
		case "get", "read":
			c := call{kind: "read", value: e.Value, seq: e.Seq, expected: anySeq}
			j.registers.get(e.Stream+" "+e.Subject).add(client, e.Began, e.Ended, c)
			j.see(e, name, client)
		case "direct":
			j.see(e, name, client)
		case "stored":
			if h.retention[e.Stream] == "limits" {
				j.see(e, name, client)
			}
		case "deliver":
			j.see(e, name, client)
			j.deliver(h, e, client)
		case "ack":
			j.ack(e, client)
		}
	}
	j.end(h, counted)
	for _, each := range j.registers.all {
		each.chain()
	}
	return j
}

// chain sets for each write the sequence of the one before it.
func (o *object) chain() {
	var known []int64
	for _, each := range o.operations {
		if c := each.Input.(call); c.kind == "write" {
			known = append(known, c.seq)
		}
	}
	sort.Slice(known, func(a, b int) bool { return known[a] < known[b] })
	for n := range o.operations {
		c := o.operations[n].Input.(call)
		if c.kind == "write" {
			if at := sort.Search(len(known), func(m int) bool { return known[m] >= c.seq }); at > 0 {
				c.after = known[at-1]
			}
			o.operations[n].Input = c
		}
	}
}

// write adds an attempt to write. What is known of its effect is in the answers: an ack that is no duplicate means that
// this attempt was stored between its call and its answer, a duplicate that an earlier one was.
func (j *judged) write(h *history, e *event, first int64) {
	client := j.client(e.Client)
	members := e.members()
	register := j.registers.get(e.Stream + " " + e.Subject)
	value := members[len(members)-1]
	began, ended := e.Began, e.Ended
	repeated := e.Text == "duplicate"
	switch e.Outcome {
	case "ok":
		if repeated {
			began = first
		}
		register.add(client, began, ended, call{kind: "write", value: value, seq: e.Seq, expected: e.expected()})
		low := e.Seq - int64(len(members)) + 1
		c := call{kind: h.place(e.Stream), value: value, seq: e.Seq, expected: low}
		j.sequences.get(e.Stream).add(client, began, ended, c)
		for n, member := range members {
			c := call{kind: "write", value: member, seq: low + int64(n), expected: anySeq, repeated: repeated}
			j.messages.get(e.Stream+" "+member).add(client, e.Began, ended, c)
		}
	case "refused":
		if e.Text == "" || e.Kind == "publish" && e.Text != "no responders" {
			register.add(client, began, ended, call{kind: "refused", seq: e.Seq, expected: e.expected()})
		}
		for _, member := range members {
			j.messages.get(e.Stream+" "+member).add(client, began, ended, call{kind: "refused", expected: anySeq})
		}
	default:
		for _, member := range members {
			j.messages.get(e.Stream+" "+member).add(client, began, never, call{kind: "perhaps", expected: anySeq})
		}
	}
}

// unanswered adds the writes that were never acked to registers and sequences: at the sequence at which they were seen,
// or as perhaps stored if the stream does not show at the end what it got.
func (j *judged) unanswered(h *history, first map[id]int64) {
	acked := map[id]bool{}
	for n := range h.events {
		e := &h.events[n]
		if e.Outcome == "ok" && (e.Kind == "publish" || e.Kind == "batch" || e.Kind == "put") {
			acked[id{e.Stream, e.members()[0]}] = true
		}
	}
	done := map[id]bool{}
	for n := range h.events {
		e := &h.events[n]
		if e.Outcome != "unknown" || e.Kind != "publish" && e.Kind != "batch" && e.Kind != "put" {
			continue
		}
		members := e.members()
		key := id{e.Stream, members[0]}
		if acked[key] || done[key] {
			continue
		}
		done[key] = true
		client := j.client(e.Client)
		register := j.registers.get(e.Stream + " " + e.Subject)
		value := members[len(members)-1]
		low, seen := h.seen[key]
		if seen {
			last := low + int64(len(members)) - 1
			register.add(client, first[key], never, call{kind: "write", value: value, seq: last, expected: e.expected()})
			c := call{kind: h.place(e.Stream), value: value, seq: last, expected: low}
			j.sequences.get(e.Stream).add(client, first[key], never, c)
		} else if !h.kept(e.Stream) {
			register.add(client, first[key], never, call{kind: "perhaps", value: value, expected: e.expected()})
		}
	}
}

// see adds that a message was there when it was read, stored or delivered.
func (j *judged) see(e *event, name string, client int) {
	if e.Value != "" && e.Seq > 0 {
		j.messages.get(name).add(client, e.Began, e.Ended, call{kind: "seen", value: e.Value, seq: e.Seq, expected: anySeq})
	}
}

func (j *judged) deliver(h *history, e *event, client int) {
	c := call{kind: "deliver", value: e.Value, seq: e.Seq, expected: anySeq}
	if h.consumers[id{e.Stream, e.Consumer}] {
		j.deliveries.get(place(e.Stream, e.Consumer, e.Seq)).add(client, e.Began-underWay, e.Ended, c)
	} else {
		j.ordered.get(e.Stream+" "+e.Consumer).add(client, e.Began, e.Ended, c)
	}
}

func (j *judged) ack(e *event, client int) {
	object := j.deliveries.get(place(e.Stream, e.Consumer, e.Seq))
	c := call{kind: "ack", seq: e.Seq, expected: anySeq}
	ended := e.Ended
	if e.Outcome != "ok" {
		c.kind, ended = "perhaps", never
	}
	object.add(client, e.Began, ended, c)
}

// end adds what was read after everything had stopped.
func (j *judged) end(h *history, counted map[id]bool) {
	stored := map[string]map[id]bool{} // by node
	last := map[string]int64{}
	content := map[string]map[int64]bool{}
	for n := range h.events {
		e := &h.events[n]
		if e.Kind != "stored" {
			continue
		}
		node := e.Stream + " " + e.Client
		if stored[node] == nil {
			stored[node] = map[id]bool{}
		}
		stored[node][id{e.Stream, e.Value}] = true
		last[e.Stream] = max(last[e.Stream], e.Seq)
		if content[e.Stream] == nil {
			content[e.Stream] = map[int64]bool{}
		}
		content[e.Stream][e.Seq] = true
	}
	end := h.last + 1
	for stream, retention := range h.retention {
		if retention == "limits" && last[stream] > 0 {
			c := call{kind: "last", seq: last[stream], expected: anySeq}
			j.sequences.get(stream).add(j.client("end"), end, end+1, c)
		}
	}
	for n := range h.events {
		e := &h.events[n]
		if e.Kind != "publish" && e.Kind != "batch" && e.Kind != "put" {
			continue
		}
		for member, value := range e.members() {
			key := id{e.Stream, value}
			if counted[key] {
				continue
			}
			if h.retention[e.Stream] == "limits" {
				counted[key] = true
				for node, read := range h.nodes[e.Stream] {
					if !stored[e.Stream+" "+node][key] {
						c := call{kind: "absent", value: value, expected: anySeq}
						j.messages.get(e.Stream+" "+value).add(j.client(node), read.began, max(read.ended, read.began+1), c)
					}
				}
			}
			if e.Outcome != "ok" {
				continue
			}
			counted[key] = true
			seq := e.Seq - int64(len(e.members())) + 1 + int64(member)
			j.endOfDeliveries(h, e.Stream, seq, content[e.Stream][seq], end)
		}
	}
}

func (j *judged) endOfDeliveries(h *history, stream string, seq int64, there bool, end int64) {
	for consumer, acks := range h.consumers {
		if consumer.stream != stream || !acks {
			continue
		}
		kind := "end"
		switch retention := h.retention[stream]; {
		case retention != "limits" && !there:
			kind = "gone"
		case retention == "workqueue":
			kind = "left"
		case retention != "limits":
			continue // another consumer may not have acked it
		}
		c := call{kind: kind, seq: seq, expected: anySeq}
		j.deliveries.get(place(stream, consumer.value, seq)).add(j.client("end"), end, end+1, c)
	}
}
