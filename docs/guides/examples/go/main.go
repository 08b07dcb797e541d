// Reminders schedules, replaces, cancels and reads reminders with headers alone.
// Arguments: any ids.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	bootstrap = cmp.Or(os.Getenv("DELAYD_BOOTSTRAP"), "localhost:9092")
	prefix    = cmp.Or(os.Getenv("DELAYD_PREFIX"), "delayd-") // of delayd's own topics
	target    = cmp.Or(os.Getenv("TARGET"), "reminders")
)

const patience = 30 * time.Second

func main() {
	ctx := context.Background()
	// The default partitioner puts a key where delayd looks for it: do not replace it.
	buffer := client(kgo.DefaultProduceTopic(prefix + "buffer"))
	defer buffer.Close()
	receipts := readerAtTheEndOf(ctx, prefix+"receipts")
	defer receipts.Close()
	reminders := readerAtTheEndOf(ctx, target)
	defer reminders.Close()

	ids := os.Args[1:]
	for _, id := range ids { // with an id, which is the key too: can be cancelled
		source := send(ctx, buffer, []byte(id), []byte("pay "+id),
			"delayd-topic", target, "delayd-id", id, "delayd-delay", "1h")
		fmt.Println("scheduled", source)
	}

	soon := time.Now().Add(1500 * time.Millisecond).Format(time.RFC3339Nano)
	due := send(ctx, buffer, nil, []byte("drink water"), // without one: fire and forget
		"delayd-topic", target, "delayd-due", soon)
	fmt.Println("scheduled", due)

	for _, id := range ids {
		source := send(ctx, buffer, []byte(id), []byte("pay "+id+" now"), "delayd-op", "replace",
			"delayd-topic", target, "delayd-id", id, "delayd-delay", "2h")
		fmt.Println("receipt", string(answer(ctx, receipts, source).Value))
		source = send(ctx, buffer, []byte(id), nil, "delayd-op", "cancel", "delayd-id", id)
		fmt.Println("receipt", string(answer(ctx, receipts, source).Value))
	}

	reminder := answer(ctx, reminders, due)
	fmt.Println("delivered", string(reminder.Value))
	for _, header := range reminder.Headers {
		fmt.Printf("  %s: %s\n", header.Key, header.Value)
	}
}

// send writes one request and returns its source, "partition/offset", by which delayd names it.
func send(ctx context.Context, buffer *kgo.Client, key, value []byte, headers ...string) string {
	request := &kgo.Record{Key: key, Value: value}
	for i := 0; i < len(headers); i += 2 {
		header := kgo.RecordHeader{Key: headers[i], Value: []byte(headers[i+1])}
		request.Headers = append(request.Headers, header)
	}
	must(buffer.ProduceSync(ctx, request).FirstErr())
	return fmt.Sprintf("%d/%d", request.Partition, request.Offset)
}

// readerAtTheEndOf stands there before the first request is sent, so it cannot miss an answer.
func readerAtTheEndOf(ctx context.Context, topic string) *kgo.Client {
	asker := client()
	defer asker.Close()
	ends, err := kadm.NewClient(asker).ListCommittedOffsets(ctx, topic)
	must(err)
	must(ends.Error())
	return client(kgo.ConsumePartitions(ends.KOffsets()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
}

// answer is the first record that names this request as its source.
func answer(ctx context.Context, reader *kgo.Client, source string) *kgo.Record {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		fetches := reader.PollFetches(ctx)
		if fetches.Err0() != nil {
			log.Fatal("no answer yet, so the outcome is unknown: ask again")
		}
		for _, record := range fetches.Records() {
			for _, header := range record.Headers {
				if header.Key == "delayd-source" && string(header.Value) == source {
					return record
				}
			}
		}
	}
}

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append(options, kgo.SeedBrokers(bootstrap))...)
	must(err)
	return made
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
