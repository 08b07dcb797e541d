/* Reading a client in C: its records as bytes (records.h), its errors as events.
 *
 * librdkafka calls a client's callbacks from within a read, and those of confluent-kafka look for a thread state
 * that nobody saved here. So whoever makes a client to be read gives it none (logger, stats_cb, ...). One is
 * always there, for errors, and the interceptor takes it away. librdkafka's log lines are taken from a queue
 * instead (`delayd_reader_log`).
 */
#ifndef DELAYD_READER_H
#define DELAYD_READER_H

#include <stddef.h>
#include <stdint.h>

#define MESSAGES_MAX 4096 /* of one fetch */

struct client;
struct reader;

/* Read this client's partitions. NULL if there is no memory. It must be closed before the client is. */
struct reader *delayd_reader_open(struct client *client);
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
