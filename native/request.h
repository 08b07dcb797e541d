/* What the headers of a record ask for, where it is usual and right.
 *
 *     delayd-topic       a legal topic that is not delayd's or Kafka's own
 *     one of
 *       delayd-due       1 to 14 digits: Unix ms
 *       delayd-delay     1 to 15 digits, then ms, s, m, h or d
 *       delayd-level     1 to 15 digits: 1 to 18
 *     delayd-partition   1 to 10 digits, if at all
 *     delayd-id          1 to 256 bytes of ASCII, which are the record's key; its partition is the key's
 *     delayd-key         with an id: ASCII, not empty
 *     delayd-op          with an id: `schedule`; or `cancel`, with no other of these but the id
 *     any others         of the user: names in ASCII, no null
 *
 * delayd/request/grammar.py and times.py have the whole grammar, and say what is wrong with the rest. Here
 * a record is one of these, all of it and without a doubt, or it is left to Python.
 */
#ifndef DELAYD_REQUEST_H
#define DELAYD_REQUEST_H

#include <stddef.h>
#include <stdint.h>

#include <string.h>

#include "blake2b.h"
#include "records.h"

/* The limits of a cluster (delayd/request/request.py); all fixed when its topics were created. */
struct request_limits {
    int64_t max_delay_ms;
    uint64_t record_bytes_max;
    uint32_t partitions; /* of the buffer */
    const char *prefix; /* of delayd's own topics */
    size_t prefix_bytes;
};

#define HEADERS_MAX 1024
#define RESERVED "delayd-"
#define RESERVED_BYTES 7

enum request_kind {
    REQUEST_OTHER = 0, /* for Python */
    REQUEST_PLAIN = 1, /* a schedule without an id */
    REQUEST_KEYED = 2, /* a schedule with an id */
    REQUEST_CANCEL = 3,
};

enum request_op { OP_NONE = 0, OP_SCHEDULE = 1, OP_CANCEL = 2 };

struct request {
    struct piece topic;
    int64_t asked_ms;      /* the due time asked for, in Unix ms */
    int64_t partition;     /* of the target; -1: the partitioner's choice */
    int32_t users;         /* how many headers are the user's */
    enum request_op op;
    struct piece id;       /* at is NULL if there is none; so is the key's */
    struct piece key;      /* to deliver, if it is not the record's */
    struct piece when_name; /* of the header that says when, and what it says */
    struct piece when;
    uint8_t digest[DIGEST_BYTES]; /* of the message as sent, if it has an id: digest.h */
};

/* Is this the name of a header of delayd's? All others are the user's. */
static inline int is_reserved(const struct piece *name) {
    return name->bytes >= RESERVED_BYTES && memcmp(name->at, RESERVED, RESERVED_BYTES) == 0;
}

/* Read what a record asks for; the digest is left out. */
enum request_kind request_read(const struct record *record, const struct request_limits *limits,
                               struct request *request);

#endif
