package main

import (
	"bufio"
	"encoding/json"
	"os"
	"sort"
)

// event is one line of a history. docs/campaigns.md (Form of a history) describes the fields.
type event struct {
	Client   string   `json:"client"`
	Kind     string   `json:"kind"`
	Began    int64    `json:"began"`
	Ended    int64    `json:"ended"`
	Outcome  string   `json:"outcome"`
	Stream   string   `json:"stream"`
	Subject  string   `json:"subject"`
	Value    string   `json:"value"`
	Seq      int64    `json:"seq"`
	Expected *int64   `json:"expected"`
	Values   []string `json:"values"`
	Consumer string   `json:"consumer"`
	Count    int64    `json:"count"`
	Text     string   `json:"text"`
}

// id names a message: values are unique in a stream.
type id struct{ stream, value string }

// history is an index over the events of a run.
type history struct {
	events []event
	// retention of each stream, as a line of kind "stream" states it.
	retention map[string]string
	// policy of each consumer that acknowledges, by stream and name; from lines of kind "consumer".
	consumers map[id]bool
	// seen has the sequence at which anybody saw a message: stored, delivered or read.
	seen map[id]int64
	// nodes whose replica of a stream was read at the end, with the time of the first and the last read.
	nodes map[string]map[string]*span
	last  int64
}

type span struct{ began, ended int64 }

// load reads a history. Fields that are left out have their defaults.
func load(path string) (*history, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	h := &history{
		retention: map[string]string{}, consumers: map[id]bool{}, seen: map[id]int64{},
		nodes: map[string]map[string]*span{},
	}
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 1<<20), 1<<26)
	for lines.Scan() {
		each := event{Outcome: "ok"}
		if err := json.Unmarshal(lines.Bytes(), &each); err != nil {
			return nil, err
		}
		h.events = append(h.events, each)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	sort.SliceStable(h.events, func(a, b int) bool { return h.events[a].Began < h.events[b].Began })
	for n := range h.events {
		h.index(&h.events[n])
	}
	return h, nil
}

func (h *history) index(e *event) {
	h.last = max(h.last, e.Began, e.Ended)
	switch e.Kind {
	case "stream":
		h.retention[e.Stream] = e.Text
	case "consumer":
		h.consumers[id{e.Stream, e.Consumer}] = e.Text == "explicit"
	case "stored":
		nodes := h.nodes[e.Stream]
		if nodes == nil {
			nodes = map[string]*span{}
			h.nodes[e.Stream] = nodes
		}
		if nodes[e.Client] == nil {
			nodes[e.Client] = &span{e.Began, e.Ended}
		}
		nodes[e.Client].ended = e.Ended
	}
	switch e.Kind {
	case "stored", "deliver", "get", "direct", "read":
		if e.Value != "" && e.Seq > 0 {
			key := id{e.Stream, e.Value}
			if h.seen[key] == 0 {
				h.seen[key] = e.Seq
			}
		}
	}
}

// expected returns the last sequence of the subject that a write asked for, and anySeq if it asked for none.
func (e *event) expected() int64 {
	if e.Expected == nil {
		return anySeq
	}
	return *e.Expected
}

// members returns the messages of a write in their order.
func (e *event) members() []string {
	if len(e.Values) > 0 {
		return e.Values
	}
	return []string{e.Value}
}

// place returns the kind of a write's place in its stream: the next one, or a later one, as the chunks of objects are not
// part of a history.
func (h *history) place(stream string) string {
	if h.retention[stream] == "objects" {
		return "later"
	}
	return "write"
}

// kept returns true for a stream that keeps its messages, so that what was never seen at the end was never stored.
func (h *history) kept(stream string) bool {
	return h.retention[stream] == "limits" && len(h.nodes[stream]) > 0
}
