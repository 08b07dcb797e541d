package io.delayd;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.MockConsumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.internals.AutoOffsetResetStrategy;
import org.apache.kafka.clients.producer.MockProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Utils;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The client over Kafka's own mocks: waits, errors and transactions. */
@Timeout(60)
class DelaydTest {
    private static final int PARTITIONS = 3;
    private static final TopicPartition RECEIPTS = new TopicPartition("delayd-receipts", 0);
    private static final Message MESSAGE = Message.to("orders").id("order-7").value("pay").in("15m");

    private final MockProducer<byte[], byte[]> producer = producer(true);
    private final MockConsumer<byte[], byte[]> consumer = consumer();
    private final Delayd delayd = over(producer, Duration.ofSeconds(30));

    private static MockProducer<byte[], byte[]> producer(boolean autoComplete) {
        return new MockProducer<>(cluster(), autoComplete, null, new ByteArraySerializer(),
                new ByteArraySerializer());
    }

    private static Cluster cluster() {
        List<PartitionInfo> buffer = IntStream.range(0, PARTITIONS).mapToObj(partition -> new PartitionInfo(
                "delayd-buffer", partition, Node.noNode(), new Node[0], new Node[0])).toList();
        return new Cluster("mock", List.of(), buffer, Set.of(), Set.of());
    }

    private static MockConsumer<byte[], byte[]> consumer() {
        MockConsumer<byte[], byte[]> consumer = new MockConsumer<>(AutoOffsetResetStrategy.NONE.name());
        consumer.updatePartitions(RECEIPTS.topic(),
                List.of(new PartitionInfo(RECEIPTS.topic(), 0, Node.noNode(), new Node[0], new Node[0])));
        consumer.updateEndOffsets(Map.of(RECEIPTS, 5L));
        return consumer;
    }

    private Delayd over(MockProducer<byte[], byte[]> producer, Duration timeout) {
        return Delayd.over("delayd-buffer", PARTITIONS, timeout, producer, () -> consumer, RECEIPTS.topic());
    }

    private void receipt(long offset, String id, String source, String verdict) {
        String value = """
                {"id":"%s","verdict":"%s","op":"cancel","source":"%s","killed":["0/1"],
                 "due_ms":null,"at_ms":1,"detail":""}""".formatted(id, verdict, source);
        consumer.addRecord(new ConsumerRecord<>(
                RECEIPTS.topic(), 0, offset, id.getBytes(UTF_8), value.getBytes(UTF_8)));
    }

    private static String sourceOf(ProducerRecord<byte[], byte[]> record) {
        return record.partition() + "/0"; // MockProducer counts offsets by partition
    }

    @Test
    void anAnswerIsTheReceiptOfTheOwnRequest() {
        CompletableFuture<Verdict> answer = delayd.cancel("order-7");
        receipt(5, "order-7", "0/99", "too-late");
        receipt(6, "order-7", sourceOf(producer.history().get(0)), "cancelled");
        assertEquals("cancelled", answer.join().verdict());
        delayd.close();
        assertTrue(consumer.closed());
    }

    @Test
    void severalWaitOfOneIdAndEachGetsItsOwn() {
        CompletableFuture<Verdict> first = delayd.cancel("order-7");
        CompletableFuture<Verdict> second = delayd.cancel("order-7");
        int partition = producer.history().get(0).partition();
        receipt(5, "order-7", partition + "/1", "not-found");
        receipt(6, "order-7", partition + "/0", "cancelled");
        assertEquals("cancelled", first.join().verdict());
        assertEquals("not-found", second.join().verdict());
    }

    @Test
    void theContinuationOfAnAnswerMayAskAgain() {
        CompletableFuture<Verdict> answer = delayd.cancel("order-7")
                .thenApply(first -> {
                    CompletableFuture<Verdict> second = delayd.cancel("order-7");
                    receipt(6, "order-7", producer.history().get(0).partition() + "/1", "not-found");
                    return second.join();
                });
        receipt(5, "order-7", producer.history().get(0).partition() + "/0", "cancelled");
        assertEquals("not-found", answer.join().verdict());
    }

    @Test
    void noReceiptInTimeMeansThatTheOutcomeIsUnknown() {
        Delayd hasty = over(producer, Duration.ofMillis(300));
        CompletionException error =
                assertThrows(CompletionException.class, () -> hasty.cancel("order-7").join());
        assertInstanceOf(VerdictUnknownException.class, error.getCause());
        assertTrue(error.getCause().getMessage().contains("transaction of yours"));
    }

    @Test
    void closingEndsAWait() {
        CompletableFuture<Verdict> answer = delayd.cancel("order-7");
        delayd.close();
        CompletionException error = assertThrows(CompletionException.class, answer::join);
        assertInstanceOf(VerdictUnknownException.class, error.getCause());
        assertThrows(RequestRefusedException.class, () -> delayd.cancel("order-7"));
    }

    @Test
    void aReaderThatFailsEndsItsWaitsAndTheNextOneBeginsAnew() {
        CompletableFuture<Verdict> answer = delayd.cancel("order-7");
        consumer.setPollException(new org.apache.kafka.common.errors.TopicAuthorizationException("no"));
        CompletionException error = assertThrows(CompletionException.class, answer::join);
        assertInstanceOf(VerdictUnknownException.class, error.getCause());
    }

