package delayd

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// errTypes stands for a call that the types do not let anyone write.
var errTypes = refused("the types do not let anyone write this")

type object = map[string]any

func cases(t *testing.T, part string) []any {
	t.Helper()
	file, err := os.ReadFile("../conformance/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var parts map[string][]any
	decoder := json.NewDecoder(strings.NewReader(string(file)))
	decoder.UseNumber()
	if err := decoder.Decode(&parts); err != nil || len(parts[part]) < 50 {
		t.Fatal(part, err)
	}
	return parts[part]
}

func TestRequests(t *testing.T) {
	for _, each := range cases(t, "requests") {
		each := each.(object)
		t.Run(each["name"].(string), func(t *testing.T) {
			record, err := recordOf(each)
			if _, isRefused := each["refused"]; isRefused {
				if !errors.Is(err, ErrRefused) {
					t.Fatal("it is not refused:", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			compare(t, each["record"], saidRecord(record))
		})
	}
}

func TestReceipts(t *testing.T) {
	for _, each := range cases(t, "receipts") {
		each := each.(object)
		t.Run(each["name"].(string), func(t *testing.T) {
			compare(t, each["verdict"], answerOf(each))
		})
	}
}

func compare(t *testing.T, wanted, got any) {
	t.Helper()
	// Both as plain JSON, so that numbers and nil of any type are alike.
	if wanted, got := plain(t, wanted), plain(t, got); !reflect.DeepEqual(wanted, got) {
		t.Fatalf("wanted %v, got %v", wanted, got)
	}
}

func plain(t *testing.T, value any) (plain any) {
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, &plain)
	}
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

func recordOf(each object) (Record, error) {
	arguments := each["arguments"].(object)
	buffer := Buffer{"delayd-buffer", int(number(each["partitions"]))}
	if named, is := arguments["buffer"].(string); is {
		buffer.Topic = named
	}
	due, count := dueOf(arguments)
	if count > 1 {
		return Record{}, errTypes
	}
	switch each["op"] {
	case "cancel":
		return buffer.Cancel(text(arguments["id"]))
	case "fire":
		return buffer.Fire(text(arguments["id"]))
	case "reschedule":
		return buffer.Reschedule(text(arguments["id"]), due)
	case "replace":
		return buffer.Replace(messageOf(arguments, due))
	case "debounce":
		return buffer.Debounce(messageOf(arguments, due), spanText(arguments["max_wait"]))
	}
	return buffer.Schedule(messageOf(arguments, due))
}

func dueOf(arguments object) (due Due, count int) {
	for name, said := range arguments {
		written, isText := said.(string)
		switch {
		case name == "in" && isText:
			due = InText(written)
		case name == "in":
			due = In(span(said))
		case name == "at" && isText:
			due = AtText(written)
		case name == "at":
			due = At(moment(said))
		case name == "by" && isText:
			due = ByText(written)
		case name == "by":
			due = By(span(said))
		case name == "cron":
			due = Cron(written)
		default:
			continue
		}
		count++
	}
	return due, count
}

func messageOf(arguments object, due Due) Message {
	m := Message{Topic: text(arguments["topic"]), Value: content(arguments["value"]), Due: due}
	for name, said := range arguments {
		switch name {
		case "id":
			m.ID = pointer(text(said))
		case "key":
			m.Key = content(said)
		case "group":
			m.Group = pointer(text(said))
		case "partition":
			m.Partition = pointer(int(number(said)))
		case "receipts":
			m.Receipts = said.(bool)
		case "late":
			m.Late = spanText(said)
		case "window":
			m.Window = spanText(said)
		case "zone":
			m.Zone = text(said)
		case "catchup":
			m.CatchUp = text(said)
		case "until":
			m.Until = momentText(said)
		case "headers":
			for _, header := range said.([]any) {
				pair := header.([]any)
				m.Headers = append(m.Headers, Header{pair[0].(string), content(pair[1])})
			}
		}
	}
	return m
}

func answerOf(each object) *Verdict {
	request := each["request"].(object)
	wait := WaitFor(nil)
	if id, is := request["id"].(string); is {
		wait = WaitFor(&id)
	}
	receipts := each["receipts"].([]any)
	for i := 0; i <= len(receipts); i++ {
		if int64(i) == number(each["acknowledged_after"]) {
			wait.Acknowledged(request["source"].(string))
		}
		if i < len(receipts) {
			receipt := receipts[i].(object)
			wait.Read(content(receipt["key"]), content(receipt["value"]))
		}
	}
	return wait.Answer()
}

func saidRecord(record Record) object {
	headers := []any{}
	for _, header := range record.Headers {
		headers = append(headers, []any{header.Name, said(header.Value)})
	}
	var partition any
	if record.Partition >= 0 {
		partition = record.Partition
	}
	return object{"topic": record.Topic, "key": said(record.Key), "partition": partition,
		"value": said(record.Value), "headers": headers}
}

func said(content []byte) any {
	switch {
	case content == nil:
		return nil
	case utf8.Valid(content):
		return string(content)
	}
	return object{"hex": hex.EncodeToString(content)}
}

func content(said any) []byte {
	switch said := said.(type) {
	case string:
		return []byte(said)
	case object:
		bytes, _ := hex.DecodeString(said["hex"].(string))
		return bytes
	}
	return nil
}

func text(said any) string {
	if text, is := said.(string); is {
		return text
	}
	return "\xff" // a text that is no UTF-8
}

func number(said any) int64 {
	number, _ := said.(json.Number).Int64()
	return number
}

func micros(said any) int64 {
	if fine, is := said.(object); is {
		return number(fine["us"])
	}
	return number(said) * 1000
}

func span(said any) time.Duration { return time.Duration(micros(said)) * time.Microsecond }

func moment(said any) time.Time { return time.UnixMicro(micros(said)) }

func spanText(said any) string {
	if text, is := said.(string); is {
		return text
	}
	return Span(span(said))
}

func momentText(said any) string {
	if text, is := said.(string); is {
		return text
	}
	return At(moment(said)).text
}

func pointer[T any](value T) *T { return &value }
