package io.delayd;

import java.time.Duration;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Serializer;

/**
 * A message to schedule: its target, its content, and exactly one time ({@code in}, {@code at} or
 * {@code cron}).
 *
 * <pre>{@code Message.to("orders").value("cancel if unpaid").id("order-7").in(Duration.ofMinutes(15))}</pre>
 *
 * <p>Each method returns this message, and throws {@link RequestRefusedException} for what delayd
 * would reject. For one thread.
 */
public final class Message {
    final String topic;
    final List<Header> headers = new ArrayList<>();
    byte[] key;
    byte[] value;
    String id;
    Due due;
    String cron;
    String zone;
    String until;
    String catchUp;
    Integer partition;
    boolean receipts;
    String late;
    String window;
    String group;

    private Message(String topic) {
        this.topic = topic;
    }

    /** Starts a message for this target topic. */
    public static Message to(String topic) {
        return new Message(topic);
    }

    /** The value, or null for a tombstone; also what it is without this call. */
    public Message value(byte[] value) {
        this.value = value;
        return this;
    }

    /** The value, in UTF-8. */
    public Message value(String value) {
        return value(Grammar.utf8("value", value));
    }

    /**
     * The value as this serializer writes it for the <em>target</em>: a schema registry files it under
     * the target's subject. Headers that the serializer adds go along.
     */
    public <T> Message value(T value, Serializer<T> serializer) {
        RecordHeaders added = new RecordHeaders();
        this.value = serializer.serialize(topic, added, value);
        added.forEach(header -> header(header.key(), header.value()));
        return this;
    }

    /** The key of the delivered record; by default the id, else none. */
    public Message key(byte[] key) {
        this.key = key;
        return this;
    }

    /** The key of the delivered record, in UTF-8. */
    public Message key(String key) {
        return key(Grammar.utf8("key", key));
    }

    /** The name by which it can be cancelled and replaced: 1 to 256 bytes of UTF-8. */
    public Message id(String id) {
        Grammar.name("id", id);
        this.id = id;
        return this;
    }

    /** When it is due. */
    public Message due(Due due) {
        refuseSecondTime();
        if (due.header.equals("delayd-by")) {
            throw new RequestRefusedException("a span 'by' is of a reschedule: give a delay or a time");
        }
        this.due = due;
        return this;
    }

    /** It is due so long after Kafka has the request. */
    public Message in(Duration delay) {
        return due(Due.in(delay));
    }

    /** It is due so long after Kafka has the request: {@code 15m}, {@code 30d}. */
    public Message in(String delay) {
        return due(Due.in(delay));
    }

    /** It is due at that moment; in the past: at once. */
    public Message at(Instant moment) {
        return due(Due.at(moment));
    }

    /** It is due at that moment: RFC 3339 with {@code Z} or an offset, or Unix milliseconds. */
    public Message at(String moment) {
        return due(Due.at(moment));
    }

    /** It is due when the clocks of that zone show this; delayd follows changes of the zone's rules. */
    public Message at(String clock, String zone) {
        refuseSecondTime();
        Grammar.checkZone(zone);
        Grammar.checkDue("due", clock, zone);
        this.due = new Due("delayd-due", clock);
        this.zone = zone;
        return this;
    }

    /** It is due when the clocks of that zone show this. */
    public Message at(LocalDateTime clock, ZoneId zone) {
        return at(clock.toString(), zone.getId());
    }

    /** It recurs by this expression, in UTC. */
    public Message cron(String expression) {
        return cron(expression, null);
    }

    /** It recurs by this expression, as the clocks of that zone (null: UTC) show it. */
    public Message cron(String expression, String zone) {
        refuseSecondTime();
        Grammar.checkCron(expression);
        if (zone != null) {
            Grammar.checkZone(zone);
        }
        this.cron = expression;
        this.zone = zone;
        return this;
    }

    /** Of one that recurs: no occurrence is later. */
    public Message until(Instant end) {
        return until(Long.toString(Grammar.ms(end)));
    }

    /** Of one that recurs: no occurrence is later than this, written as for {@link #at(String)}. */
    public Message until(String end) {
        Grammar.checkDue("until", end, null);
        this.until = end;
        return this;
    }

    /** Of one that recurs: after an outage {@code once} (the default) or {@code all} that were missed. */
    public Message catchUp(String which) {
        if (!which.equals("once") && !which.equals("all")) {
            throw new RequestRefusedException("bad-catchup: it is once or all, not " + Grammar.quoted(which));
        }
        this.catchUp = which;
        return this;
    }

    /** Adds a header of yours; it is delivered as it is. */
    public Message header(String name, byte[] value) {
        Grammar.utf8("header name", name);
        Grammar.checkHeaderName(name);
        headers.add(new RecordHeader(name, value));
        return this;
    }

    /** Adds a header of yours, its value in UTF-8. */
    public Message header(String name, String value) {
        return header(name, Grammar.utf8("header value", value));
    }

    /** The partition of the target; by default that of the key. */
    public Message partition(int partition) {
        if (partition < 0) {
            throw new RequestRefusedException("bad-partition: " + partition + " is below 0");
        }
        this.partition = partition;
        return this;
    }

    /** All its receipts are written, {@code scheduled} and {@code delivered} too. */
    public Message receipts(boolean wanted) {
        this.receipts = wanted;
        return this;
    }

    /** How much later than its due time it is still worth delivering: 1 ms to 365 days. */
    public Message late(Duration late) {
        return late(Due.spanText("lateness", late));
    }

    /** How much later than its due time it is still worth delivering: {@code 10m}. */
    public Message late(String late) {
        Grammar.span("late", late, 1, Grammar.LATE_MS_MAX);
        this.late = late;
        return this;
    }

    /** It may go out so much later, evenly spread, so that a crowd is no peak: 1 ms to 1 day. */
    public Message window(Duration window) {
        return window(Due.spanText("window", window));
    }

    /** It may go out so much later: {@code 5m}. */
    public Message window(String window) {
        Grammar.span("window", window, 1, Grammar.WINDOW_MS_MAX);
        this.window = window;
        return this;
    }

    /** A name that it shares with others, by which all of them are listed, cancelled and moved. */
    public Message group(String group) {
        Grammar.name("group", group);
        this.group = group;
        return this;
    }

    private void refuseSecondTime() {
        if (due != null || cron != null) {
            throw new RequestRefusedException("give exactly one of in, at and cron");
        }
    }
}
