#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "records.h"

/* librdkafka's interface, as far as it is used; its rdkafka.h has it, and keeps it from version to version. */
typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;
typedef struct rd_kafka_op_s rd_kafka_event_t;
typedef struct {
    int err;
    void *topic;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *private;
} rd_kafka_message_t;
typedef void (*error_cb_f)(rd_kafka_t *, int, const char *, void *);
typedef int (*on_new_f)(rd_kafka_t *, const rd_kafka_conf_t *, void *, char *, size_t);

#define DONE 0
#define FAILED (-196) /* RD_KAFKA_RESP_ERR__FAIL */
#define EVENT_LOG 4

/* Name, result and arguments of each function. */
#define FUNCTIONS(X)                                                                              \
    X(conf, const rd_kafka_conf_t *, (rd_kafka_t *))                                              \
    X(conf_interceptor_add_on_new, int, (rd_kafka_conf_t *, const char *, on_new_f, void *))      \
    X(conf_set_error_cb, void, (rd_kafka_conf_t *, error_cb_f))                                   \
    X(consume_batch_queue, ssize_t, (rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t))     \
    X(event_destroy, void, (rd_kafka_event_t *))                                                  \
    X(event_log, int, (rd_kafka_event_t *, const char **, const char **, int *))                  \
    X(event_type, int, (const rd_kafka_event_t *))                                                \
    X(header_get_all, int,                                                                        \
      (const rd_kafka_headers_t *, size_t, const char **, const void **, size_t *))               \
    X(last_error, int, (void))                                                                    \
    X(message_destroy, void, (rd_kafka_message_t *))                                              \
    X(message_errstr, const char *, (const rd_kafka_message_t *))                                 \
    X(message_headers, int, (const rd_kafka_message_t *, rd_kafka_headers_t **))                  \
    X(message_leader_epoch, int32_t, (const rd_kafka_message_t *))                                \
    X(message_timestamp, int64_t, (const rd_kafka_message_t *, int *))                            \
    X(name, const char *, (const rd_kafka_t *))                                                   \
    X(queue_destroy, void, (rd_kafka_queue_t *))                                                  \
    X(queue_get_consumer, rd_kafka_queue_t *, (rd_kafka_t *))                                     \
    X(queue_new, rd_kafka_queue_t *, (rd_kafka_t *))                                              \
    X(queue_poll, rd_kafka_event_t *, (rd_kafka_queue_t *, int))                                  \
    X(set_log_queue, int, (rd_kafka_t *, rd_kafka_queue_t *))

/* Set once and never again: a second librdkafka is refused. */
static struct {
#define DECLARE(name, result, arguments) result(*name) arguments;
    FUNCTIONS(DECLARE)
#undef DECLARE
    void *base; /* of the file that they lie in */
} rdkafka;

static _Thread_local rd_kafka_t *made;

/* Find a function in the file that is loaded at `base`; NULL if it is not there. */
static void *find(void *file, const void *base, const char *name) {
    Dl_info where;
    void *function = dlsym(file, name);
    if (function == NULL || dladdr(function, &where) == 0 || where.dli_fbase != base)
        return NULL;
    return function;
}

