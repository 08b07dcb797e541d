package io.delayd;

import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The settings of a client: Kafka's own, each given to the clients that know it, and delayd's. */
record Settings(Map<String, Object> kafka, String prefix, Duration verdictTimeout) {
    private static final String DEFAULT_PREFIX = "delayd-";
    private static final long DEFAULT_VERDICT_TIMEOUT_MS = 30_000;

    /** What would break a promise if it were set otherwise. */
    private static final Map<String, Object> FIXED =
            Map.of("acks", "all", "enable.idempotence", true);

    private static final Set<String> FORBIDDEN = Set.of("transactional.id", "group.id", "key.serializer",
            "value.serializer", "key.deserializer", "value.deserializer", "isolation.level");

    static Settings of(Map<String, ?> config) {
        Map<String, Object> kafka = new HashMap<>(config);
        String prefix = String.valueOf(or(kafka.remove(Delayd.PREFIX), DEFAULT_PREFIX));
        Object timeout = or(kafka.remove(Delayd.VERDICT_TIMEOUT_MS), DEFAULT_VERDICT_TIMEOUT_MS);
        for (String name : kafka.keySet()) {
            Object fixed = FIXED.getOrDefault(name, kafka.get(name));
            if (FORBIDDEN.contains(name) || !fixed.toString().equals(kafka.get(name).toString())) {
                throw new DelaydException("config", "the setting " + name
                        + " is delayd's: leave it out. Your own producer has its own", null);
            }
        }
        return new Settings(kafka, prefix, Duration.ofMillis(Long.parseLong(timeout.toString())));
    }

    String buffer() {
        return prefix + Request.BUFFER_SUFFIX;
    }

    Map<String, Object> admin() {
        return known(AdminClientConfig.configNames());
    }

    Map<String, Object> producer() {
        Map<String, Object> settings = known(ProducerConfig.configNames());
        settings.putAll(FIXED);
        settings.put("key.serializer", ByteArraySerializer.class);
        settings.put("value.serializer", ByteArraySerializer.class);
        return settings;
    }

    Consumer<byte[], byte[]> consumer() {
        Map<String, Object> settings = known(ConsumerConfig.configNames());
        settings.remove("interceptor.classes"); // those of the producer
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", false);
        settings.put("allow.auto.create.topics", false);
        settings.put("auto.offset.reset", "none"); // a lost position must not skip an answer silently
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private Map<String, Object> known(Set<String> names) {
        Map<String, Object> settings = new HashMap<>(kafka);
        settings.keySet().retainAll(names);
        return settings;
    }

    private static Object or(Object set, Object fallback) {
        return set == null ? fallback : set;
    }
}
