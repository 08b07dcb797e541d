#include "reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rdkafka.h"
#include "records.h"

struct reader {
    rd_kafka_queue_t *queue;
    rd_kafka_queue_t *log;
    size_t held;
    rd_kafka_message_t *messages[MESSAGES_MAX];
};

struct reader *delayd_reader_open(struct client *client) {
    struct reader *reader = malloc(sizeof *reader);
    if (reader == NULL)
        return NULL;
    reader->held = 0;
    reader->queue = rdkafka.queue_get_consumer(client->handle);
    reader->log = rdkafka.queue_new(client->handle);
    rdkafka.set_log_queue(client->handle, reader->log);
    return reader;
}

static void let_go(struct reader *reader) {
    for (size_t at = 0; at < reader->held; at++)
        rdkafka.message_destroy(reader->messages[at]);
    reader->held = 0;
}

void delayd_reader_close(struct reader *reader) {
    let_go(reader);
    rdkafka.queue_destroy(reader->queue);
    rdkafka.queue_destroy(reader->log);
    free(reader);
}

static size_t header_at(const rd_kafka_headers_t *headers, size_t place, struct piece *name,
                        struct piece *content) {
    const char *text;
    const void *bytes;
    size_t length;
    if (headers == NULL || rdkafka.header_get_all(headers, place, &text, &bytes, &length) != 0)
        return 0;
    *name = (struct piece){(const uint8_t *)text, (int32_t)strlen(text)};
    *content = (struct piece){bytes, bytes == NULL ? NULL_BYTES : (int32_t)length};
    return RECORD_HEADER_BYTES + (size_t)name->bytes + (bytes == NULL ? 0 : length);
}

static rd_kafka_headers_t *headers_of(const rd_kafka_message_t *message) {
    rd_kafka_headers_t *headers;
    return rdkafka.message_headers(message, &headers) == 0 ? headers : NULL;
}

static size_t bytes_of(const rd_kafka_message_t *message) {
    const rd_kafka_headers_t *headers = headers_of(message);
    struct piece name, content;
    size_t bytes = RECORD_BYTES, more;
    bytes += message->key == NULL ? 0 : message->key_len;
    bytes += message->payload == NULL ? 0 : message->len;
    for (size_t place = 0; (more = header_at(headers, place, &name, &content)) > 0; place++)
        bytes += more;
    return bytes;
}

static uint8_t *put_record(uint8_t *begin, const rd_kafka_message_t *message) {
    const rd_kafka_headers_t *headers = headers_of(message);
    struct piece name, content;
    int form;
    struct record record = {
        .partition = message->partition,
        .offset = message->offset,
        .append_ms = rdkafka.message_timestamp(message, &form),
        .epoch = rdkafka.message_leader_epoch(message),
        .key = {message->key, message->key == NULL ? NULL_BYTES : (int32_t)message->key_len},
        .value = {message->payload, message->payload == NULL ? NULL_BYTES : (int32_t)message->len},
    };
    uint8_t *at = begin + RECORD_BYTES;
    for (; header_at(headers, (size_t)record.header_count, &name, &content) > 0; record.header_count++)
        at = record_header_write(at, &name, &content);
    return record_end_write(begin, at, &record);
}

void delayd_reader_fetch(struct reader *reader, uint64_t messages_max, int timeout_ms,
                         struct fetched *fetched) {
    size_t most = messages_max < MESSAGES_MAX ? (size_t)messages_max : MESSAGES_MAX;
    *fetched = (struct fetched){0};
    let_go(reader);
    /* With a time-out librdkafka waits until all of them are there: so wait for one, then ask for what is there. */
    size_t first = timeout_ms > 0 && most > 0 ? 1 : 0;
    ssize_t got = 0;
    if (first > 0)
        got = rdkafka.consume_batch_queue(reader->queue, timeout_ms, reader->messages, first);
    if (got == (ssize_t)first && most > first) {
        ssize_t more = rdkafka.consume_batch_queue(reader->queue, 0, reader->messages + got, most - first);
        if (more > 0 || got == 0) /* what there is comes first: an error is told again */
            got += more;
    }
    if (got < 0) {
        fetched->error = rdkafka.last_error();
        return;
    }
    reader->held = (size_t)got;
    fetched->messages = (uint64_t)got;
    for (size_t at = 0; at < reader->held; at++) {
        if (reader->messages[at]->err != 0) {
            fetched->events++;
        } else {
            fetched->records++;
            fetched->record_bytes += bytes_of(reader->messages[at]);
        }
    }
}

void delayd_reader_take(struct reader *reader, uint8_t *records, struct event *events) {
    for (size_t at = 0; at < reader->held; at++) {
        const rd_kafka_message_t *message = reader->messages[at];
        if (message->err != 0) {
            const char *text = rdkafka.message_errstr(message);
            events->offset = message->offset;
            events->code = message->err;
            events->partition = message->partition;
            snprintf(events->text, sizeof events->text, "%s", text == NULL ? "" : text);
            events++;
        } else {
            records = put_record(records, message);
        }
    }
    let_go(reader);
}

int delayd_reader_log(struct reader *reader, char *line, size_t size) {
    const char *facility, *text;
    int level = -1;
    rd_kafka_event_t *event = rdkafka.queue_poll(reader->log, 0);
    if (event == NULL)
        return -1;
    if (rdkafka.event_type(event) == EVENT_LOG &&
        rdkafka.event_log(event, &facility, &text, &level) == 0)
        snprintf(line, size, "%s %s", facility, text);
    else
        snprintf(line, size, "an event that is no line"), level = 7;
    rdkafka.event_destroy(event);
    return level;
}
