package io.delayd;

import java.util.Set;
import org.apache.kafka.common.errors.ClusterAuthorizationException;
import org.apache.kafka.common.errors.InvalidTimestampException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.common.errors.RecordBatchTooLargeException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TopicAuthorizationException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** What a failure of Kafka means for the request. */
final class Outcomes {
    /** Answers of Kafka after which the record certainly is not in the buffer. */
    private static final Set<Class<?>> CERTAIN = Set.of(
            RecordTooLargeException.class, RecordBatchTooLargeException.class,
            UnknownTopicOrPartitionException.class, InvalidTopicException.class,
            InvalidTimestampException.class, PolicyViolationException.class,
            TopicAuthorizationException.class, ClusterAuthorizationException.class);

    private Outcomes() {}

    /** Returns the error for a record that was sent and not acknowledged. */
    static DelaydException ofReport(Request request, Exception error) {
        if (CERTAIN.contains(error.getClass())) {
            return notDone(request, error);
        }
        return new OutcomeUnknownException("the " + request.op() + " may be done or not: " + error
                + "; repeat it unchanged: with an id a schedule is done once, a cancel gets a true answer",
                error);
    }

    /** Returns the error for a record that Kafka certainly does not have. */
    static NotScheduledException notDone(Request request, Exception error) {
        return new NotScheduledException("the " + request.op() + " is not done: " + error, error);
    }

    /** Returns the error for a wait that ended without a receipt. */
    static VerdictUnknownException unknown(Request request, String what, Throwable cause) {
        return new VerdictUnknownException("the outcome of the " + request.op() + " is unknown: " + what
                + "; ask again: a repeated cancel gets a true answer, and so does a replace with a due time."
                + " While a transaction of yours is open on the buffer, no verdict can come: end it first",
                cause);
    }
}
