package io.delayd;

/** What went wrong, with a stable code and what to do. */
public class DelaydException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private final String code;

    DelaydException(String code, String message, Throwable cause) {
        super(message, cause);
        this.code = code;
    }

    /**
     * Returns the code, the same as in Python: {@code request-refused}, {@code not-scheduled}, {@code
     * outcome-unknown}, {@code verdict-unknown}, {@code not-initialised}, {@code kafka-unreachable},
     * {@code config}.
     */
    public String code() {
        return code;
    }
}
