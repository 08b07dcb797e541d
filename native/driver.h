/* The one door to librdkafka.
 *
 * The library that confluent-kafka has loaded is used, and no other. How it is found:
 *
 * 1. A client is made with `plugin.library.paths` naming this library. librdkafka loads it, and calls
 *    `conf_init`.
 * 2. The address that `conf_init` returns to lies in that librdkafka: `dladdr` names its file. All functions are
 *    looked up there, and each must lie in the same file. If one is missing or lies elsewhere, the client
 *    cannot be made.
 * 3. `conf_init` adds an interceptor, which librdkafka calls with the handle of the new client, in the thread
 *    that makes it. That thread asks for it next (`delayd_client_made`).
 *
 * librdkafka calls a client's callbacks from within a read, and those of confluent-kafka look for a thread state
 * that nobody saved here. So whoever makes a client to be read gives it none (logger, stats_cb, ...). One is
 * always there, for errors, and the interceptor takes it away. librdkafka's log lines are taken from a queue
 * instead (`delayd_reader_log`).
 */
#ifndef DELAYD_DRIVER_H
#define DELAYD_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#define MESSAGES_MAX 4096 /* of one fetch */

/* The client that this thread made last, once; NULL if it made none since. */
void *delayd_client_made(void);

struct reader;

/* Read this client's partitions. NULL if there is no memory. It must be closed before the client is. */
struct reader *delayd_reader_open(void *client);
void delayd_reader_close(struct reader *reader);

struct fetched {
    uint64_t messages;     /* records and events together */
    uint64_t records;
    uint64_t record_bytes; /* of them, as records.h has them */
    uint64_t events;       /* errors, and ends of partitions */
    int64_t error;         /* librdkafka's code if it gave nothing, else 0 */
};

/* Fetch up to `messages_max` messages; wait `timeout_ms` for the first one, if there is none. They are held
 * until `delayd_reader_take`, which must follow. */
void delayd_reader_fetch(struct reader *reader, uint64_t messages_max, int timeout_ms,
                         struct fetched *fetched);

#define EVENT_TEXT_BYTES 512

struct event {
    int64_t offset;
    int32_t code;
    int32_t partition;
    char text[EVENT_TEXT_BYTES]; /* of librdkafka, cut, with its NUL */
};

/* Write what was fetched, into as many bytes and events as were said, and let go of it. */
void delayd_reader_take(struct reader *reader, uint8_t *records, struct event *events);

/* Take one of librdkafka's log lines, cut to `size` bytes, with its NUL. Return its level; -1 if there is none. */
int delayd_reader_log(struct reader *reader, char *line, size_t size);

#endif
