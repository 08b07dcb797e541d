/* librdkafka's interface, as far as it is used; its rdkafka.h has it, and keeps it from version to version.
 *
 * driver.c finds the functions. Nothing here may be called before a client was made.
 */
#ifndef DELAYD_RDKAFKA_H
#define DELAYD_RDKAFKA_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;
typedef struct rd_kafka_error_s rd_kafka_error_t;
typedef struct rd_kafka_op_s rd_kafka_event_t;
typedef struct {
    int err;
    rd_kafka_topic_t *topic;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *opaque;
} rd_kafka_message_t;
typedef struct {
    int type;
    union {
        const char *text;
        int number;
        int32_t partition;
        struct {
            const void *at;
            size_t bytes;
        } piece;
        rd_kafka_headers_t *headers;
        char room[64];
    } is;
} rd_kafka_vu_t;
typedef void (*error_cb_f)(rd_kafka_t *, int, const char *, void *);
typedef int (*on_new_f)(rd_kafka_t *, const rd_kafka_conf_t *, void *, char *, size_t);
typedef int (*on_conf_destroy_f)(void *);
typedef int (*on_acknowledgement_f)(rd_kafka_t *, rd_kafka_message_t *, void *);

enum { PRODUCER = 0, EVENT_LOG = 4, MSG_COPY = 2 };
enum { DONE = 0, QUEUE_FULL = -184, FAILED = -196 };
enum { VU_TOPIC = 1, VU_PARTITION = 3, VU_VALUE = 4, VU_KEY = 5, VU_FLAGS = 7, VU_HEADERS = 10 };

/* Name, result and arguments of each function. */
#define FUNCTIONS(X)                                                                              \
    X(conf, const rd_kafka_conf_t *, (rd_kafka_t *))                                              \
    X(conf_interceptor_add_on_conf_destroy, int,                                                  \
      (rd_kafka_conf_t *, const char *, on_conf_destroy_f, void *))                               \
    X(conf_interceptor_add_on_new, int, (rd_kafka_conf_t *, const char *, on_new_f, void *))      \
    X(conf_set_error_cb, void, (rd_kafka_conf_t *, error_cb_f))                                   \
    X(consume_batch_queue, ssize_t, (rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t))     \
    X(error_code, int, (const rd_kafka_error_t *))                                                \
    X(error_destroy, void, (rd_kafka_error_t *))                                                  \
    X(error_string, const char *, (const rd_kafka_error_t *))                                     \
    X(event_destroy, void, (rd_kafka_event_t *))                                                  \
    X(event_log, int, (rd_kafka_event_t *, const char **, const char **, int *))                  \
    X(event_type, int, (const rd_kafka_event_t *))                                                \
    X(header_add, int, (rd_kafka_headers_t *, const char *, ssize_t, const void *, ssize_t))      \
    X(header_get_all, int,                                                                        \
      (const rd_kafka_headers_t *, size_t, const char **, const void **, size_t *))               \
    X(headers_destroy, void, (rd_kafka_headers_t *))                                              \
    X(headers_new, rd_kafka_headers_t *, (size_t))                                                \
    X(interceptor_add_on_acknowledgement, int,                                                    \
      (rd_kafka_t *, const char *, on_acknowledgement_f, void *))                                 \
    X(last_error, int, (void))                                                                    \
    X(message_destroy, void, (rd_kafka_message_t *))                                              \
    X(message_errstr, const char *, (const rd_kafka_message_t *))                                 \
    X(message_headers, int, (const rd_kafka_message_t *, rd_kafka_headers_t **))                  \
    X(message_leader_epoch, int32_t, (const rd_kafka_message_t *))                                \
    X(message_timestamp, int64_t, (const rd_kafka_message_t *, int *))                            \
    X(name, const char *, (const rd_kafka_t *))                                                   \
    X(produceva, rd_kafka_error_t *, (rd_kafka_t *, const rd_kafka_vu_t *, size_t))               \
    X(queue_destroy, void, (rd_kafka_queue_t *))                                                  \
    X(queue_get_consumer, rd_kafka_queue_t *, (rd_kafka_t *))                                     \
    X(queue_new, rd_kafka_queue_t *, (rd_kafka_t *))                                              \
    X(queue_poll, rd_kafka_event_t *, (rd_kafka_queue_t *, int))                                  \
    X(set_log_queue, int, (rd_kafka_t *, rd_kafka_queue_t *))                                     \
    X(topic_name, const char *, (const rd_kafka_topic_t *))                                       \
    X(type, int, (const rd_kafka_t *))

struct rdkafka {
#define DECLARE(name, result, arguments) result(*name) arguments;
    FUNCTIONS(DECLARE)
#undef DECLARE
    void *base; /* of the file that they lie in */
};

/* Set once and never again: a second librdkafka is refused. */
extern struct rdkafka rdkafka;

#define FAILURES_MAX 256
#define TOPIC_BYTES 256 /* with the NUL */

/* Records of one partition that were lost for one reason. */
struct failure {
    int32_t code; /* librdkafka's */
    int32_t partition;
    char topic[TOPIC_BYTES];
};

/* A client: it lives as long as librdkafka's configuration of it, so longer than its threads. */
struct client {
    rd_kafka_t *handle;
    pthread_mutex_t lock; /* around what is below it: librdkafka's threads write there */
    struct failure *failures; /* of a producer; else NULL */
    uint32_t failure_count;
};

#endif
