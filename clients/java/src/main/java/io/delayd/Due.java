package io.delayd;

import java.time.Duration;
import java.time.Instant;
import java.util.Locale;

/** When: a time, a delay from now on, or (of a reschedule) so much later or earlier than it was. */
public final class Due {
    final String header;
    final String text;

    Due(String header, String text) {
        this.header = header;
        this.text = text;
    }

    /** So long after Kafka has the request; below a millisecond rounds up. */
    public static Due in(Duration delay) {
        return in(spanText("delay", delay));
    }

    /** So long after Kafka has the request, as delayd writes it: {@code 15m}, {@code 30d}. */
    public static Due in(String delay) {
        Grammar.span("delay", delay, 0, Long.MAX_VALUE);
        return new Due("delayd-delay", delay);
    }

    /** At that moment; in the past: at once. Below a millisecond rounds up. */
    public static Due at(Instant moment) {
        return at(Long.toString(Grammar.ms(moment)));
    }

    /** At that moment: RFC 3339 with {@code Z} or an offset, or Unix milliseconds. */
    public static Due at(String moment) {
        Grammar.checkDue("due", moment, null);
        return new Due("delayd-due", moment);
    }

    /** So much later than it is due, earlier if negative. Of a reschedule only. */
    public static Due by(Duration span) {
        return by(String.format(Locale.ROOT, "%+dms", Grammar.ms(span)));
    }

    /** So much later or earlier than it is due: {@code +1h}, {@code -10m}. Of a reschedule only. */
    public static Due by(String span) {
        Grammar.checkBy(span);
        return new Due("delayd-by", span);
    }

    static String spanText(String what, Duration span) {
        if (span.isNegative()) {
            throw new RequestRefusedException("the " + what + " " + span + " is negative");
        }
        return Grammar.ms(span) + "ms";
    }
}
