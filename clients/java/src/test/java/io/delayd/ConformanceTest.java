package io.delayd;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.CharacterCodingException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/** Runs clients/conformance/cases.json, which Python, Go and Node run as well. */
class ConformanceTest {
    private static final Path FILE = Path.of("..", "conformance", "cases.json");

    @TestFactory
    Stream<DynamicTest> requests() throws IOException {
        return cases("requests").map(each -> DynamicTest.dynamicTest((String) each.get("name"), () -> {
            if (each.containsKey("refused")) {
                assertThrows(RequestRefusedException.class, () -> recordOf(each));
            } else {
                assertEquals(each.get("record"), said(recordOf(each)));
            }
        }));
    }

    @TestFactory
    Stream<DynamicTest> receipts() throws IOException {
        return cases("receipts").map(each -> DynamicTest.dynamicTest((String) each.get("name"),
                () -> assertEquals(each.get("verdict"), said(answerOf(each)))));
    }

    private static Stream<Map<String, Object>> cases(String part) throws IOException {
        List<?> cases = (List<?>) map(Json.read(Files.readAllBytes(FILE))).get(part);
        assertTrue(cases.size() > 50);
        return cases.stream().map(ConformanceTest::map);
    }

    private static ProducerRecord<byte[], byte[]> recordOf(Map<String, Object> each) {
        Map<String, Object> arguments = map(each.get("arguments"));
        String buffer = (String) arguments.getOrDefault("buffer", "delayd-buffer");
        int partitions = ((Long) each.get("partitions")).intValue();
        return requestOf((String) each.get("op"), arguments).record(buffer, partitions);
    }

    private static Request requestOf(String op, Map<String, Object> arguments) {
        return switch (op) {
            case "schedule" -> Request.schedule(message(arguments));
            case "replace" -> Request.replace(message(arguments));
            case "debounce" -> arguments.get("max_wait") instanceof String text
                    ? Request.debounce(message(arguments), text)
                    : Request.debounce(message(arguments), span(arguments.get("max_wait")));
            case "cancel" -> Request.cancel(text(arguments.get("id")));
            case "fire" -> Request.fire(text(arguments.get("id")));
            case "reschedule" -> Request.reschedule(text(arguments.get("id")), due(arguments));
            default -> throw new AssertionError(op);
        };
    }

    private static Due due(Map<String, Object> arguments) {
        List<Due> given = new ArrayList<>();
        Object in = arguments.get("in");
        if (in != null) {
            given.add(in instanceof String text ? Due.in(text) : Due.in(span(in)));
        }
        Object at = arguments.get("at");
        if (at != null) {
            given.add(at instanceof String text ? Due.at(text) : Due.at(moment(at)));
        }
        Object by = arguments.get("by");
        if (by != null) {
            given.add(by instanceof String text ? Due.by(text) : Due.by(span(by)));
        }
        if (given.size() != 1) { // a reschedule takes one, so nobody can write this
            throw new RequestRefusedException("the types do not let anyone write this");
        }
        return given.get(0);
    }

    private static Message message(Map<String, Object> arguments) {
        Message message = Message.to(text(arguments.get("topic"))).value(bytes(arguments.get("value")));
        if (arguments.containsKey("zone") && arguments.get("in") != null) {
            throw new RequestRefusedException("the types do not let anyone write this");
        }
        arguments.forEach((name, said) -> add(message, name, said, arguments));
        return message;
    }

