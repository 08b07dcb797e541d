package io.delayd;

/**
 * No receipt within the bound: whether the request was carried out is not known.
 *
 * <p>It can be asked again: a repeated cancel of the same id gets a true answer. So does a replace
 * that is repeated unchanged and has a due time ({@link Message#at}).
 */
public final class VerdictUnknownException extends DelaydException {
    private static final long serialVersionUID = 1;

    VerdictUnknownException(String message, Throwable cause) {
        super("verdict-unknown", message, cause);
    }
}
