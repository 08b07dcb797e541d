/**
 * The Java client of delayd: schedules messages, cancels, replaces and moves them.
 *
 * <p>{@link io.delayd.Delayd} sends requests and waits for their verdicts. {@link io.delayd.Request}
 * makes the record alone, for producers that the caller has. What a record looks like is in delayd's
 * reference of requests; {@code clients/conformance} proves that it is the one that Python makes.
 *
 * <p>Invariants: what the grammar of delayd refuses is refused before anything is sent, as far as a
 * client can know; a verdict is the receipt of the call's own request; every future ends; the buffer
 * is never created by sending to it.
 */
package io.delayd;
