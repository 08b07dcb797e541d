/* What is remembered of an id whose first message is stored: two lines of the catalogue.
 *
 *     "i" partition:u16 name                [keep_ms, [[due_ms, offset, lane, digest, -1]], [], -1, topic]
 *     "e" partition:u16 forget_ms:u64 name  (empty)
 *
 * `name` is "i" and the id; integers in keys are big-endian. delayd/wheel/id_memory.py writes the same, and says
 * what they are.
 */
#ifndef DELAYD_FIRSTS_H
#define DELAYD_FIRSTS_H

#include <stdint.h>

#include "records.h"
#include "request.h"

#define LINES_BYTES (1u << 20) /* of one call: more than PACKED_MAX of the longest ids and targets take */

/* Where the lines of one id are, among those of the call. */
struct first {
    uint32_t key;
    uint32_t value;
    uint32_t end_key; /* that of the second line */
    uint32_t end;
    uint32_t record; /* how many records of the run are before its own */
};

/* Write the lines of a schedule with an id, whose digest was made, behind the `first->key` bytes of others, and note
 * where they are. Return 1; 0 if they do not fit into LINES_BYTES. */
int first_write(uint8_t *lines, const struct record *record, const struct request *request,
                uint32_t lane, int64_t due_ms, int64_t keep_ms, struct first *first);

#endif
