package io.delayd;

/**
 * Where Kafka has a request.
 *
 * @param partition of the buffer
 * @param offset in that partition
 * @param appendMs the broker's append time, Unix ms
 */
public record Place(int partition, long offset, long appendMs) {
    /** Returns the source, by which the receipt and the delivered record name the request. */
    public String source() {
        return partition + "/" + offset;
    }
}
