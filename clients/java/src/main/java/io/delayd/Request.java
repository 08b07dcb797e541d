package io.delayd;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;

/**
 * A request as a record for the buffer, checked.
 *
 * <p>{@link Delayd} sends it. {@link #record} is for whoever sends with a client of their own.
 */
public final class Request {
    static final String BUFFER_SUFFIX = "buffer";

    private final String op;
    /** Null: it has none. */
    final String id;
    /** Whether a receipt answers it, if nothing else tells delayd to write one. */
    final boolean isAnswered;

    private final String target;
    private final byte[] key;
    private final byte[] value;
    private final List<Header> headers;

    private Request(String op, String id, String target, byte[] key, byte[] value,
            List<Header> headers, boolean isAnswered) {
        this.op = op;
        this.id = id;
        this.target = target;
        this.key = key;
        this.value = value;
        this.headers = List.copyOf(headers);
        this.isAnswered = isAnswered;
    }

    /** Schedules a message. */
    public static Request schedule(Message message) {
        return of("schedule", message, null);
    }

    /** Schedules a message in place of what is pending under its id. */
    public static Request replace(Message message) {
        return of("replace", message, null);
    }

    /**
     * Schedules a message of which only the last one counts: it goes out its delay after the last
     * request with this id, and at the latest {@code maxWait} after the first one.
     */
    public static Request debounce(Message message, Duration maxWait) {
        return debounce(message, Due.spanText("longest wait", maxWait));
    }

    /** As above, with the longest wait as text: {@code 30s}. */
    public static Request debounce(Message message, String maxWait) {
        boolean hasDelay = message.due != null && message.due.header.equals("delayd-delay");
        if (!hasDelay || message.window != null) {
            throw new RequestRefusedException("a debounce has a delay (in), and no window");
        }
        long delayMs = Grammar.span("delay", message.due.text, 0, Long.MAX_VALUE);
        Grammar.span("max-wait", maxWait, delayMs, Long.MAX_VALUE);
        return of("debounce", message, maxWait);
    }

    /** Cancels what is pending under the id. */
    public static Request cancel(String id) {
        return about("cancel", id, null);
    }

    /** Gives what is pending under the id another due time. */
    public static Request reschedule(String id, Due due) {
        return about("reschedule", id, due);
    }

    /** Delivers what is pending under the id now. */
    public static Request fire(String id) {
        return about("fire", id, null);
    }

    private static Request about(String op, String id, Due due) {
        byte[] key = Grammar.name("id", id);
        List<Header> headers = new ArrayList<>();
        add(headers, "delayd-op", op);
        headers.add(new RecordHeader("delayd-id", key));
        if (due != null) {
            add(headers, due.header, due.text);
        }
        return new Request(op, id, null, key, null, headers, true);
    }

    private static Request of(String op, Message message, String maxWait) {
        check(message);
        List<Header> headers = new ArrayList<>(message.headers);
        add(headers, "delayd-topic", message.topic);
        add(headers, message.due == null ? "delayd-cron" : message.due.header,
                message.due == null ? message.cron : message.due.text);
        add(headers, "delayd-zone", message.zone);
        add(headers, "delayd-catchup", message.catchUp);
        add(headers, "delayd-until", message.until);
        add(headers, "delayd-partition", message.partition == null ? null : message.partition.toString());
        add(headers, "delayd-receipt", message.receipts ? "yes" : null);
        add(headers, "delayd-late", message.late);
        add(headers, "delayd-window", message.window);
        add(headers, "delayd-max-wait", maxWait);
        add(headers, "delayd-group", message.group);
        boolean isSchedule = op.equals("schedule");
        byte[] key = message.key;
        if (message.id == null) {
            if (!isSchedule) {
                throw new RequestRefusedException("missing-id: a " + op + " needs the id of the message");
            }
        } else {
            key = Grammar.name("id", message.id);
            if (message.key != null && !Arrays.equals(message.key, key)) {
                headers.add(new RecordHeader("delayd-key", message.key));
            }
            add(headers, "delayd-op", isSchedule ? null : op);
            headers.add(new RecordHeader("delayd-id", key));
        }
        boolean isAnswered = message.receipts || op.equals("replace");
        return new Request(op, message.id, message.topic, key, message.value, headers, isAnswered);
    }

    private static void check(Message message) {
        if (message.due == null && message.cron == null) {
            throw new RequestRefusedException("give exactly one of in, at and cron");
        }
        if (message.cron == null && (message.until != null || message.catchUp != null)) {
            throw new RequestRefusedException("unexpected-header: until and catchUp are of cron");
        }
        if (message.cron != null && message.window != null) {
            throw new RequestRefusedException("unexpected-header: a series has no window");
        }
        if (message.group != null && message.id == null) {
            throw new RequestRefusedException("missing-id: what has a group has an id");
        }
        if (message.id != null && message.key != null) {
            if (message.key.length == 0) {
                throw new RequestRefusedException("empty-header: the key to deliver beside an id is empty");
            }
            if (!Arrays.equals(new String(message.key, UTF_8).getBytes(UTF_8), message.key)) {
                throw new RequestRefusedException("not-utf8: the key to deliver beside an id is not UTF-8");
            }
        }
    }

    private static void add(List<Header> headers, String name, String text) {
        if (text != null) {
            headers.add(new RecordHeader(name, Grammar.utf8(name, text)));
        }
    }

    /** Returns the operation: {@code schedule}, {@code cancel} and so on. */
    public String op() {
        return op;
    }

    /**
     * Returns the record for that buffer. With an id its partition is named, so that no partitioner of
     * the producer decides it: all requests about an id must meet in one.
     *
     * @param partitions how many the buffer has
     */
    public ProducerRecord<byte[], byte[]> record(String buffer, int partitions) {
        if (target != null) {
            boolean hasPrefix = buffer.endsWith(BUFFER_SUFFIX) && buffer.length() > BUFFER_SUFFIX.length();
            Grammar.checkTopic(target, hasPrefix
                    ? buffer.substring(0, buffer.length() - BUFFER_SUFFIX.length()) : "delayd-");
        }
        Integer partition = id == null ? null : Integer.valueOf(Murmur2.partitionOf(key, partitions));
        return new ProducerRecord<>(buffer, partition, key, value, headers);
    }
}
