/* The bytes of frames that lie anywhere in a file, one frame behind the other. */
#ifndef DELAYD_GATHER_H
#define DELAYD_GATHER_H

#include <stddef.h>
#include <stdint.h>

/* Where a frame is, and what it must be: the fields of delayd's Entry (replication/entry.py). */
struct entry {
    int64_t due_ms;
    int64_t partition;
    int64_t offset;
    int64_t lane;
    int64_t kind;
    int64_t position; /* in its file */
    int64_t length;
};

/* Read these frames from the open file `file`, whose first byte has the position `base`, and of which only what
 * is before `end` may be read. Return 1; 0 if `frames`, of `size` bytes, are fewer or more than these take, or
 * if one of them is not there. */
int delayd_gather(int file, const struct entry *entries, size_t count, int64_t base, int64_t end,
                  uint8_t *frames, size_t size);

#endif
