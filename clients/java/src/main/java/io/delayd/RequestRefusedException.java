package io.delayd;

/** delayd would reject this request, or the call makes no sense; nothing was sent. */
public final class RequestRefusedException extends DelaydException {
    private static final long serialVersionUID = 1;

    RequestRefusedException(String message, Throwable cause) {
        super("request-refused", message, cause);
    }

    RequestRefusedException(String message) {
        this(message, null);
    }
}
