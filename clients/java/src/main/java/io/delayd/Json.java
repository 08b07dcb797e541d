package io.delayd;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads one JSON document (RFC 8259), so that the library needs nothing but kafka-clients. */
final class Json {
    private static final int DEPTH_MAX = 64; // a receipt has 2

    private final String text;
    private int at;
    private int depth;

    private Json(String text) {
        this.text = text;
    }

    /**
     * Returns a Map, List, String, Boolean, Long, Double (what is no whole number of 64 bits) or null.
     *
     * @throws IllegalArgumentException if it is no JSON in UTF-8
     */
    static Object read(byte[] document) {
        String text;
        try {
            text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(document)).toString();
        } catch (CharacterCodingException error) {
            throw new IllegalArgumentException("it is not UTF-8", error);
        }
        Json json = new Json(text);
        Object value = json.value();
        json.space();
        if (json.at < text.length()) {
            throw json.bad("something behind the end");
        }
        return value;
    }

    private Object value() {
        space();
        return switch (peek()) {
            case '{' -> object();
            case '[' -> array();
            case '"' -> string();
            case 't' -> word("true", true);
            case 'f' -> word("false", false);
            case 'n' -> word("null", null);
            default -> number();
        };
    }

    private Map<String, Object> object() {
        Map<String, Object> fields = new LinkedHashMap<>();
        open();
        while (more('}', fields.isEmpty())) {
            space();
            String name = string();
            space();
            expect(':');
            fields.put(name, value());
        }
        return fields;
    }

    private List<Object> array() {
        List<Object> values = new ArrayList<>();
        open();
        while (more(']', values.isEmpty())) {
            values.add(value());
        }
        return values;
    }

    private void open() {
        at++;
        if (++depth > DEPTH_MAX) {
            throw bad("too deep");
        }
    }

    /** Steps over the comma before the next value, or over the end: then false. */
    private boolean more(char end, boolean isFirst) {
        space();
        if (peek() == end) {
            at++;
            depth--;
            return false;
        }
        if (!isFirst) {
            expect(',');
        }
        return true;
    }

    private String string() {
        StringBuilder content = new StringBuilder();
        expect('"');
        for (char c = next(); c != '"'; c = next()) {
            if (c < ' ') {
                throw bad("a control character in a text");
            }
            content.append(c == '\\' ? escaped() : c);
        }
        return content.toString();
    }

    private char escaped() {
        char c = next();
        return switch (c) {
            case '"', '\\', '/' -> c;
            case 'b' -> '\b';
            case 'f' -> '\f';
            case 'n' -> '\n';
            case 'r' -> '\r';
            case 't' -> '\t';
            case 'u' -> unit();
            default -> throw bad("no such escape");
        };
    }

    private char unit() {
        int code = 0;
        for (int i = 0; i < 4; i++) {
            int digit = Character.digit(next(), 16);
            if (digit < 0) {
                throw bad("no hexadecimal digit");
            }
            code = code << 4 | digit;
        }
        return (char) code;
    }

    private Object number() {
        int from = at;
        while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        String number = text.substring(from, at);
        if (!number.matches("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?")) {
            throw bad("no value");
        }
        if (number.matches("-?[0-9]{1,18}")) {
            return Long.valueOf(number);
        }
        return Double.valueOf(number);
    }

    private Object word(String word, Object value) {
        if (!text.startsWith(word, at)) {
            throw bad("no value");
        }
        at += word.length();
        return value;
    }

    private void space() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private char peek() {
        if (at >= text.length()) {
            throw bad("it ends too early");
        }
        return text.charAt(at);
    }

    private char next() {
        char c = peek();
        at++;
        return c;
    }

    private void expect(char wanted) {
        if (next() != wanted) {
            throw bad("not the character that belongs there");
        }
    }

    private IllegalArgumentException bad(String what) {
        return new IllegalArgumentException("no JSON: " + what + " at " + at);
    }
}
