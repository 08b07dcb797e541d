package io.delayd;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;

/**
 * Requests through a producer of the caller's, in its transaction if it has one open.
 *
 * <p>A future says where Kafka has the request; it counts once the transaction is committed. There are
 * no verdicts here: none can come while the transaction hides the request. Commit, then ask: a
 * repeated {@link Delayd#cancel cancel} gets a true answer.
 */
public final class Requests implements RequestSender {
    private final Producer<Object, Object> producer;
    private final String buffer;
    private final int partitions;
    private final ConcurrentLinkedQueue<CompletableFuture<Place>> sent = new ConcurrentLinkedQueue<>();

    @SuppressWarnings("unchecked")
    Requests(Producer<?, ?> producer, String buffer, int partitions) {
        this.producer = (Producer<Object, Object>) producer;
        this.buffer = buffer;
        this.partitions = partitions;
    }

    /**
     * Sends a request.
     *
     * @throws NotScheduledException if the producer does not take it, for instance because its
     *     serializers take no bytes ({@link BytesPassing})
     */
    @Override
    public CompletableFuture<Place> send(Request request) {
        CompletableFuture<Place> future = sendWith(producer, request, buffer, partitions);
        sent.add(future);
        return future;
    }

    /** Throws what a request failed with, after a flush. */
    void check() {
        for (CompletableFuture<Place> future : List.copyOf(sent)) {
            if (!future.isDone()) {
                throw new IllegalStateException("the producer did not report every request");
            }
            if (future.isCompletedExceptionally()) {
                throw (DelaydException) future.handle((place, error) -> error).join();
            }
        }
    }

    static CompletableFuture<Place> sendWith(
            Producer<Object, Object> producer, Request request, String buffer, int partitions) {
        ProducerRecord<byte[], byte[]> record = request.record(buffer, partitions);
        CompletableFuture<Place> future = new CompletableFuture<>();
        try {
            producer.send(new ProducerRecord<>(record.topic(), record.partition(), record.key(),
                    record.value(), record.headers()), (metadata, error) -> {
                        if (error != null) {
                            future.completeExceptionally(Outcomes.ofReport(request, error));
                        } else {
                            future.complete(new Place(
                                    metadata.partition(), metadata.offset(), metadata.timestamp()));
                        }
                    });
        } catch (KafkaException | ClassCastException error) {
            throw Outcomes.notDone(request, error);
        }
        return future;
    }
}
