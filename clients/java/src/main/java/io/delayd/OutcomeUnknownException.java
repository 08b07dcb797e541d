package io.delayd;

/** No acknowledgement within the bound: the request may be in the buffer or not. */
public final class OutcomeUnknownException extends DelaydException {
    private static final long serialVersionUID = 1;

    OutcomeUnknownException(String message, Throwable cause) {
        super("outcome-unknown", message, cause);
    }
}
