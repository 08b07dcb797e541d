package io.delayd;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * What delayd's grammar of requests refuses, as far as the text alone tells.
 *
 * <p>Not here: what takes a calendar or the cluster (a day that does not exist, the longest delay).
 * Source: docs/reference/requests.md. Each function throws RequestRefusedException, and nothing else.
 */
final class Grammar {
    static final int ID_BYTES_MAX = 256;
    static final long DUE_MS_MAX = 253_402_300_799_999L; // the end of the year 9999
    static final long LATE_MS_MAX = 365 * 86_400_000L;
    static final long WINDOW_MS_MAX = 86_400_000L;

    private static final int DIGITS_MAX = 15;
    private static final int CRON_CHARS_MAX = 128;
    private static final int ZONE_CHARS_MAX = 64;
    private static final Map<String, Long> UNIT_MS =
            Map.of("ms", 1L, "s", 1_000L, "m", 60_000L, "h", 3_600_000L, "d", 86_400_000L);
    private static final Pattern SPAN = Pattern.compile("([0-9]{1,15})(ms|s|m|h|d)");
    private static final String DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt]";
    private static final Pattern RFC_3339 = Pattern.compile(
            DATE + "[0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})");
    private static final Pattern LOCAL =
            Pattern.compile(DATE + "[0-9]{2}:[0-9]{2}(:[0-9]{2}(\\.[0-9]+)?)?");
    private static final Pattern TOPIC = Pattern.compile("[a-zA-Z0-9._-]{1,249}");
    private static final Pattern ZONE =
            Pattern.compile("[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,3}");
    private static final Pattern CRON = Pattern.compile("[0-9A-Za-z*,/#-]+( +[0-9A-Za-z*,/#-]+){4,5}");
    private static final Set<String> CRON_NAMES = Set.of(
            "@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually");

    private Grammar() {}

    /** Returns the text in UTF-8; null for null. */
    static byte[] utf8(String what, String text) {
        if (text == null) {
            return null;
        }
        try {
            ByteBuffer encoded = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(text));
            byte[] bytes = new byte[encoded.remaining()];
            encoded.get(bytes);
            return bytes;
        } catch (CharacterCodingException error) {
            throw new RequestRefusedException("the " + what + " cannot be encoded as UTF-8", error);
        }
    }

    /** Returns an id or the name of a group in UTF-8. */
    static byte[] name(String what, String text) {
        byte[] name = text == null ? new byte[0] : utf8(what, text);
        if (name.length == 0 || name.length > ID_BYTES_MAX) {
            throw new RequestRefusedException("bad-" + what + ": the " + what + " has " + name.length
                    + " bytes in UTF-8, it must have 1 to " + ID_BYTES_MAX);
        }
        return name;
    }

    static void checkTopic(String topic, String prefix) {
        if (!TOPIC.matcher(topic).matches() || topic.equals(".") || topic.equals("..")) {
            throw new RequestRefusedException(
                    "bad-topic: a topic has 1 to 249 of a-z A-Z 0-9 . _ and -: " + quoted(topic));
        }
        if (topic.startsWith("__") || topic.startsWith(prefix)) {
            throw new RequestRefusedException("forbidden-topic: the topic " + quoted(topic)
                    + " belongs to delayd (" + prefix + "*) or to Kafka (__*): choose another target");
        }
    }

    static void checkHeaderName(String name) {
        if (name.startsWith("delayd-")) {
            throw new RequestRefusedException("the header " + quoted(name) + " is delayd's: its prefix is"
                    + " reserved; of a delivered record drop delayd's headers");
        }
        if (name.indexOf('\0') >= 0) {
            throw new RequestRefusedException(
                    "the header name " + quoted(name) + " contains NUL, where librdkafka would cut it");
        }
    }

    /** Returns the milliseconds of a text like 250ms, 10s, 5m, 2h or 30d. */
    static long span(String header, String text, long minMs, long maxMs) {
        Matcher found = SPAN.matcher(text);
        long ms = -1;
        if (found.matches()) {
            ms = saturated(Long.parseLong(found.group(1)), UNIT_MS.get(found.group(2)));
        }
        if (ms < minMs || ms > maxMs) {
            throw new RequestRefusedException("bad-" + header + ": delayd-" + header + " " + quoted(text)
                    + " is not an integer of at most " + DIGITS_MAX + " digits followed by ms, s, m, h or d"
                    + (maxMs == Long.MAX_VALUE ? "" : ", from " + minMs + " to " + maxMs + " ms"));
        }
        return ms;
    }

    static void checkBy(String text) {
        if (!text.startsWith("+") && !text.startsWith("-")) {
            throw new RequestRefusedException("bad-by: delayd-by " + quoted(text)
                    + " has no sign: write it like +10m or -1h");
        }
        span("by", text.substring(1), 0, DUE_MS_MAX);
    }

    /** Refuses what is no due time; with a zone it is a local time, without an offset. */
    static void checkDue(String header, String text, String zone) {
        if (zone != null) {
            if (!LOCAL.matcher(text).matches()) {
                throw bad(header, text, "is not what a clock shows: write it like 2027-03-28T09:00");
            }
        } else if (!text.isEmpty() && text.chars().allMatch(c -> c >= '0' && c <= '9')) {
            checkNumber(header, text);
        } else if (!RFC_3339.matcher(text).matches()) {
            throw bad(header, text,
                    "is neither Unix milliseconds nor RFC 3339: write it like 2026-01-31T23:59:59.250+01:00");
        }
    }

    private static void checkNumber(String header, String text) {
        String digits = text.replaceFirst("^0+(?=.)", "");
        switch (text.length() > 19 ? 0 : digits.length()) {
            case 10 -> throw bad(header, text, "looks like seconds: multiply it by 1,000");
            case 16 -> throw bad(header, text, "looks like microseconds: divide it by 1,000");
            case 19 -> throw bad(header, text, "looks like nanoseconds: divide it by 1,000,000");
            default -> {
                if (text.length() > DIGITS_MAX || Long.parseLong(text) > DUE_MS_MAX) {
                    throw bad(header, text, "is beyond the year 9999: it is read as Unix milliseconds");
                }
            }
        }
    }

    static void checkZone(String zone) {
        if (zone.length() > ZONE_CHARS_MAX || !ZONE.matcher(zone).matches()) {
            throw new RequestRefusedException(
                    "bad-zone: " + quoted(zone) + " is no IANA name: write it like Europe/Berlin");
        }
    }

    static void checkCron(String cron) {
        boolean isExpression = cron.length() <= CRON_CHARS_MAX && CRON.matcher(cron).matches();
        if (!isExpression && !CRON_NAMES.contains(cron)) {
            throw new RequestRefusedException("bad-cron: " + quoted(cron)
                    + " has not five fields (minute, hour, day, month, weekday) or six with seconds first");
        }
    }

    /** Returns whole milliseconds, rounded up so that nothing is early. */
    static long ms(Duration span) {
        return ms("span", span.getSeconds(), span.getNano());
    }

    /** Returns Unix milliseconds, rounded up so that nothing is early. */
    static long ms(Instant moment) {
        return ms("due time", moment.getEpochSecond(), moment.getNano());
    }

    private static long ms(String what, long seconds, int nanos) {
        try {
            return Math.addExact(Math.multiplyExact(seconds, 1_000L), (nanos + 999_999) / 1_000_000);
        } catch (ArithmeticException error) {
            throw new RequestRefusedException("the " + what + " is beyond all milliseconds", error);
        }
    }

    private static long saturated(long number, long unit) {
        return number > Long.MAX_VALUE / unit ? Long.MAX_VALUE : number * unit;
    }

    private static RequestRefusedException bad(String header, String text, String problem) {
        return new RequestRefusedException(
                "bad-" + header + ": delayd-" + header + " " + quoted(text) + " " + problem);
    }

    static String quoted(String text) {
        return "'" + (text.length() > 80 ? text.substring(0, 80) + "..." : text) + "'";
    }
}
