/* Records whose fate depends on what is known of their ids, read for Python, which decides it: one row each.
 *
 * Where `pack.h` takes runs of schedules as a whole, this reads what lies between: schedules with an id of which
 * something is known, cancels, and schedules that are too few in a row. Of each schedule it makes the frame, as if it were
 * stored; of anything else a row says only where its record is, and Python reads that.
 *
 * It reads the bytes of `records`, and writes within the buffers that it is given; it allocates nothing, keeps
 * nothing, and holds no lock.
 */
#ifndef DELAYD_ROWS_H
#define DELAYD_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "digest.h"
#include "request.h"
#include "topics.h"

#define ROWS_MAX 1024 /* of one call */

struct row_rules {
    struct request_limits limits;
    uint32_t lanes;
    struct digest_rules digest;
};

/* Places are in the records, but that of the frame. */
struct row {
    int64_t offset;
    int64_t append_ms;
    int64_t due_ms;    /* of the rank */
    uint32_t kind;     /* enum request_kind; of OTHER only offset, partition, epoch and record are told */
    int32_t partition;
    int32_t epoch;
    uint32_t lane;
    uint32_t topic;    /* its number among `topics` */
    uint32_t record;   /* where its record begins */
    uint32_t id;       /* where its id begins */
    uint32_t id_bytes;
    uint32_t frame;    /* where its frame begins */
    uint32_t frame_bytes;
    uint32_t crc;      /* of its frame */
    uint32_t unused;
    uint8_t digest[DIGEST_BYTES];
};

struct row_room {
    struct row *rows;           /* ROWS_MAX of them */
    struct topic_place *topics; /* TOPICS_MAX of them */
    uint8_t *frames;
    uint64_t frames_max; /* twice the bytes of the records is always enough */
};

struct rows_result {
    uint32_t rows;
    uint32_t topics;
    uint64_t bytes; /* of the records that became rows */
};

/* Read records from the first on, as many as there is room for. Return 1; 0 if it is no records, or
 * `frames` are too few. */
int delayd_rows(const uint8_t *records, size_t size, const struct row_rules *rules,
                const struct row_room *room, struct rows_result *result);

#endif