    @Test
    void whatKafkaRefusesForGoodIsNotScheduled() throws Exception {
        MockProducer<byte[], byte[]> silent = producer(false);
        CompletableFuture<Place> place = over(silent, Duration.ofSeconds(30)).schedule(MESSAGE);
        silent.errorNext(new RecordTooLargeException("too large"));
        assertInstanceOf(NotScheduledException.class, errorOf(place));
    }

    @Test
    void anyOtherFailureLeavesTheOutcomeUnknown() throws Exception {
        MockProducer<byte[], byte[]> silent = producer(false);
        CompletableFuture<Place> place = over(silent, Duration.ofSeconds(30)).schedule(MESSAGE);
        silent.errorNext(new org.apache.kafka.common.errors.TimeoutException("too slow"));
        assertInstanceOf(OutcomeUnknownException.class, errorOf(place));
    }

    private static Throwable errorOf(CompletableFuture<?> future) throws Exception {
        return future.handle((value, error) -> error).get(10, TimeUnit.SECONDS);
    }

    @Test
    void aRequestWithoutAReceiptIsNotWaitedFor() {
        assertThrows(RequestRefusedException.class, () -> delayd.ask(Request.schedule(MESSAGE)));
        assertTrue(producer.history().isEmpty());
    }

    @Test
    void aTransactionCommitsWhatIsInIt() {
        MockProducer<byte[], byte[]> own = producer(true);
        own.initTransactions();
        delayd.transaction(own, in -> {
            in.cancel("order-7");
            in.schedule(Message.to("orders").value("x").in("1s"));
        });
        assertTrue(own.transactionCommitted());
        assertEquals(2, own.history().size());
    }

    @Test
    void anExceptionAbortsTheTransaction() {
        MockProducer<byte[], byte[]> own = producer(true);
        own.initTransactions();
        assertThrows(IllegalStateException.class, () -> delayd.transaction(own, in -> {
            in.cancel("order-7");
            throw new IllegalStateException("changed my mind");
        }));
        assertTrue(own.transactionAborted());
        assertTrue(own.history().isEmpty());
    }

    @Test
    void aRequestThatFailedAbortsTheTransaction() {
        MockProducer<byte[], byte[]> own = producer(false);
        own.initTransactions();
        assertThrows(NotScheduledException.class, () -> delayd.transaction(own, in -> {
            in.cancel("order-7");
            own.errorNext(new RecordTooLargeException("too large"));
        }));
        assertTrue(own.transactionAborted());
        assertFalse(own.transactionCommitted());
    }

    @Test
    void noVerdictIsAskedForInsideATransaction() {
        MockProducer<byte[], byte[]> own = producer(true);
        own.initTransactions();
        RequestRefusedException refusal = assertThrows(RequestRefusedException.class,
                () -> delayd.transaction(own, in -> delayd.cancel("order-7")));
        assertTrue(refusal.getMessage().contains("after the commit"));
        assertTrue(own.transactionAborted());
        assertTrue(producer.history().isEmpty());
        CompletableFuture<Verdict> after = delayd.cancel("order-7");
        receipt(5, "order-7", sourceOf(producer.history().get(0)), "cancelled");
        assertEquals("cancelled", after.join().verdict());
    }

    @Test
    void aProducerOfTextsTakesRequestsWithSerializersThatLetBytesPass() {
        MockProducer<Object, Object> texts = new MockProducer<>(true, null,
                new BytesPassing(new StringSerializer()), new BytesPassing(new StringSerializer()));
        delayd.in(texts).cancel("order-7").join();
        texts.send(new ProducerRecord<>("orders", "a key", "a value"));
        assertEquals(2, texts.history().size());
        assertArrayEquals("x".getBytes(UTF_8),
                new BytesPassing(new StringSerializer()).serialize("t", "x"));
    }

    @Test
    void aProducerOfTextsAloneDoesNotTakeThem() {
        MockProducer<String, String> texts =
                new MockProducer<>(true, null, new StringSerializer(), new StringSerializer());
        assertThrows(NotScheduledException.class, () -> delayd.in(texts).cancel("order-7"));
    }

    @Test
    void aValueIsSerializedForItsTarget() {
        Request request = Request.schedule(Message.to("orders").in("1s").value("v",
                (topic, data) -> (topic + ":" + data).getBytes(UTF_8)));
        assertArrayEquals("orders:v".getBytes(UTF_8), request.record("delayd-buffer", 1).value());
    }

    @Test
    void idsLieWhereKafkasOwnPartitionerPutsThem() {
        for (int i = 0; i < 10_000; i++) {
            byte[] id = ("é" + "x".repeat(i % 7) + i).getBytes(UTF_8);
            for (int partitions : new int[] {1, 2, 3, 7, 64}) {
                assertEquals(Utils.toPositive(Utils.murmur2(id)) % partitions,
                        Murmur2.partitionOf(id, partitions));
            }
        }
    }

    @Test
    void aSettingThatWouldBreakAPromiseIsRefused() {
        for (Map<String, Object> wrong : List.<Map<String, Object>>of(Map.of("acks", "1"),
                Map.of("transactional.id", "x"), Map.of("key.serializer", "x"),
                Map.of("enable.idempotence", "false"))) {
            Map<String, Object> config = new HashMap<>(wrong);
            config.put("bootstrap.servers", "127.0.0.1:1");
            assertEquals("config", assertThrows(DelaydException.class, () -> Delayd.open(config)).code());
        }
    }
}
