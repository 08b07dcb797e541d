package delayd

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	idBytesMax   = 256
	dueMsMax     = 253_402_300_799_999 // the end of the year 9999
	lateMsMax    = 365 * 86_400_000
	windowMsMax  = 86_400_000
	cronCharsMax = 128
	zoneCharsMax = 64
)

const date = `[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt]`

var (
	spanForm    = regexp.MustCompile(`\A([0-9]{1,15})(ms|s|m|h|d)\z`)
	digitsForm  = regexp.MustCompile(`\A[0-9]+\z`)
	rfc3339Form = regexp.MustCompile(
		`\A` + date + `[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})\z`)
	localForm = regexp.MustCompile(`\A` + date + `[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?\z`)
	topicForm = regexp.MustCompile(`\A[a-zA-Z0-9._-]{1,249}\z`)
	zoneForm  = regexp.MustCompile(`\A[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,3}\z`)
	cronForm  = regexp.MustCompile(`\A[0-9A-Za-z*,/#-]+( +[0-9A-Za-z*,/#-]+){4,5}\z`)
	cronNames = regexp.MustCompile(`\A@(hourly|daily|midnight|weekly|monthly|yearly|annually)\z`)

	unitMs = map[string]float64{"ms": 1, "s": 1e3, "m": 6e4, "h": 3.6e6, "d": 8.64e7}
	// By how many digits a number of these years has in another unit than milliseconds.
	otherUnits = map[int]string{10: "seconds", 16: "microseconds", 19: "nanoseconds"}
)

func checkName(what, name string) error {
	if len(name) < 1 || len(name) > idBytesMax || !utf8.ValidString(name) {
		return refused("bad-%s: it has 1 to %d bytes of UTF-8, not %d", what, idBytesMax, len(name))
	}
	return nil
}

func checkTopic(topic, prefix string) error {
	if !topicForm.MatchString(topic) || topic == "." || topic == ".." {
		return refused("bad-topic: a topic has 1 to 249 of a-z A-Z 0-9 . _ and -: %q", topic)
	}
	if strings.HasPrefix(topic, prefix) || strings.HasPrefix(topic, "__") {
		return refused("forbidden-topic: %q belongs to delayd or to Kafka", topic)
	}
	return nil
}

// spanMs returns the milliseconds of a text like 250ms, 10s, 5m, 2h or 30d; -1 if it is none.
func spanMs(text string) float64 {
	found := spanForm.FindStringSubmatch(text)
	if found == nil {
		return -1
	}
	number, _ := strconv.ParseFloat(found[1], 64)
	return number * unitMs[found[2]]
}

func checkSpan(name, text string, min, max float64) error {
	if ms := spanMs(text); ms < min || ms > max {
		return refused("bad-%s: %q is not an integer and ms, s, m, h or d, or out of bounds", name, text)
	}
	return nil
}

func checkSpans(m Message, maxWait string) error {
	if m.Late != "" {
		if err := checkSpan("late", m.Late, 1, lateMsMax); err != nil {
			return err
		}
	}
	if m.Window != "" {
		if err := checkSpan("window", m.Window, 1, windowMsMax); err != nil {
			return err
		}
	}
	if maxWait != "" {
		return checkSpan("max-wait", maxWait, max(0, spanMs(m.Due.text)), math.Inf(1))
	}
	return nil
}

func checkTime(due Due, zone string) error {
	if zone != "" && (len(zone) > zoneCharsMax || !zoneForm.MatchString(zone)) {
		return refused("bad-zone: %q is no IANA name", zone)
	}
	switch due.header {
	case "delayd-delay":
		if zone != "" {
			return refused("unexpected-header: a zone goes with a local time or an expression")
		}
		return checkSpan("delay", due.text, 0, math.Inf(1))
	case "delayd-by":
		if !strings.HasPrefix(due.text, "+") && !strings.HasPrefix(due.text, "-") {
			return refused("bad-by: %q has no sign", due.text)
		}
		return checkSpan("by", due.text[1:], 0, dueMsMax)
	case "delayd-cron":
		isExpression := len(due.text) <= cronCharsMax && cronForm.MatchString(due.text)
		if !isExpression && !cronNames.MatchString(due.text) {
			return refused("bad-cron: %q has not five or six fields", due.text)
		}
		return nil
	case "delayd-due":
		if zone == "" {
			return checkMoment("due", due.text)
		}
		if !localForm.MatchString(due.text) {
			return refused("bad-due: %q is not what a clock shows, like 2027-03-28T09:00", due.text)
		}
		return nil
	}
	return refused("give exactly one time")
}

func checkUntil(until string) error {
	if until == "" {
		return nil
	}
	return checkMoment("until", until)
}

func checkMoment(name, text string) error {
	if !digitsForm.MatchString(text) {
		if !rfc3339Form.MatchString(text) {
			return refused("bad-%s: %q is neither Unix milliseconds nor RFC 3339", name, text)
		}
		return nil
	}
	if unit, is := otherUnits[len(strings.TrimLeft(text, "0"))]; is && len(text) <= 19 {
		return refused("bad-%s: %q looks like %s, it is read as milliseconds", name, text, unit)
	}
	if ms, err := strconv.ParseInt(text, 10, 64); err != nil || len(text) > 15 || ms > dueMsMax {
		return refused("bad-%s: %q is beyond the year 9999", name, text)
	}
	return nil
}

// PartitionOf is where all requests about an id lie: murmur2, as Java's default partitioner has it.
func PartitionOf(key []byte, partitions int) int {
	const m = 0x5bd1e995
	whole := len(key) &^ 3
	h := 0x9747b28c ^ uint32(len(key))
	for i := 0; i < whole; i += 4 {
		k := little(key[i:i+4]) * m
		h = h*m ^ (k^k>>24)*m
	}
	if whole < len(key) {
		h = (h ^ little(key[whole:])) * m
	}
	h = (h ^ h>>13) * m
	return int((h^h>>15)&0x7fffffff) % partitions
}

func little(data []byte) (number uint32) {
	for i, each := range data {
		number |= uint32(each) << (8 * i)
	}
	return number
}
