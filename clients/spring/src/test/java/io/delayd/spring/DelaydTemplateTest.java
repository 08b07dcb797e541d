package io.delayd.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.delayd.BytesPassing;
import io.delayd.DelaydOver;
import io.delayd.Message;
import io.delayd.Request;
import io.delayd.RequestRefusedException;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import java.util.List;
import org.apache.kafka.clients.producer.MockProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.Test;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.core.ProducerFactory;
import org.springframework.kafka.transaction.KafkaTransactionManager;
import org.springframework.transaction.support.TransactionTemplate;

/** The template over Kafka's mock of a producer: which producer sends, and what is counted. */
class DelaydTemplateTest {
    private static final Message MESSAGE = Message.to("orders").id("order-7").value("pay").in("15m");

    private final MockProducer<Object, Object> own = producer();
    private final MockProducer<Object, Object> transactional = producer();
    private final MeterRegistry registry = new SimpleMeterRegistry();
    private final ProducerFactory<Object, Object> factory = new Transactional(transactional);
    private final DelaydTemplate delayd = new DelaydTemplate(new KafkaTemplate<>(factory),
            () -> DelaydOver.producer(own), new StringSerializer(), new MicrometerMeters(registry));
    private final TransactionTemplate transaction =
            new TransactionTemplate(new KafkaTransactionManager<>(factory));

    private static MockProducer<Object, Object> producer() {
        MockProducer<Object, Object> producer = new MockProducer<>(true,
                new BytesPassing(new StringSerializer()), new BytesPassing(new StringSerializer()));
        producer.initTransactions();
        return producer;
    }

    private record Transactional(Producer<Object, Object> producer) implements ProducerFactory<Object, Object> {
        @Override
        public Producer<Object, Object> createProducer() {
            return producer;
        }

        @Override
        public Producer<Object, Object> createProducer(String transactionIdPrefix) {
            return producer;
        }

        @Override
        public boolean transactionCapable() {
            return true;
        }
    }

    @Test
    void insideATransactionItsProducerSends() {
        transaction.executeWithoutResult(status -> {
            delayd.schedule(MESSAGE);
            delayd.cancel("order-8");
        });
        assertThat(transactional.transactionCommitted()).isTrue();
        assertThat(transactional.history()).hasSize(2);
        assertThat(own.history()).isEmpty();
    }

    @Test
    void whatIsRolledBackWasNeverAsked() {
        assertThatThrownBy(() -> transaction.executeWithoutResult(status -> {
            delayd.schedule(MESSAGE);
            throw new IllegalStateException("changed my mind");
        })).hasMessage("changed my mind");
        assertThat(transactional.history()).isEmpty();
        assertThat(transactional.transactionAborted()).isTrue();
        assertThat(own.history()).isEmpty();
    }

    @Test
    void outsideATransactionTheClientSendsAtOnce() {
        delayd.replace(MESSAGE).join();
        assertThat(own.history()).hasSize(1);
        assertThat(transactional.history()).isEmpty();
    }

    @Test
    void noVerdictIsAskedForInsideATransaction() {
        transaction.executeWithoutResult(status ->
                assertThatThrownBy(() -> delayd.ask(Request.cancel("order-7")))
                        .isInstanceOf(RequestRefusedException.class).hasMessageContaining("after the commit"));
        assertThat(own.history()).isEmpty();
        assertThat(transactional.history()).isEmpty();
    }

    @Test
    void requestsAreCountedByWhatCameOfThem() {
        delayd.schedule(MESSAGE).join();
        delayd.cancel("order-7").join();
        delayd.cancel("order-8").join();
        assertThat(count("schedule")).isEqualTo(1);
        assertThat(count("cancel")).isEqualTo(2);
    }

    private double count(String op) {
        return registry.counter("delayd.requests", "op", op, "outcome", "sent").count();
    }

    @Test
    void aPayloadIsWrittenByTheSerializerOfTheApplication() {
        delayd.schedule(delayd.message("orders", "grüße").in("1s")).join();
        assertThat(List.of(own.history().get(0).value()))
                .containsExactly(new StringSerializer().serialize("orders", "grüße"));
    }
}
