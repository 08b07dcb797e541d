/* The hot path of delivery: the frames of plain messages become the records that deliver them.
 *
 * `delivered` of delayd/request/bodies.py and `decode_all` of delayd/wheel/decoding.py do the same frame by frame,
 * in Python. Here a *run* is unpacked: plain messages in the order of their entries, up to the first that is not
 * plain, or is not what its entry says. What is taken and what is left follows the rule of pack.h.
 *
 * The records are laid out as records.h says. The fields of what was read from a topic mean for them: `partition`
 * is the one that the message asks for (-1: any), `offset` that of its source, `append_ms` its due time, and
 * `epoch` the number of its topic.
 *
 * It reads the bytes of `frames`, and writes within the buffers that it is given; it allocates nothing, keeps
 * nothing, and holds no lock.
 */
#ifndef DELAYD_UNPACK_H
#define DELAYD_UNPACK_H

#include <stddef.h>
#include <stdint.h>

#include "gather.h"

#define UNPACKED_MAX 1024 /* messages of one call */
#define TARGETS_MAX 64    /* different ones of one call; the run ends before the next one */

/* A message that was unpacked; in the order of the entries. */
struct unpacked {
    uint64_t begin; /* of its record */
    uint32_t target;
    int32_t partition;
    uint64_t crc; /* of its source, as digests have it */
};

struct target {
    uint32_t begin; /* of its name, in the frames */
    uint32_t bytes;
    uint32_t count;        /* of messages */
    uint32_t first;        /* of them */
    int64_t partition_max; /* that any of them asks for; -1 if none does */
};

struct unpack_result {
    uint32_t others; /* messages for Python; if there are any, nothing else was done */
    uint32_t taken;  /* messages of the run */
    uint32_t targets;
    uint64_t frame_bytes; /* of the run */
    uint64_t record_bytes;
    uint64_t crcs; /* of all sources */
};

/* What it writes into: `unpacked` has UNPACKED_MAX places, `targets` has TARGETS_MAX. */
struct unpack_room {
    struct unpacked *unpacked;
    struct target *targets;
    uint8_t *records;
    uint64_t records_max; /* a run ends where they are full */
};

/* Unpack the run that these entries begin with. `frames` are theirs, one behind the other. */
void delayd_unpack(const uint8_t *frames, size_t size, const struct entry *entries, size_t count,
                   int64_t fired_ms, uint32_t run_min, const struct unpack_room *room,
                   struct unpack_result *result);

#endif
