package io.delayd;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * Reads receipts for all waits, on one thread.
 *
 * <p>Invariants: a wait begins when the reader stands at the end of the receipts, so before a master
 * can write its answer; each wait ends at the latest when the reader fails or is closed (time-outs
 * are the caller's); while nobody waits there is no thread, except for IDLE_MS after the last wait.
 */
final class Receipts implements AutoCloseable {
    static final int WAITS_MAX = 20_000;
    private static final long IDLE_MS = 30_000;
    private static final Duration POLL = Duration.ofMillis(100);
    private static final long CLOSE_MS = 10_000;
    private static final String UNNAMED = ""; // no id is empty

    private final Supplier<Consumer<byte[], byte[]>> makeConsumer;
    private final String topic;
    private Reading reading;
    private boolean isClosed;

    Receipts(Supplier<Consumer<byte[], byte[]>> makeConsumer, String topic) {
        this.makeConsumer = makeConsumer;
        this.topic = topic;
    }

    /** Begins a wait; when it returns, the request may be sent. Blocks while the reader is opened. */
    Wait begin(Request request, Duration timeout) {
        Wait wait = new Wait(request);
        Reading current;
        synchronized (this) {
            if (isClosed) {
                throw new RequestRefusedException("the client is closed: make a new one");
            }
            if (reading == null) {
                reading = new Reading();
                reading.thread.start();
            }
            if (reading.count >= WAITS_MAX) {
                throw new RequestRefusedException(
                        WAITS_MAX + " requests wait for their verdicts: wait for some, or send alone");
            }
            current = reading;
            current.add(wait);
        }
        try {
            current.ready.get(timeout.toMillis(), TimeUnit.MILLISECONDS);
            return wait;
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            forget(wait);
            throw unreadable("the wait was interrupted", error);
        } catch (ExecutionException error) {
            throw unreadable(error.getCause().toString(), error.getCause());
        } catch (TimeoutException error) {
            forget(wait);
            throw unreadable("they were not ready within " + timeout.toMillis() + " ms", error);
        }
    }

    synchronized void forget(Wait wait) {
        if (reading != null) {
            reading.remove(wait);
        }
    }

    private synchronized List<Wait> waitsUnder(Reading asked, String key) {
        return asked.under(key);
    }

    private synchronized List<Wait> all(Reading asked) {
        return asked.waits.values().stream().flatMap(Set::stream).toList();
    }

    /** Ends every wait with its error, and the thread. */
    @Override
    public void close() {
        Reading last;
        synchronized (this) {
            isClosed = true;
            last = reading;
            reading = null;
        }
        if (last != null) {
            last.end(new RequestRefusedException("the client was closed during the wait"));
            try {
                last.thread.join(CLOSE_MS);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private static DelaydException unreadable(String why, Throwable cause) {
        return new DelaydException("kafka-unreachable",
                "the receipts cannot be read, so nothing was sent: " + why, cause);
    }

    private synchronized boolean goesOn(Reading asked) {
        if (reading != asked) {
            return false;
        }
        if (asked.count > 0) {
            asked.idleSince = System.nanoTime();
            return true;
        }
        if (System.nanoTime() - asked.idleSince >= TimeUnit.MILLISECONDS.toNanos(IDLE_MS)) {
            reading = null;
            return false;
        }
        return true;
    }

    private synchronized void forgetReading(Reading failed) {
        if (reading == failed) {
            reading = null;
        }
    }

    /** One life of the reader: from the first wait until nobody waits, or a failure. */
    private final class Reading {
        final CompletableFuture<Void> ready = new CompletableFuture<>();
        /** By id; those without one under UNNAMED, until they have their answer. Under the lock. */
        final Map<String, Set<Wait>> waits = new HashMap<>();
        int count;
        final Thread thread = new Thread(this::read, "delayd-receipts");
        long idleSince = System.nanoTime();

        Reading() {
            thread.setDaemon(true);
        }

        void add(Wait wait) {
            waits.computeIfAbsent(Objects.toString(wait.request.id, UNNAMED), id -> new HashSet<>()).add(wait);
            count++;
        }

        void remove(Wait wait) {
            String id = Objects.toString(wait.request.id, UNNAMED);
            Set<Wait> waiting = waits.getOrDefault(id, new HashSet<>());
            count -= waiting.remove(wait) ? 1 : 0;
            if (waiting.isEmpty()) {
                waits.remove(id);
            }
        }

        List<Wait> under(String key) {
            List<Wait> found = new ArrayList<>(waits.getOrDefault(key, Set.of()));
            found.addAll(waits.getOrDefault(UNNAMED, Set.of()));
            return found;
        }

        void read() {
            try (Consumer<byte[], byte[]> consumer = makeConsumer.get()) {
                moveToTheEnd(consumer);
                ready.complete(null);
                while (goesOn(this)) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                        handOut(record);
                    }
                }
            } catch (Exception error) { // the only handler of this thread: whoever waits must be told
                forgetReading(this);
                end(error);
            }
        }

        private void moveToTheEnd(Consumer<byte[], byte[]> consumer) {
            List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                    .map(info -> new TopicPartition(topic, info.partition())).toList();
            if (partitions.isEmpty()) {
                throw new IllegalStateException("there is no topic " + topic);
            }
            consumer.assign(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            ends.forEach(consumer::seek);
        }

        private void handOut(ConsumerRecord<byte[], byte[]> record) {
            if (record.key() != null) {
                String key = new String(record.key(), UTF_8);
                List<Wait> waiting = waitsUnder(this, key);
                if (!waiting.isEmpty()) { // else whatever it says is nobody's answer
                    Verdict.read(record.value()).ifPresent(
                            verdict -> waiting.forEach(wait -> wait.take(key, verdict)));
                }
            }
        }

        void end(Exception error) {
            ready.completeExceptionally(error);
            for (Wait wait : all(this)) {
                wait.fail(Outcomes.unknown(wait.request, error.getMessage(), error));
            }
        }
    }
}
