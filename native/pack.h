/* The hot path of ingest: schedules of one partition, as records, become frames by segment.
 *
 * `Replica.take` and `Segments.append` do the same record by record, in Python. Here a *run* is taken:
 * plain records in the order of their offsets, up to the first that is not plain. Where the first ones are not
 * plain, or fewer than `run_min` in a row are, only their number is said, and Python takes them. So both
 * keep the order, and neither is called for every second record.
 *
 * A schedule with an id counts as plain if `takes_ids`: as if nothing were known of its id. What is to be remembered
 * of it is written, too, and Python asks whether nothing is known, and no id is there twice, before it takes the run.
 *
 * It reads the bytes of `records`, and writes within the buffers that it is given; it allocates nothing, keeps
 * nothing, and holds no lock.
 */
#ifndef DELAYD_PACK_H
#define DELAYD_PACK_H

#include <stddef.h>
#include <stdint.h>

#include "digest.h"
#include "firsts.h"
#include "request.h"
#include "topics.h"

#define PACKED_MAX 1024 /* records of one call */
#define SLOT_MS 1000
#define HOUR_SLOTS 3600

/* A lane's cursor, of a frontier so old that what it covers is not stored any more. */
struct cursor {
    int64_t due_ms;
    int64_t partition;
    int64_t offset;
};

/* What decides, beside the records. */
struct pack_rules {
    struct request_limits limits;
    uint32_t lanes;
    int32_t partition;
    int64_t near_slot;   /* messages of this slot and later ones go to the file of their hour */
    int64_t next_offset; /* what was ingested of the partition before */
    int64_t log_ms;      /* log time, and the leap: replication/log_time.py */
    int64_t leap_ms;
    int64_t trail_ms;
    int64_t covered_below;        /* 0: nothing is covered */
    const struct cursor *cursors; /* by lane; NULL if nothing is */
    uint32_t counts_slots;        /* whether messages of far hours are counted by slot, too */
    uint32_t run_min; /* fewer plain records in a row are left to Python */
    uint32_t takes_ids;
    uint32_t taken_max; /* records, up to PACKED_MAX */
    int64_t keep_ms;    /* how long an id is remembered after its message is due */
    struct digest_rules digest;
};

/* Frames of one slot or hour: frames[begin .. begin + bytes), in the order of the records. */
struct group {
    int64_t number; /* of the slot, or of the hour */
    uint32_t is_hour;
    uint32_t count;
    uint64_t begin;
    uint64_t bytes;
    uint64_t crcs;
    int64_t last_offset;
};

/* A frame that was made; in the order of the records. */
struct packed {
    int64_t due_ms;
    int64_t offset;
    uint64_t position; /* within its group */
    uint32_t length;
    uint32_t lane;
    uint32_t group;
    uint32_t record; /* where its record begins */
};

/* How many messages of a target are due in a slot, or in an hour: then `slot` is its first. */
struct tally {
    int64_t slot;
    uint32_t topic;
    uint32_t count;
};

struct pack_result {
    uint32_t others; /* records for Python; if there are any, nothing else was done */
    uint32_t taken;  /* records of the run */
    uint64_t taken_bytes;
    uint32_t stored; /* frames: those that a frontier covers are taken, and not stored */
    uint32_t groups;
    uint32_t tallies;
    uint32_t topics;
    uint32_t firsts;
    uint32_t lines_bytes;
    uint64_t frames_bytes;
    int64_t next_offset;
    int64_t log_ms;
    int64_t leap_ms;
    int64_t append_ms;  /* of the last record that was stored */
    int64_t first_due_ms; /* of all that were stored */
    int32_t epoch;      /* of the last record */
};

/* What it writes into; each has PACKED_MAX places, `topics` has TOPICS_MAX, `lines` LINES_BYTES. */
struct pack_room {
    struct packed *packed;
    struct group *groups;
    struct tally *tallies;
    struct topic_place *topics;
    struct first *firsts;
    uint8_t *lines;
    uint8_t *frames;
    uint64_t frames_max; /* twice the bytes of the records is always enough */
};

/* Pack the run that `records` begins with. Return 1; 0 if it is no records, or `frames` are too few. */
int delayd_pack(const uint8_t *records, size_t size, const struct pack_rules *rules,
                const struct pack_room *room, struct pack_result *result);

#endif
