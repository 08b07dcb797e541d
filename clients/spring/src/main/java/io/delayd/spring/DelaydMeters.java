package io.delayd.spring;

/** Counts what came of requests. */
interface DelaydMeters {
    /** Counts nothing: there is no registry. */
    DelaydMeters NONE = new DelaydMeters() {
        @Override
        public void request(String op, String outcome) {}

        @Override
        public void verdict(String op, String verdict) {}
    };

    /** A request was acknowledged or not: {@code sent}, or the code of its error. */
    void request(String op, String outcome);

    /** A verdict came, or the code of the error in its place. */
    void verdict(String op, String verdict);
}
