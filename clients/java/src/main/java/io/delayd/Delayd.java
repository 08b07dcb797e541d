package io.delayd;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/**
 * Schedules messages, cancels, replaces and moves them. For several threads.
 *
 * <pre>{@code
 * try (Delayd delayd = Delayd.open(Map.of("bootstrap.servers", "localhost:9092"))) {
 *     delayd.schedule(Message.to("orders").id("order-7").value("cancel if unpaid").in("15m")).join();
 *     delayd.cancel("order-7").join().verdict(); // "cancelled"
 * }
 * }</pre>
 *
 * <p>A failed future ends with a {@link DelaydException}: {@link NotScheduledException}, {@link
 * OutcomeUnknownException} or {@link VerdictUnknownException}. What can be refused at once is thrown at
 * once, as {@link RequestRefusedException}. What is done with a place in a callback must not wait for
 * this client: it runs on the producer's thread.
 */
public final class Delayd implements AutoCloseable {
    /** Setting: what the names of delayd's topics begin with; {@code delayd-} by default. */
    public static final String PREFIX = "delayd.prefix";

    /** Setting: how long a call waits for its verdict, in ms; 30,000 by default. */
    public static final String VERDICT_TIMEOUT_MS = "delayd.verdict.timeout.ms";

    private static final long CLOSE_S = 30;

    private final String buffer;
    private final Duration verdictTimeout;
    private final int partitions;
    private final Producer<Object, Object> producer;
    private final Receipts receipts;
    private final Set<Thread> inTransaction = ConcurrentHashMap.newKeySet();

    private Delayd(String buffer, int partitions, Duration verdictTimeout,
            Producer<Object, Object> producer, Receipts receipts) {
        this.buffer = buffer;
        this.partitions = partitions;
        this.verdictTimeout = verdictTimeout;
        this.producer = producer;
        this.receipts = receipts;
    }

    /**
     * Connects, and checks that buffer and receipts exist.
     *
     * @param config Kafka's own settings ({@code bootstrap.servers}, security), {@link #PREFIX} and
     *     {@link #VERDICT_TIMEOUT_MS}; a name that a Kafka client does not know is not given to it
     * @throws DelaydException with the code {@code not-initialised} if a topic does not exist, {@code
     *     kafka-unreachable} if Kafka does not answer, {@code config} for a setting that delayd fixes
     */
    public static Delayd open(Map<String, ?> config) {
        Settings settings = Settings.of(config);
        String receiptsTopic = settings.prefix() + "receipts";
        int partitions = partitionsOf(settings, receiptsTopic);
        Receipts receipts = new Receipts(settings::consumer, receiptsTopic);
        return new Delayd(settings.buffer(), partitions, settings.verdictTimeout(),
                new KafkaProducer<>(settings.producer()), receipts);
    }

    /** As {@link #open}, over clients of the caller's: for tests. */
    static Delayd over(String buffer, int partitions, Duration verdictTimeout, Producer<?, ?> producer,
            Supplier<org.apache.kafka.clients.consumer.Consumer<byte[], byte[]>> consumer, String receipts) {
        @SuppressWarnings("unchecked")
        Producer<Object, Object> own = (Producer<Object, Object>) producer;
        return new Delayd(buffer, partitions, verdictTimeout, own, new Receipts(consumer, receipts));
    }

    /**
     * Schedules a message. The future ends when all in-sync replicas have the request.
     *
     * <p>With an id a second schedule while it is pending does nothing.
     */
    public CompletableFuture<Place> schedule(Message message) {
        return send(Request.schedule(message));
    }

    /**
     * Schedules a message and asks for its receipts. Verdicts: {@code scheduled}, {@code duplicate},
     * {@code conflict}, {@code over-quota}, {@code rejected}.
     */
    public CompletableFuture<Verdict> scheduleAndAsk(Message message) {
        return ask(Request.schedule(message.receipts(true)));
    }

    /**
     * Schedules a message in place of whatever is pending under its id. Verdicts: {@code replaced},
     * {@code scheduled} (nothing was pending), {@code too-late} (the old one was delivered before; the
     * new one will be too).
     */
    public CompletableFuture<Verdict> replace(Message message) {
        return ask(Request.replace(message));
    }

    /** Schedules a message of which only the last one counts ({@link Request#debounce}). */
    public CompletableFuture<Place> debounce(Message message, Duration maxWait) {
        return send(Request.debounce(message, maxWait));
    }

    /** Cancels what is pending under the id: {@code cancelled}, {@code too-late}, {@code not-found}. */
    public CompletableFuture<Verdict> cancel(String id) {
        return ask(Request.cancel(id));
    }

