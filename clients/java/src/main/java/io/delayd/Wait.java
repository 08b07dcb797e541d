package io.delayd;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/**
 * One wait for the verdict on one request.
 *
 * <p>It begins before the request is sent. The source of the request is known when Kafka has
 * acknowledged it; a receipt may come earlier, so until then the wait keeps those that may be its own.
 *
 * <p>Invariant: the answer is a receipt whose source is that of the request, or an error.
 */
final class Wait {
    /** Receipts that are kept for a request whose source is not known yet. */
    static final int EARLY_MAX = 100;

    final Request request;
    final CompletableFuture<Verdict> answer = new CompletableFuture<>();

    private final Map<String, Verdict> early = new LinkedHashMap<>();
    private String source;
    private Verdict outcome;

    Wait(Request request) {
        this.request = request;
    }

    /** Takes a receipt: key and value of a record that was read. */
    synchronized void take(String key, Verdict verdict) {
        // Without an id a receipt is under the source of its request.
        String wanted = request.id == null ? verdict.source() : request.id;
        if (!wanted.equals(key)) {
            return;
        }
        if (source == null) {
            if (early.size() >= EARLY_MAX) {
                early.remove(early.keySet().iterator().next());
            }
            early.put(verdict.source(), verdict);
        } else if (source.equals(verdict.source())) {
            end(verdict);
        }
    }

    /** Learns where Kafka has the request. */
    synchronized void acknowledged(Place place) {
        source = place.source();
        Optional.ofNullable(early.get(source)).ifPresent(this::end);
        early.clear();
    }

    /** Returns the verdict that is the answer; null while there is none. */
    synchronized Verdict outcome() {
        return outcome;
    }

    /** Ends: the request failed, or no receipt can be read any more. */
    void fail(DelaydException error) {
        // On a thread of the pool: what the caller does then may wait for another verdict.
        CompletableFuture.runAsync(() -> answer.completeExceptionally(error));
    }

    private void end(Verdict verdict) {
        if (outcome == null) {
            outcome = verdict;
            answer.completeAsync(() -> verdict);
        }
    }
}
