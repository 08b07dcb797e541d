package io.delayd;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;

/** The client on a real Kafka with a real node, which the environment names. */
@EnabledIfEnvironmentVariable(named = "DELAYD_BOOTSTRAP", matches = ".+")
@Timeout(120)
class RealKafkaTest {
    private static final String BOOTSTRAP = System.getenv("DELAYD_BOOTSTRAP");
    private static final String PREFIX = System.getenv().getOrDefault("DELAYD_PREFIX", "delayd-");
    private static final String TARGET = System.getenv().getOrDefault("TARGET", "reminders");
    private static final List<String> IDS =
            List.of("x", "a b", "grüße", "日本", "🎉", "i".repeat(256), UUID.randomUUID().toString());
    private static Delayd delayd;

    @BeforeAll
    static void open() {
        delayd = Delayd.open(Map.of("bootstrap.servers", BOOTSTRAP, Delayd.PREFIX, PREFIX,
                Delayd.VERDICT_TIMEOUT_MS, 60_000));
    }

    @AfterAll
    static void close() {
        delayd.close();
    }

    private static Message message(String id) {
        return Message.to(TARGET).id(id).value("pay " + id);
    }

    @Test
    void eachIdIsScheduledReplacedMovedAndCancelled() {
        for (String id : IDS) {
            String source = delayd.schedule(message(id).in(Duration.ofHours(1))).join().source();
            Verdict replaced = delayd.replace(message(id).in("2h")).join();
            assertEquals("replaced", replaced.verdict());
            assertEquals(List.of(source), replaced.killed());
            Verdict moved = delayd.reschedule(id, Due.by(Duration.ofMinutes(-30))).join();
            assertEquals("rescheduled", moved.verdict());
            assertEquals(1_800_000, moved.oldDueMs() - moved.dueMs());
            Verdict cancelled = delayd.cancel(id).join();
            assertEquals("cancelled", cancelled.verdict());
            assertEquals(List.of(replaced.source()), cancelled.killed());
            assertEquals("not-found", delayd.cancel("nobody-" + id.hashCode()).join().verdict());
        }
    }

    @Test
    void manyWaitAtOnceAndEachGetsItsOwnAnswer() {
        String run = UUID.randomUUID().toString();
        List<CompletableFuture<Verdict>> scheduled = new ArrayList<>();
        for (int i = 0; i < 500; i++) {
            scheduled.add(delayd.scheduleAndAsk(message(run + i).in("1h")));
        }
        List<CompletableFuture<Verdict>> cancelled = new ArrayList<>();
        for (int i = 0; i < 500; i++) {
            assertEquals("scheduled", scheduled.get(i).join().verdict());
            cancelled.add(delayd.cancel(run + i));
        }
        for (int i = 0; i < 500; i++) {
            assertEquals(List.of(scheduled.get(i).join().source()), cancelled.get(i).join().killed());
        }
    }

    @Test
    void aRequestWithoutAnIdIsAnsweredUnderItsSource() {
        Verdict verdict = delayd.scheduleAndAsk(Message.to(TARGET).value("x").in("1h")).join();
        assertEquals("scheduled", verdict.verdict());
        assertEquals("rejected", delayd.scheduleAndAsk(Message.to(TARGET).in("9999d")).join().verdict());
    }

    @Test
    void theDeliveredRecordIsAsItWasSent() {
        try (KafkaConsumer<String, String> reader = readerAtTheEnd()) {
            String source = delayd.schedule(Message.to(TARGET).id("delivered").key("another").value("hé")
                    .header("trace", "9f3c").header("empty", (byte[]) null)
                    .at(Instant.now().plusMillis(500))).join().source();
            ConsumerRecord<String, String> record = deliveredFrom(reader, source);
            assertEquals("another", record.key());
            assertEquals("hé", record.value());
            assertEquals("9f3c", new String(record.headers().lastHeader("trace").value(), UTF_8));
            assertEquals("too-late", delayd.cancel("delivered").join().verdict());
        }
    }

    @Test
    void aRequestOfATransactionCountsOnceThatIsCommitted() {
        Map<String, Object> config = new HashMap<>(Map.of("bootstrap.servers", BOOTSTRAP,
                "transactional.id", PREFIX + "java"));
        try (KafkaProducer<Object, Object> own = new KafkaProducer<>(config,
                new BytesPassing(new StringSerializer()), new BytesPassing(new StringSerializer()))) {
            own.initTransactions();
            assertThrows(IllegalStateException.class, () -> delayd.transaction(own, in -> {
                in.schedule(message("aborted").in("1h"));
                throw new IllegalStateException("no");
            }));
            delayd.transaction(own, in -> {
                in.schedule(message("committed").in("1h"));
                own.send(new ProducerRecord<>(TARGET, "a key", "beside it"));
                assertThrows(RequestRefusedException.class, () -> delayd.cancel("committed"));
            });
        }
        assertEquals("not-found", delayd.cancel("aborted").join().verdict());
        assertEquals("cancelled", delayd.cancel("committed").join().verdict());
    }

    /** Answers come after one in an aborted transaction and one to another request (played_delayd.py). */
    @Test
    @EnabledIfEnvironmentVariable(named = "DELAYD_PLAYED_PREFIX", matches = ".+")
    void anAnswerThatWasNeverCommittedIsNone() {
        try (Delayd played = Delayd.open(Map.of("bootstrap.servers", BOOTSTRAP,
                Delayd.PREFIX, System.getenv("DELAYD_PLAYED_PREFIX")))) {
            for (String id : IDS) {
                String source = played.schedule(message(id).in("1h")).join().source();
                Verdict cancelled = played.cancel(id).join();
                assertEquals("cancelled", cancelled.verdict());
                assertEquals(List.of(source), cancelled.killed());
            }
        }
    }

    @Test
    void whereThereIsNoDelaydNothingIsCreated() {
        Map<String, Object> elsewhere =
                Map.of("bootstrap.servers", BOOTSTRAP, Delayd.PREFIX, "nowhere-");
        for (int i = 0; i < 2; i++) {
            DelaydException error = assertThrows(DelaydException.class, () -> Delayd.open(elsewhere));
            assertEquals("not-initialised", error.code());
            assertTrue(error.getMessage().contains("nowhere-buffer"));
        }
    }

    private static KafkaConsumer<String, String> readerAtTheEnd() {
        KafkaConsumer<String, String> reader = new KafkaConsumer<>(
                Map.of("bootstrap.servers", BOOTSTRAP, "isolation.level", "read_committed"),
                new StringDeserializer(), new StringDeserializer());
        List<TopicPartition> partitions = reader.partitionsFor(TARGET).stream()
                .map(info -> new TopicPartition(TARGET, info.partition())).toList();
        reader.assign(partitions);
        reader.endOffsets(partitions).forEach(reader::seek);
        return reader;
    }

    private static ConsumerRecord<String, String> deliveredFrom(
            KafkaConsumer<String, String> reader, String source) {
        Instant deadline = Instant.now().plusSeconds(60);
        while (Instant.now().isBefore(deadline)) {
            for (ConsumerRecord<String, String> record : reader.poll(Duration.ofMillis(200))) {
                Header header = record.headers().lastHeader("delayd-source");
                if (header != null && source.equals(new String(header.value(), UTF_8))) {
                    return record;
                }
            }
        }
        throw new AssertionError("it was not delivered");
    }
}