    private static void add(Message message, String name, Object said, Map<String, Object> arguments) {
        String zone = (String) arguments.get("zone");
        switch (name) {
            case "topic", "value", "zone", "buffer", "max_wait" -> { }
            case "key" -> message.key(bytes(said));
            case "id" -> message.id(text(said));
            case "in" -> addSpan(said, message::in, message::in);
            case "late" -> addSpan(said, message::late, message::late);
            case "window" -> addSpan(said, message::window, message::window);
            case "at" -> addMoment(message, said, zone);
            case "cron" -> message.cron((String) said, zone);
            case "until" -> {
                if (said instanceof String text) {
                    message.until(text);
                } else {
                    message.until(moment(said));
                }
            }
            case "catchup" -> message.catchUp((String) said);
            case "partition" -> message.partition(((Long) said).intValue());
            case "receipts" -> message.receipts((Boolean) said);
            case "group" -> message.group((String) said);
            case "headers" -> ((List<?>) said).forEach(header ->
                    message.header((String) ((List<?>) header).get(0), bytes(((List<?>) header).get(1))));
            default -> throw new AssertionError(name);
        }
    }

    private static void addMoment(Message message, Object said, String zone) {
        if (zone != null) {
            message.at((String) said, zone);
        } else if (said instanceof String text) {
            message.at(text);
        } else {
            message.at(moment(said));
        }
    }

    private interface Taking<T> {
        Message take(T value);
    }

    private static void addSpan(Object said, Taking<String> text, Taking<Duration> span) {
        if (said instanceof String written) {
            text.take(written);
        } else {
            span.take(span(said));
        }
    }

    private static Duration span(Object said) {
        return said instanceof Map<?, ?> fine
                ? Duration.of((Long) fine.get("us"), ChronoUnit.MICROS) : Duration.ofMillis((Long) said);
    }

    private static Instant moment(Object said) {
        return Instant.EPOCH.plus(span(said));
    }

    private static String text(Object said) {
        return said instanceof String text ? text : "\ud800"; // UTF-8 cannot encode a lone surrogate
    }

    private static byte[] bytes(Object said) {
        if (said instanceof Map<?, ?> binary) {
            return HexFormat.of().parseHex((String) binary.get("hex"));
        }
        return said == null ? null : ((String) said).getBytes(UTF_8);
    }

    private static Object said(byte[] bytes) {
        if (bytes == null) {
            return null;
        }
        try {
            return UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString();
        } catch (CharacterCodingException error) {
            return Map.of("hex", HexFormat.of().formatHex(bytes));
        }
    }

    private static Map<String, Object> said(ProducerRecord<byte[], byte[]> record) {
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add(Arrays.asList(header.key(), said(header.value())));
        }
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("topic", record.topic());
        fields.put("key", said(record.key()));
        fields.put("partition", record.partition() == null ? null : record.partition().longValue());
        fields.put("value", said(record.value()));
        fields.put("headers", headers);
        return fields;
    }

    private static Verdict answerOf(Map<String, Object> each) {
        Map<String, Object> asked = map(each.get("request"));
        Request request = asked.get("id") instanceof String id
                ? Request.cancel(id) : Request.schedule(Message.to("orders").in("1s").receipts(true));
        String[] source = ((String) asked.get("source")).split("/");
        Place place = new Place(Integer.parseInt(source[0]), Long.parseLong(source[1]), 0);
        Wait wait = new Wait(request);
        List<?> receipts = (List<?>) each.get("receipts");
        for (long number = 0; number <= receipts.size(); number++) {
            if (number == (Long) each.get("acknowledged_after")) {
                wait.acknowledged(place);
            }
            if (number < receipts.size()) {
                Map<String, Object> receipt = map(receipts.get((int) number));
                byte[] key = bytes(receipt.get("key"));
                if (key != null) {
                    Verdict.read(bytes(receipt.get("value")))
                            .ifPresent(verdict -> wait.take(new String(key, UTF_8), verdict));
                }
            }
        }
        return wait.outcome();
    }

    private static Map<String, Object> said(Verdict verdict) {
        if (verdict == null) {
            return null;
        }
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("verdict", verdict.verdict());
        fields.put("killed", verdict.killed());
        fields.put("due_ms", verdict.dueMs());
        fields.put("at_ms", verdict.atMs());
        fields.put("detail", verdict.detail());
        fields.put("source", verdict.source());
        fields.put("old_due_ms", verdict.oldDueMs());
        return fields;
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> map(Object json) {
        return (Map<String, Object>) json;
    }
}
