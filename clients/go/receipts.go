package delayd

import (
	"encoding/json"
	"slices"
	"unicode/utf8"
)

// Verdict is the definite answer to a request, from its receipt.
type Verdict struct {
	Verdict  string   `json:"verdict"` // cancelled, replaced, too-late, not-found, ...
	Killed   []string `json:"killed"`  // sources of the messages that will never be delivered
	DueMs    *int64   `json:"due_ms"`  // of the message that the answer is about, Unix ms
	AtMs     int64    `json:"at_ms"`   // the master's now of the step that decided
	Detail   string   `json:"detail"`  // for people
	Source   string   `json:"source"`  // of the request that it answers
	OldDueMs *int64   `json:"old_due_ms"`
}

// earlyMax is how many receipts a wait keeps until it knows its source.
const earlyMax = 100

// later are verdicts of later receipts with the same source: what became of the message.
var later = []string{"delivered", "dead", "expired", "ended"}

// Wait finds the receipt of one request among the records of delayd-receipts. Read these from their
// end, with read_committed, and begin before the request is sent. For one goroutine.
type Wait struct {
	id     *string
	source string
	early  []Verdict
	answer *Verdict
}

// WaitFor begins a wait; id is that of the request, nil if it has none and asked for receipts.
func WaitFor(id *string) *Wait { return &Wait{id: id} }

// Acknowledged tells where Kafka has the request: its source, "partition/offset".
func (w *Wait) Acknowledged(source string) {
	w.source = source
	for _, verdict := range w.early {
		w.take(verdict)
	}
	w.early = nil
}

// Read takes a record of delayd-receipts; what is no answer to this request changes nothing.
func (w *Wait) Read(key, value []byte) {
	if key == nil || (w.id != nil && *w.id != string(key)) {
		return
	}
	verdict := verdictOf(value)
	if verdict == nil || (w.id == nil && verdict.Source != string(key)) {
		return
	}
	if w.source != "" {
		w.take(*verdict)
		return
	}
	if len(w.early) >= earlyMax {
		w.early = w.early[1:]
	}
	w.early = append(w.early, *verdict)
}

// Answer is the verdict, or nil while there is none.
func (w *Wait) Answer() *Verdict { return w.answer }

func (w *Wait) take(verdict Verdict) {
	if w.answer == nil && verdict.Source == w.source {
		w.answer = &verdict
	}
}

// verdictOf reads the value of a receipt; nil if no delayd has written it, or it is a later one.
func verdictOf(value []byte) *Verdict {
	var fields map[string]json.RawMessage
	if !utf8.Valid(value) || json.Unmarshal(value, &fields) != nil {
		return nil
	}
	for _, name := range []string{"verdict", "killed", "due_ms", "at_ms", "detail", "source"} {
		content, isThere := fields[name]
		if !isThere || (string(content) == "null" && name != "due_ms" && name != "detail") {
			return nil
		}
	}
	var verdict Verdict
	if json.Unmarshal(value, &verdict) != nil || slices.Contains(later, verdict.Verdict) {
		return nil
	}
	return &verdict
}
