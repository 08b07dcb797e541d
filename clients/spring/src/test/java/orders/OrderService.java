package orders;

import io.delayd.Message;
import io.delayd.Request;
import io.delayd.spring.DelaydTemplate;
import java.time.Duration;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.stereotype.Service;
import org.springframework.transaction.annotation.Transactional;

/** Orders that are cancelled unless they are paid in time. */
@Service
public class OrderService {
    private final KafkaTemplate<String, String> kafka;
    private final DelaydTemplate delayd;
    private final String orders;

    OrderService(KafkaTemplate<String, String> kafka, DelaydTemplate delayd,
            @Value("${orders.topic:orders}") String orders) {
        this.kafka = kafka;
        this.delayd = delayd;
        this.orders = orders;
    }

    /** The order and its time-out are in one transaction: both, or neither. */
    @Transactional
    public void place(String order, String goods) {
        kafka.send(orders, order, "placed: " + goods);
        delayd.schedule(Message.to(orders).id(order).value("cancel if unpaid").in(Duration.ofMinutes(15)));
        if (goods.isEmpty()) {
            throw new IllegalArgumentException("an order of nothing"); // and no time-out either
        }
    }

    /** True if it was paid in time, so that nobody will cancel it. */
    public boolean pay(String order) {
        return delayd.ask(Request.cancel(order)).join().is("cancelled");
    }
}
