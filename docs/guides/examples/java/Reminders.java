import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Schedules, replaces, cancels and reads reminders with headers alone. Arguments: any ids. */
public class Reminders {
    static final String BOOTSTRAP = setting("DELAYD_BOOTSTRAP", "localhost:9092");
    static final String PREFIX = setting("DELAYD_PREFIX", "delayd-"); // of delayd's own topics
    static final String TARGET = setting("TARGET", "reminders");
    static final Duration PATIENCE = Duration.ofSeconds(30);

    public static void main(String[] ids) throws Exception {
        // The default partitioner puts a key where delayd looks for it: do not replace it.
        Map<String, Object> config = Map.of("bootstrap.servers", BOOTSTRAP, "acks", "all");
        var strings = new StringSerializer();
        try (var buffer = new KafkaProducer<>(config, strings, strings);
                var receipts = readerAtTheEndOf(PREFIX + "receipts");
                var reminders = readerAtTheEndOf(TARGET)) {

            for (String id : ids) { // with an id, which is the key too: can be cancelled
                var source = send(buffer, id, "pay " + id,
                        Map.of("delayd-topic", TARGET, "delayd-id", id, "delayd-delay", "1h"));
                System.out.println("scheduled " + source);
            }

            var soon = Instant.now().plusMillis(1500).toString(); // without one: fire and forget
            var due = send(buffer, null, "drink water",
                    Map.of("delayd-topic", TARGET, "delayd-due", soon));
            System.out.println("scheduled " + due);

            for (String id : ids) {
                var replace = send(buffer, id, "pay " + id + " now", Map.of("delayd-op", "replace",
                        "delayd-topic", TARGET, "delayd-id", id, "delayd-delay", "2h"));
                System.out.println("receipt " + answer(receipts, replace).value());
                var cancel = send(buffer, id, null, Map.of("delayd-op", "cancel", "delayd-id", id));
                System.out.println("receipt " + answer(receipts, cancel).value());
            }

            var reminder = answer(reminders, due);
            System.out.println("delivered " + reminder.value());
            for (Header header : reminder.headers()) {
                System.out.println("  " + header.key() + ": " + new String(header.value(), UTF_8));
            }
        }
    }

    /** Writes one request and returns its source, "partition/offset", by which delayd names it. */
    static String send(KafkaProducer<String, String> buffer, String key, String value,
            Map<String, String> headers) throws Exception {
        var request = new ProducerRecord<>(PREFIX + "buffer", key, value);
        for (var header : headers.entrySet()) {
            request.headers().add(header.getKey(), header.getValue().getBytes(UTF_8));
        }
        var sent = buffer.send(request).get();
        return sent.partition() + "/" + sent.offset();
    }

    /** Standing at the end before the first request is sent, a reader cannot miss its answer. */
    static KafkaConsumer<String, String> readerAtTheEndOf(String topic) {
        Map<String, Object> config =
                Map.of("bootstrap.servers", BOOTSTRAP, "isolation.level", "read_committed");
        var strings = new StringDeserializer();
        var reader = new KafkaConsumer<>(config, strings, strings);
        List<TopicPartition> partitions = reader.partitionsFor(topic).stream()
                .map(info -> new TopicPartition(topic, info.partition())).toList();
        reader.assign(partitions);
        reader.seekToEnd(partitions);
        partitions.forEach(reader::position); // seekToEnd is lazy: this makes it happen now
        return reader;
    }

    /** The first record that names this request as its source. */
    static ConsumerRecord<String, String> answer(KafkaConsumer<String, String> reader,
            String source) {
        var deadline = Instant.now().plus(PATIENCE);
        while (Instant.now().isBefore(deadline)) {
            for (var record : reader.poll(Duration.ofMillis(200))) {
                var header = record.headers().lastHeader("delayd-source");
                if (header != null && source.equals(new String(header.value(), UTF_8))) {
                    return record;
                }
            }
        }
        throw new IllegalStateException("no answer yet, so the outcome is unknown: ask again");
    }

    static String setting(String name, String fallback) {
        return System.getenv().getOrDefault(name, fallback);
    }
}
