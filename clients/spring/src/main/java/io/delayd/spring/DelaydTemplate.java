package io.delayd.spring;

import io.delayd.Delayd;
import io.delayd.DelaydException;
import io.delayd.Message;
import io.delayd.Place;
import io.delayd.Request;
import io.delayd.RequestSender;
import io.delayd.Verdict;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.function.Supplier;
import org.apache.kafka.common.serialization.Serializer;
import org.springframework.beans.factory.DisposableBean;
import org.springframework.kafka.core.KafkaTemplate;

/**
 * Requests to delayd, inside the transaction of the thread if there is one.
 *
 * <p>What is sent inside {@code @Transactional}, where the producer factory is transactional, goes
 * through the producer of that transaction: it counts once that is committed, together with what
 * {@link KafkaTemplate} sends. Outside it is sent at once.
 */
public class DelaydTemplate implements RequestSender, DisposableBean {
    private final KafkaTemplate<Object, Object> kafka;
    private final Supplier<Delayd> open;
    private final DelaydMeters meters;
    private final Serializer<Object> serializer;
    private Delayd delayd;

    @SuppressWarnings("unchecked")
    DelaydTemplate(KafkaTemplate<?, ?> kafka, Supplier<Delayd> open, Serializer<?> serializer,
            DelaydMeters meters) {
        this.kafka = (KafkaTemplate<Object, Object>) kafka;
        this.open = open;
        this.serializer = (Serializer<Object>) serializer;
        this.meters = meters;
    }

    /** Returns the client; connects, and checks the topics, at the first call. */
    public synchronized Delayd delayd() {
        if (delayd == null) {
            delayd = open.get();
        }
        return delayd;
    }

    /** Starts a message whose value the application's serializer writes, as for this target. */
    public Message message(String topic, Object payload) {
        return Message.to(topic).value(payload, serializer);
    }

    /** Sends a request, in the transaction of this thread if there is one. */
    @Override
    public CompletableFuture<Place> send(Request request) {
        Delayd client = delayd();
        CompletableFuture<Place> sent = kafka.inTransaction()
                ? kafka.execute(producer -> client.in(producer).send(request))
                : client.send(request);
        return sent.whenComplete((place, error) ->
                meters.request(request.op(), error == null ? "sent" : codeOf(error)));
    }

    /**
     * Sends a request and waits for its verdict.
     *
     * @throws io.delayd.RequestRefusedException inside a transaction: no verdict can come there. Send,
     *     and ask after the commit: a repeated cancel gets a true answer
     */
    public CompletableFuture<Verdict> ask(Request request) {
        if (kafka.inTransaction()) {
            throw Delayd.waitInside();
        }
        return delayd().ask(request).whenComplete((verdict, error) ->
                meters.verdict(request.op(), error == null ? verdict.verdict() : codeOf(error)));
    }

    private static String codeOf(Throwable error) {
        Throwable cause = error instanceof CompletionException ? error.getCause() : error;
        return cause instanceof DelaydException known ? known.code() : "error";
    }

    @Override
    public synchronized void destroy() {
        if (delayd != null) {
            delayd.close();
        }
    }
}
