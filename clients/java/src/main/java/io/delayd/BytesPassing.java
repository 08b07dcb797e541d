package io.delayd;

import java.util.Map;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.Serializer;

/**
 * A serializer that lets bytes pass and gives everything else to another one: so a producer of the
 * caller's values can send requests in the same transaction.
 */
public final class BytesPassing implements Serializer<Object> {
    private final Serializer<Object> other;

    /** Gives everything but bytes to {@code other}. */
    @SuppressWarnings("unchecked")
    public BytesPassing(Serializer<?> other) {
        this.other = (Serializer<Object>) other;
    }

    @Override
    public void configure(Map<String, ?> configs, boolean isKey) {
        other.configure(configs, isKey);
    }

    @Override
    public byte[] serialize(String topic, Object data) {
        return data instanceof byte[] bytes ? bytes : other.serialize(topic, data);
    }

    @Override
    public byte[] serialize(String topic, Headers headers, Object data) {
        return data instanceof byte[] bytes ? bytes : other.serialize(topic, headers, data);
    }

    @Override
    public void close() {
        other.close();
    }
}
