package io.delayd;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;

/** Sends requests, each by its name. A future says where Kafka has the request; no verdict is awaited. */
public interface RequestSender {
    /**
     * Sends a request.
     *
     * @throws NotScheduledException if the producer does not take it
     */
    CompletableFuture<Place> send(Request request);

    /** Schedules a message. */
    default CompletableFuture<Place> schedule(Message message) {
        return send(Request.schedule(message));
    }

    /** Schedules a message in place of what is pending under its id. */
    default CompletableFuture<Place> replace(Message message) {
        return send(Request.replace(message));
    }

    /** Schedules a message of which only the last one counts. */
    default CompletableFuture<Place> debounce(Message message, Duration maxWait) {
        return send(Request.debounce(message, maxWait));
    }

    /** Cancels what is pending under the id. */
    default CompletableFuture<Place> cancel(String id) {
        return send(Request.cancel(id));
    }

    /** Gives what is pending under the id another due time. */
    default CompletableFuture<Place> reschedule(String id, Due due) {
        return send(Request.reschedule(id, due));
    }

    /** Delivers what is pending under the id now. */
    default CompletableFuture<Place> fire(String id) {
        return send(Request.fire(id));
    }
}
