package orders;

import io.delayd.Delayd;
import io.delayd.Message;
import java.time.Duration;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Orders that are cancelled unless they are paid in time. */
public class Orders {
    private final Delayd delayd; // Delayd.open(Map.of("bootstrap.servers", "localhost:9092"))
    private final Producer<Object, Object> producer; // transactional; its serializers let bytes pass
    private final String topic;

    public Orders(Delayd delayd, Producer<Object, Object> producer, String topic) {
        this.delayd = delayd;
        this.producer = producer;
        this.topic = topic;
    }

    /** The order and its time-out are in one transaction: both, or neither. */
    public void place(String order) {
        delayd.transaction(producer, requests -> {
            producer.send(new ProducerRecord<>(topic, order, "placed"));
            requests.schedule(
                    Message.to(topic).id(order).value("cancel if unpaid").in(Duration.ofMinutes(15)));
        });
    }

    /** True if it was paid in time, so that nobody will cancel it. */
    public boolean pay(String order) {
        return delayd.cancel(order).join().is("cancelled");
    }
}
