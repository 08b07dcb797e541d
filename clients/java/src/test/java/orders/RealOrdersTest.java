package orders;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.delayd.BytesPassing;
import io.delayd.Delayd;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;

/** The example of docs/guides/java.md, on a real Kafka with a real node. */
@EnabledIfEnvironmentVariable(named = "DELAYD_BOOTSTRAP", matches = ".+")
@Timeout(120)
class RealOrdersTest {
    @Test
    void anOrderThatIsPaidInTimeIsNotCancelled() {
        String bootstrap = System.getenv("DELAYD_BOOTSTRAP");
        String prefix = System.getenv("DELAYD_PREFIX");
        Map<String, Object> ofTransactions =
                Map.of("bootstrap.servers", bootstrap, "transactional.id", prefix + "orders");
        try (Delayd delayd = Delayd.open(Map.of("bootstrap.servers", bootstrap, Delayd.PREFIX, prefix,
                        Delayd.VERDICT_TIMEOUT_MS, 60_000));
                KafkaProducer<Object, Object> producer = new KafkaProducer<>(ofTransactions,
                        new BytesPassing(new StringSerializer()), new BytesPassing(new StringSerializer()))) {
            producer.initTransactions();
            Orders orders = new Orders(delayd, producer, System.getenv("TARGET"));
            orders.place("paid");
            assertTrue(orders.pay("paid"));
            assertFalse(orders.pay("unknown"));
        }
    }
}
