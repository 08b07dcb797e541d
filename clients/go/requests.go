// Package delayd makes the records that ask delayd for something, and reads its receipts.
//
// It sends nothing: use it with any client of Kafka. What a record looks like is in delayd's
// reference of requests; clients/conformance proves that it is the one that Python makes.
package delayd

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// ErrRefused is what delayd would reject, or a call that makes no sense.
var ErrRefused = errors.New("request refused")

// Header is a header of a record; a nil Value is null.
type Header struct {
	Name  string
	Value []byte
}

// Record is a record for the buffer. Key and Value may be nil, which is null.
type Record struct {
	Topic string
	// Partition of the buffer, by murmur2 of the id; -1: the producer chooses.
	Partition int
	Key       []byte
	Value     []byte
	Headers   []Header
}

// Due is a time, a delay, or (of a reschedule) a span: what a header says.
type Due struct{ header, text string }

// In is so long after Kafka has the request; below a millisecond rounds up.
func In(delay time.Duration) Due { return InText(strconv.FormatInt(ceilMs(int64(delay)), 10) + "ms") }

// InText is a delay as delayd writes it: 15m, 30d.
func InText(delay string) Due { return Due{"delayd-delay", delay} }

// At is that moment; in the past: at once.
func At(moment time.Time) Due {
	ms := moment.Unix()*1000 + ceilMs(int64(moment.Nanosecond()))
	return AtText(strconv.FormatInt(ms, 10))
}

// AtText is a moment in RFC 3339 or in Unix milliseconds, or with a zone what a clock shows.
func AtText(moment string) Due { return Due{"delayd-due", moment} }

// Cron is an expression by which a message recurs.
func Cron(expression string) Due { return Due{"delayd-cron", expression} }

// By is so much later than it is due, earlier if negative. Of a reschedule only.
func By(span time.Duration) Due { return ByText(fmt.Sprintf("%+dms", ceilMs(int64(span)))) }

// ByText is a span with its sign: +1h, -10m. Of a reschedule only.
func ByText(span string) Due { return Due{"delayd-by", span} }

// Span writes a duration as delayd reads it, rounded up, for Late, Window and MaxWait.
func Span(span time.Duration) string { return strconv.FormatInt(ceilMs(int64(span)), 10) + "ms" }

// Message is what Schedule, Replace and Debounce send. Topic and Due are required.
type Message struct {
	Topic string
	Value []byte // nil: null
	Due   Due
	ID    *string // a name by which it can be cancelled and replaced
	Key   []byte  // of the delivered record; nil: the id, else none

	Headers   []Header
	Partition *int   // of the target
	Receipts  bool   // all its receipts are written
	Late      string // how much later it is still worth delivering
	Window    string // it may go out so much later
	Group     *string
	Zone      string // of a local time or an expression
	Until     string // of an expression
	CatchUp   string // of an expression: once, all
}

// Buffer is the topic that takes requests, and how many partitions it has: fixed for ever.
type Buffer struct {
	Topic      string
	Partitions int
}

// Schedule returns the record that schedules a message.
func (b Buffer) Schedule(m Message) (Record, error) { return b.message("", m, "") }

// Replace returns the record that schedules a message in place of what is pending under its id.
func (b Buffer) Replace(m Message) (Record, error) { return b.message("replace", m, "") }

// Debounce returns the record of a message of which only the last one counts.
func (b Buffer) Debounce(m Message, maxWait string) (Record, error) {
	return b.message("debounce", m, maxWait)
}

// Cancel returns the record that cancels what is pending under the id.
func (b Buffer) Cancel(id string) (Record, error) { return b.about("cancel", id, Due{}) }

// Fire returns the record that delivers what is pending under the id now.
func (b Buffer) Fire(id string) (Record, error) { return b.about("fire", id, Due{}) }

// Reschedule returns the record that gives what is pending under the id another due time.
func (b Buffer) Reschedule(id string, due Due) (Record, error) {
	if err := checkTime(due, ""); err != nil {
		return Record{}, err
	}
	return b.about("reschedule", id, due)
}

