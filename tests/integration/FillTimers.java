import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/** Sends timer messages, each due a millisecond behind the one before; prints `sent ID DUE_MS`. */
public class FillTimers {
  public static void main(String[] args) throws Exception {
    String topic = args[1];
    int count = Integer.parseInt(args[2]);
    long firstMs = Long.parseLong(args[3]);
    DefaultMQProducer producer = new DefaultMQProducer("fill-timers");
    producer.setNamesrvAddr(args[0]);
    producer.setSendMsgTimeout(60_000);
    producer.start();
    awaitBroker(producer);
    ExecutorService threads = Executors.newFixedThreadPool(8);
    try {
      List<Future<String>> sent = new ArrayList<>();
      for (int n = 0; n < count; n++) {
        Message message = new Message(topic, "tag", "key-" + n, ("of " + n).getBytes("UTF-8"));
        long dueMs = firstMs + n;
        message.setDeliverTimeMs(dueMs);
        sent.add(threads.submit(() -> {
          SendResult result = producer.send(message);
          if (result.getSendStatus() != SendStatus.SEND_OK) throw new Exception("" + result);
          return "sent " + result.getMsgId() + " " + dueMs;
        }));
      }
      for (Future<String> each : sent) System.out.println(each.get());
    } finally {
      threads.shutdownNow();
      producer.shutdown();
    }
  }

  /** A broker that has just started is not known to the name server yet. */
  static void awaitBroker(DefaultMQProducer producer) throws Exception {
    for (int tries = 1; ; tries++) {
      try {
        producer.fetchPublishMessageQueues("TBW102"); // by it others are created
        return;
      } catch (MQClientException error) {
        if (tries == 300) throw error;
        Thread.sleep(200);
      }
    }
  }
}
