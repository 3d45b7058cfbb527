// Command judge checks histories of lakestream's clients with porcupine, a linearizability checker by Anish Athalye.
//
//	go run . history.jsonl ...
//
// It reads the files that tests/histories writes, translates them into operations on five kinds of objects (models.go),
// and prints a verdict for each file as a line of JSON. Exit code 1: a history is not linearizable; 2: it could not be
// read; 3: an object was not decided in time.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

func place(stream, consumer string, seq int64) string {
	return stream + " " + consumer + " " + strconv.FormatInt(seq, 10)
}

// finding is an object that no order of its operations explains.
type finding struct {
	Model   string   `json:"model"`
	Object  string   `json:"object"`
	Ordered int      `json:"ordered"`
	Stuck   []string `json:"stuck"`
}

type count struct {
	Objects    int `json:"objects"`
	Operations int `json:"operations"`
	Violations int `json:"violations"`
	Undecided  int `json:"undecided"`
}

type verdict struct {
	File     string           `json:"file"`
	Events   int              `json:"events"`
	Models   map[string]count `json:"models"`
	Findings []finding        `json:"findings"`
	Seconds  float64          `json:"seconds"`
}

func main() {
	timeout := flag.Duration("timeout", time.Minute, "for one object")
	most := flag.Int("most", 5, "findings of each model that are told in full")
	flag.Parse()
	code := 0
	for _, path := range flag.Args() {
		found, err := judge(path, *timeout, *most)
		if err != nil {
			fmt.Fprintf(os.Stderr, "judge: %s: %v\n", path, err)
			os.Exit(2)
		}
		line, _ := json.Marshal(found)
		fmt.Println(string(line))
		for _, each := range found.Models {
			if each.Violations > 0 {
				code = 1
			} else if each.Undecided > 0 && code == 0 {
				code = 3
			}
		}
	}
	os.Exit(code)
}

func judge(path string, timeout time.Duration, most int) (*verdict, error) {
	began := time.Now()
	h, err := load(path)
	if err != nil {
		return nil, err
	}
	j := split(h)
	found := &verdict{File: path, Events: len(h.events), Models: map[string]count{}, Findings: []finding{}}
	for _, each := range []struct {
		name    string
		model   porcupine.Model
		objects *objects
	}{
		{"register", register, &j.registers},
		{"sequence", sequence, &j.sequences},
		{"message", message, &j.messages},
		{"delivery", delivery, &j.deliveries},
		{"ordered", ordered, &j.ordered},
	} {
		counted, findings := check(each.name, each.model, each.objects.all, timeout, most)
		found.Models[each.name] = counted
		found.Findings = append(found.Findings, findings...)
	}
	found.Seconds = time.Since(began).Seconds()
	return found, nil
}

// check decides every object of a model, as many at a time as there are processors.
func check(name string, model porcupine.Model, all []*object, timeout time.Duration, most int) (count, []finding) {
	counted := count{Objects: len(all)}
	var bad []*object
	var lock sync.Mutex
	var group sync.WaitGroup
	work := make(chan *object)
	for range make([]struct{}, runtime.NumCPU()) {
		group.Add(1)
		go func() {
			defer group.Done()
			for each := range work {
				result := porcupine.CheckOperationsTimeout(model, each.operations, timeout)
				lock.Lock()
				counted.Operations += len(each.operations)
				switch result {
				case porcupine.Illegal:
					bad = append(bad, each)
				case porcupine.Unknown:
					counted.Undecided++
				}
				lock.Unlock()
			}
		}()
	}
	for _, each := range all {
		work <- each
	}
	close(work)
	group.Wait()
	counted.Violations = len(bad)
	sort.Slice(bad, func(a, b int) bool { return bad[a].name < bad[b].name })
	var findings []finding
	for _, each := range bad[:min(most, len(bad))] {
		findings = append(findings, explain(name, model, each, timeout))
	}
	return counted, findings
}

// explain tells the operations that can not follow the longest order that was found, the earliest first.
func explain(name string, model porcupine.Model, each *object, timeout time.Duration) finding {
	_, info := porcupine.CheckOperationsVerbose(model, each.operations, timeout)
	var longest []int
	for _, partition := range info.PartialLinearizations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	in := map[int]bool{}
	for _, n := range longest {
		in[n] = true
	}
	told := finding{Model: name, Object: each.name, Ordered: len(longest), Stuck: []string{}}
	for n, operation := range each.operations {
		if !in[n] && len(told.Stuck) < 5 {
			told.Stuck = append(told.Stuck, operation.Input.(call).String())
		}
	}
	return told
}
