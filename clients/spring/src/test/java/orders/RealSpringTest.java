package orders;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.delayd.Message;
import io.delayd.Request;
import io.delayd.RequestRefusedException;
import io.delayd.spring.DelaydTemplate;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.context.annotation.Bean;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.support.TransactionTemplate;

/** A whole application of Spring Boot, on a real Kafka with a real node, which the environment names. */
@SpringBootTest(properties = {
    "spring.kafka.bootstrap-servers=${DELAYD_BOOTSTRAP}", "delayd.prefix=${DELAYD_PREFIX}",
    "delayd.verdict-timeout=60s", "spring.main.banner-mode=off", "orders.topic=${TARGET}"})
@EnabledIfEnvironmentVariable(named = "DELAYD_BOOTSTRAP", matches = ".+")
@Timeout(120)
class RealSpringTest {
    @Autowired OrderService orders;
    @Autowired DelaydTemplate delayd;
    @Autowired MeterRegistry registry;
    @Autowired PlatformTransactionManager transactions;
    @Value("${orders.topic}") String topic;

    @SpringBootApplication
    static class Application {
        @Bean
        MeterRegistry registry() {
            return new SimpleMeterRegistry();
        }
    }

    @Test
    void anOrderAndItsTimeOutAreCommittedTogether() {
        orders.place("order-1", "books");
        assertThat(orders.pay("order-1")).isTrue();
        assertThat(valuesUnder("order-1")).containsExactly("placed: books");
        assertThat(registry.counter("delayd.verdicts", "op", "cancel", "verdict", "cancelled").count())
                .isEqualTo(1);
        assertThat(registry.counter("delayd.requests", "op", "schedule", "outcome", "sent").count())
                .isGreaterThanOrEqualTo(1);
    }

    @Test
    void whatIsRolledBackLeavesNeither() {
        assertThatThrownBy(() -> orders.place("order-2", "")).hasMessage("an order of nothing");
        assertThat(orders.pay("order-2")).isFalse();
        assertThat(valuesUnder("order-2")).isEmpty();
    }

    @Test
    void aMessageOfATransactionIsDeliveredWithThePayloadThatTheSerializerWrote() {
        new TransactionTemplate(transactions).executeWithoutResult(status -> {
            delayd.schedule(delayd.message(topic, "grüße").key("order-3").in("100ms"));
            assertThatThrownBy(() -> delayd.ask(Request.cancel("order-3")))
                    .isInstanceOf(RequestRefusedException.class);
        });
        Instant deadline = Instant.now().plusSeconds(60);
        while (valuesUnder("order-3").isEmpty() && Instant.now().isBefore(deadline)) {
            Thread.onSpinWait(); // each look takes a time-out of Kafka
        }
        assertThat(valuesUnder("order-3")).containsExactly("grüße");
    }

    @Test
    void outsideATransactionAVerdictIsWaitedFor() {
        delayd.schedule(Message.to(topic).id("order-4").in("1h")).join();
        assertThat(delayd.ask(Request.cancel("order-4")).join().verdict()).isEqualTo("cancelled");
        assertThat(delayd.ask(Request.cancel("nobody")).join().verdict()).isEqualTo("not-found");
    }

    /** Returns the committed values that the target has under a key. */
    private List<String> valuesUnder(String key) {
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> reader = new KafkaConsumer<>(
                Map.of("bootstrap.servers", System.getenv("DELAYD_BOOTSTRAP"),
                        "isolation.level", "read_committed"),
                new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> partitions = reader.partitionsFor(topic).stream()
                    .map(info -> new TopicPartition(topic, info.partition())).toList();
            Map<TopicPartition, Long> ends = reader.endOffsets(partitions);
            reader.assign(partitions);
            reader.seekToBeginning(partitions);
            while (partitions.stream().anyMatch(each -> reader.position(each) < ends.get(each))) {
                for (ConsumerRecord<String, String> record : reader.poll(Duration.ofMillis(200))) {
                    if (key.equals(record.key())) {
                        values.add(record.value());
                    }
                }
            }
        }
        return values;
    }
}