func (b Buffer) about(op, id string, due Due) (Record, error) {
	if err := checkName("id", id); err != nil {
		return Record{}, err
	}
	headers := []Header{{"delayd-op", []byte(op)}, {"delayd-id", []byte(id)}}
	if due.header != "" {
		headers = append(headers, Header{due.header, []byte(due.text)})
	}
	key := []byte(id)
	return Record{b.Topic, PartitionOf(key, b.Partitions), key, nil, headers}, nil
}

func (b Buffer) message(op string, m Message, maxWait string) (Record, error) {
	if err := b.check(op, m, maxWait); err != nil {
		return Record{}, err
	}
	headers := append([]Header{}, m.Headers...)
	add := func(name, text string, isThere bool) {
		if isThere {
			headers = append(headers, Header{"delayd-" + name, []byte(text)})
		}
	}
	add("topic", m.Topic, true)
	add(strings.TrimPrefix(m.Due.header, "delayd-"), m.Due.text, true)
	add("zone", m.Zone, m.Zone != "")
	add("catchup", m.CatchUp, m.CatchUp != "")
	add("until", m.Until, m.Until != "")
	if m.Partition != nil {
		add("partition", strconv.Itoa(*m.Partition), true)
	}
	add("receipt", "yes", m.Receipts)
	add("late", m.Late, m.Late != "")
	add("window", m.Window, m.Window != "")
	add("max-wait", maxWait, maxWait != "")
	if m.Group != nil {
		add("group", *m.Group, true)
	}
	key, partition := m.Key, -1
	if m.ID != nil {
		key = []byte(*m.ID)
		partition = PartitionOf(key, b.Partitions)
		add("key", string(m.Key), m.Key != nil && !bytes.Equal(m.Key, key))
		add("op", op, op != "")
		add("id", *m.ID, true)
	}
	return Record{b.Topic, partition, key, m.Value, headers}, nil
}

func (b Buffer) check(op string, m Message, maxWait string) error {
	isSeries := m.Due.header == "delayd-cron"
	for _, header := range m.Headers {
		if strings.HasPrefix(header.Name, "delayd-") || strings.Contains(header.Name, "\x00") ||
			!utf8.ValidString(header.Name) {
			return refused("the header name %q is delayd's, or no name", header.Name)
		}
	}
	switch {
	case m.Due.header == "delayd-by":
		return refused("a span 'by' is of a reschedule")
	case op != "" && m.ID == nil, m.Group != nil && m.ID == nil:
		return refused("missing-id: a replace, a debounce and what has a group need an id")
	case m.Partition != nil && (*m.Partition < 0 || *m.Partition > 1<<31-1):
		return refused("bad-partition: a partition is 0 to 2147483647")
	case !isSeries && (m.Until != "" || m.CatchUp != ""), isSeries && m.Window != "":
		return refused("unexpected-header: until and catch-up are of a series, a window is not")
	case m.CatchUp != "" && m.CatchUp != "once" && m.CatchUp != "all":
		return refused("bad-catchup: it is once or all")
	case m.ID != nil && m.Key != nil && (len(m.Key) == 0 || !utf8.Valid(m.Key)):
		return refused("the key to deliver beside an id is UTF-8 and not empty")
	case op == "debounce" && (m.Due.header != "delayd-delay" || m.Window != ""):
		return refused("a debounce has a delay, and no window")
	}
	prefix := "delayd-"
	if found := strings.TrimSuffix(b.Topic, "buffer"); found != "" && found != b.Topic {
		prefix = found
	}
	return errors.Join(checkTopic(m.Topic, prefix), checkTime(m.Due, m.Zone), checkSpans(m, maxWait),
		checkNames(m), checkUntil(m.Until))
}

func checkNames(m Message) error {
	for what, name := range map[string]*string{"id": m.ID, "group": m.Group} {
		if name != nil {
			if err := checkName(what, *name); err != nil {
				return err
			}
		}
	}
	return nil
}

func ceilMs(nanos int64) int64 {
	ms := nanos / 1_000_000
	if nanos%1_000_000 > 0 {
		ms++
	}
	return ms
}

func refused(format string, arguments ...any) error {
	return fmt.Errorf("%w: %s", ErrRefused, fmt.Sprintf(format, arguments...))
}
