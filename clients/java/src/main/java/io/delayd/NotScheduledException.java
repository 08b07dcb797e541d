package io.delayd;

/** Kafka or the producer refused the request for good: nothing is done. */
public final class NotScheduledException extends DelaydException {
    private static final long serialVersionUID = 1;

    NotScheduledException(String message, Throwable cause) {
        super("not-scheduled", message, cause);
    }
}