/* Find all functions in the library that this address lies in; NULL, or the name of what is missing. */
static const char *bind_to(const void *address) {
    Dl_info where;
    if (dladdr(address, &where) == 0)
        return "its file";
    if (rdkafka.base != NULL)
        return rdkafka.base == where.dli_fbase ? NULL : "the librdkafka that was used before";
    void *file = dlopen(where.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (file == NULL)
        return where.dli_fname;
#define FIND(name, result, arguments)                                                             \
    if ((*(void **)&rdkafka.name = find(file, where.dli_fbase, "rd_kafka_" #name)) == NULL)       \
        return "rd_kafka_" #name;
    FUNCTIONS(FIND)
#undef FIND
    /* The library stays loaded as long as the process: `file` is kept. */
    rdkafka.base = where.dli_fbase;
    return NULL;
}

/* librdkafka's interceptor: a client has been made. */
static int on_new(rd_kafka_t *client, const rd_kafka_conf_t *conf, void *opaque, char *why,
                  size_t size) {
    (void)opaque;
    if (conf != rdkafka.conf(client)) {
        snprintf(why, size, "librdkafka shows another configuration than the client's");
        return FAILED;
    }
    /* confluent-kafka sets its own always, and needs the interpreter's lock in it. Without one librdkafka
     * writes errors of connections to its log. */
    rdkafka.conf_set_error_cb((rd_kafka_conf_t *)conf, NULL);
    made = client;
    return DONE;
}

/* librdkafka's plugin interface: called while a client's properties are set. */
int conf_init(rd_kafka_conf_t *conf, void **opaque, char *why, size_t size);
int conf_init(rd_kafka_conf_t *conf, void **opaque, char *why, size_t size) {
    const char *missing = bind_to(__builtin_return_address(0));
    (void)opaque;
    if (missing != NULL) {
        snprintf(why, size, "delayd's native library does not find %s", missing);
        return FAILED;
    }
    return rdkafka.conf_interceptor_add_on_new(conf, "delayd", on_new, NULL);
}

void *delayd_client_made(void) {
    void *client = made;
    made = NULL;
    return client;
}

struct reader {
    rd_kafka_queue_t *queue;
    rd_kafka_queue_t *log;
    size_t held;
    rd_kafka_message_t *messages[MESSAGES_MAX];
};

struct reader *delayd_reader_open(void *client) {
    struct reader *reader = malloc(sizeof *reader);
    if (reader == NULL)
        return NULL;
    reader->held = 0;
    reader->queue = rdkafka.queue_get_consumer(client);
    reader->log = rdkafka.queue_new(client);
    rdkafka.set_log_queue(client, reader->log);
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

static uint8_t *put_piece(uint8_t *at, const void *bytes, size_t length) {
    if (length > 0)
        memcpy(at, bytes, length);
    return at + length;
}

static uint8_t *put_record(uint8_t *begin, const rd_kafka_message_t *message) {
    const rd_kafka_headers_t *headers = headers_of(message);
    struct piece name, content;
    int32_t keys = message->key == NULL ? NULL_BYTES : (int32_t)message->key_len;
    int32_t values = message->payload == NULL ? NULL_BYTES : (int32_t)message->len;
    uint32_t count = 0;
    int form;
    uint8_t *at = begin + RECORD_BYTES;
    for (; header_at(headers, count, &name, &content) > 0; count++) {
        at = put_number(at, (uint32_t)name.bytes, 4);
        at = put_number(at, (uint32_t)content.bytes, 4);
        at = put_piece(at, name.at, (size_t)name.bytes);
        at = put_piece(at, content.at, content.bytes < 0 ? 0 : (size_t)content.bytes);
    }
    at = put_piece(at, message->key, keys < 0 ? 0 : (size_t)keys);
    at = put_piece(at, message->payload, values < 0 ? 0 : (size_t)values);
    put_number(begin, (uint64_t)(at - begin), 4);
    put_number(begin + 4, (uint32_t)message->partition, 4);
    put_number(begin + 8, (uint64_t)message->offset, 8);
    put_number(begin + 16, (uint64_t)rdkafka.message_timestamp(message, &form), 8);
    put_number(begin + 24, (uint32_t)rdkafka.message_leader_epoch(message), 4);
    put_number(begin + 28, (uint32_t)keys, 4);
    put_number(begin + 32, (uint32_t)values, 4);
    put_number(begin + 36, count, 4);
    return at;
}

void delayd_reader_fetch(struct reader *reader, uint64_t messages_max, int timeout_ms,
                         struct fetched *fetched) {
    size_t most = messages_max < MESSAGES_MAX ? (size_t)messages_max : MESSAGES_MAX;
    *fetched = (struct fetched){0};
    let_go(reader);
    ssize_t got = rdkafka.consume_batch_queue(reader->queue, timeout_ms, reader->messages, most);
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
