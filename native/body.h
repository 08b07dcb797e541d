/* Bodies of messages: msgpack, as delayd/request/bodies.py lays them out.
 *
 *     body    := [topic, asked_ms, key, value, [header*], partition, id, digest, str "", 0]
 *     header  := [str name, bin content]
 *     id, digest := nil, bin ""       of a plain message
 *                 | str, bin 16
 *
 * Every value takes its shortest form, as Python's packer writes it. Longer ones are read, too.
 */
#ifndef DELAYD_BODY_H
#define DELAYD_BODY_H

#include <stddef.h>
#include <stdint.h>

#include "records.h"
#include "request.h"

/* How many bytes the body of this record takes. */
size_t body_bytes(const struct record *record, const struct request *request);

/* Write it to `at`, where so many bytes are; return the byte behind it. */
uint8_t *body_write(uint8_t *at, const struct record *record, const struct request *request);

/* What is delivered of a body. */
struct body {
    struct piece topic;
    int64_t asked_ms;
    struct piece key;
    struct piece value;
    int32_t header_count;
    const uint8_t *headers; /* the first of them */
    int32_t partition;      /* of the target; -1: the partitioner's choice */
};

/* Read the body of a plain message: one without an id, that was never requeued, with texts in ASCII that have no
 * NUL. Return 1; 0 if it is another one, or no body. */
int body_read(const uint8_t *data, size_t size, struct body *body);

/* Read the header at `at`, of a body that was read and ends at `end`. Return where the next one begins. */
const uint8_t *body_header_read(const uint8_t *at, const uint8_t *end, struct piece *name,
                                struct piece *content);

#endif