    /**
     * Gives what is pending under the id another due time: {@code rescheduled}, {@code too-late}, {@code
     * not-found}; a series is not moved: {@code rejected}.
     */
    public CompletableFuture<Verdict> reschedule(String id, Due due) {
        return ask(Request.reschedule(id, due));
    }

    /** Delivers what is pending under the id now: {@code rescheduled}, {@code too-late}, {@code not-found}. */
    public CompletableFuture<Verdict> fire(String id) {
        return ask(Request.fire(id));
    }

    /** Sends a request; the future says where Kafka has it. */
    public CompletableFuture<Place> send(Request request) {
        return Requests.sendWith(producer, request, buffer, partitions);
    }

    /**
     * Sends a request and waits for its verdict, at most {@link #VERDICT_TIMEOUT_MS}. The first call opens
     * the receipts, and blocks until it stands at their end.
     */
    public CompletableFuture<Verdict> ask(Request request) {
        if (inTransaction.contains(Thread.currentThread())) {
            throw waitInside();
        }
        if (!request.isAnswered) {
            throw new RequestRefusedException("no receipt may answer this " + request.op()
                    + ": ask for it with receipts(true), or send it alone");
        }
        request.record(buffer, partitions); // refuses before anything is opened
        Wait wait = receipts.begin(request, verdictTimeout);
        try {
            send(request).whenComplete((place, error) -> {
                if (error == null) {
                    wait.acknowledged(place);
                } else {
                    wait.fail((DelaydException) error);
                }
            });
        } catch (RuntimeException error) {
            receipts.forget(wait);
            throw error;
        }
        return wait.answer.orTimeout(verdictTimeout.toMillis(), TimeUnit.MILLISECONDS)
                .handle((verdict, error) -> {
                    receipts.forget(wait);
                    if (error instanceof TimeoutException) {
                        throw Outcomes.unknown(request,
                                "no receipt came within " + verdictTimeout.toMillis() + " ms", error);
                    }
                    if (error != null) {
                        throw error instanceof DelaydException known ? known : new CompletionException(error);
                    }
                    return verdict;
                });
    }

    /**
     * Requests through the caller's own producer, in its transaction if it has one open.
     *
     * @param producer one that takes bytes ({@code ByteArraySerializer} or {@link BytesPassing})
     */
    public Requests in(Producer<?, ?> producer) {
        return new Requests(producer, buffer, partitions);
    }

    /**
     * Runs {@code work} in a transaction of the caller's producer, and commits it; an exception aborts it.
     *
     * <p>Before the commit every request in it must have been acknowledged. Inside, this thread cannot
     * ask for a verdict: that is refused at once. {@code initTransactions} stays the caller's.
     */
    public void transaction(Producer<?, ?> producer, Consumer<Requests> work) {
        Thread thread = Thread.currentThread();
        if (inTransaction.contains(thread)) {
            throw new RequestRefusedException("this thread has a transaction open already");
        }
        producer.beginTransaction();
        inTransaction.add(thread);
        try {
            Requests requests = in(producer);
            work.accept(requests);
            producer.flush();
            requests.check();
        } catch (Throwable error) {
            try {
                producer.abortTransaction();
            } catch (RuntimeException second) { // the first one is what the caller has to know
                error.addSuppressed(second);
            }
            throw error;
        } finally {
            inTransaction.remove(thread);
        }
        producer.commitTransaction();
    }

    /** Returns the error for a verdict that is asked for inside a transaction. */
    public static RequestRefusedException waitInside() {
        return new RequestRefusedException("no verdict can come while this thread has its transaction open:"
                + " send the request in the transaction, or ask after the commit");
    }

    /** Waits for what is on its way; every wait for a verdict ends at once, with its error. */
    @Override
    public void close() {
        receipts.close();
        producer.close(Duration.ofSeconds(CLOSE_S));
    }

    private static int partitionsOf(Settings settings, String receipts) {
        String buffer = settings.buffer();
        try (Admin admin = Admin.create(settings.admin())) {
            Map<String, TopicDescription> found = new HashMap<>(admin
                    .describeTopics(List.of(buffer, receipts)).allTopicNames().get());
            return found.get(buffer).partitions().size();
        } catch (ExecutionException error) {
            if (error.getCause() instanceof UnknownTopicOrPartitionException) {
                throw new DelaydException("not-initialised", "there is no topic " + buffer + " or no "
                        + receipts + ": run `delayd topics create`, or set " + PREFIX, error.getCause());
            }
            throw unreachable(error.getCause());
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw unreachable(error);
        } catch (KafkaException error) {
            throw new DelaydException("config", error.toString(), error);
        }
    }

    private static DelaydException unreachable(Throwable cause) {
        return new DelaydException("kafka-unreachable", "Kafka does not answer: " + cause, cause);
    }
}
