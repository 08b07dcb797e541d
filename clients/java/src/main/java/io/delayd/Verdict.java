package io.delayd;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * The definite answer to a request, from its receipt.
 *
 * @param verdict {@code cancelled}, {@code replaced}, {@code rescheduled}, {@code scheduled}, {@code
 *     too-late}, {@code not-found}, {@code duplicate}, {@code conflict}, {@code over-quota}, {@code
 *     rejected}; a later delayd may know more
 * @param killed sources of the messages that will never be delivered because of this request
 * @param dueMs the due time of the message that the answer is about, Unix ms; null: it has none
 * @param atMs the master's now of the step that decided, Unix ms
 * @param detail for people
 * @param source {@code partition/offset} of the request that it answers
 * @param oldDueMs of {@code rescheduled}: when the message was due before, Unix ms; else null
 */
public record Verdict(String verdict, List<String> killed, Long dueMs, long atMs, String detail,
        String source, Long oldDueMs) {
    /** Later receipts with the same source: what became of the message. */
    private static final Set<String> LATER = Set.of("delivered", "dead", "expired", "ended");

    /** Returns whether it is this one. */
    public boolean is(String verdict) {
        return this.verdict.equals(verdict);
    }

    /** Returns the verdict in a receipt's value; empty if there is none. */
    static Optional<Verdict> read(byte[] value) {
        try {
            if (value == null || !(Json.read(value) instanceof Map<?, ?> fields)) {
                return Optional.empty();
            }
            List<String> killed = new ArrayList<>();
            for (Object source : (List<?>) present(fields, "killed")) {
                killed.add((String) source);
            }
            Object detail = present(fields, "detail");
            Verdict found = new Verdict((String) present(fields, "verdict"), List.copyOf(killed),
                    (Long) present(fields, "due_ms"), (Long) present(fields, "at_ms"),
                    detail == null ? "" : (String) detail, (String) present(fields, "source"),
                    (Long) fields.get("old_due_ms"));
            return LATER.contains(found.verdict) ? Optional.empty() : Optional.of(found);
        } catch (IllegalArgumentException | ClassCastException | NullPointerException error) {
            return Optional.empty(); // no delayd has written it
        }
    }

    private static Object present(Map<?, ?> fields, String name) {
        if (!fields.containsKey(name)) {
            throw new IllegalArgumentException("there is no " + name);
        }
        return fields.get(name);
    }
}
