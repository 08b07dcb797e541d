/* Records as bytes: what was read from a topic, one record behind the other, without a pointer.
 *
 *     record  := bytes partition offset append_ms epoch keys values headers header* key value
 *     bytes      4     4         8      8         4     4    4      4
 *     header  := names contents name content
 *     bytes      4     4
 *
 * All integers are little-endian and signed but `bytes`, which counts the whole record. `keys`,
 * `values`, `names` and `contents` are lengths in bytes, NULL_BYTES for a null; `headers` counts them.
 * delayd/bus/flat.py reads the same.
 *
 * Records are written here from librdkafka's messages (reader.c), and from frames (unpack.c). What reads them verifies every
 * length all the same before it looks behind it.
 */
#ifndef DELAYD_RECORDS_H
#define DELAYD_RECORDS_H

#include <stddef.h>
#include <stdint.h>

#define RECORD_BYTES 40u
#define RECORD_HEADER_BYTES 8u
#define NULL_BYTES (-1)

/* What a batch weighs: delayd/bus/unreadable.py has the rule, and the same numbers. */
#define WEIGHT_OF_RECORD (512u + 36u)
#define WEIGHT_OF_HEADER 10u
#define WEIGHT_OF_NAME_BYTE 4u

struct piece {
    const uint8_t *at;
    int32_t bytes; /* NULL_BYTES: null */
};

struct record {
    const uint8_t *begin;
    uint32_t bytes;
    int32_t partition;
    int64_t offset;
    int64_t append_ms;
    int32_t epoch;
    int32_t header_count;
    const uint8_t *headers; /* the first of them */
    struct piece key;
    struct piece value;
};

/* Read the record at `data`, where `size` bytes are, without its headers. Return 1, or 0 if there is
 * no whole record. */
int record_read(const uint8_t *data, size_t size, struct record *record);

/* Read the header at `at`, which ends before `end`. Return where the next one begins, NULL if there is no
 * whole header. */
const uint8_t *record_header_read(const uint8_t *at, const uint8_t *end, struct piece *name,
                                  struct piece *content);

/* Write a header at `at`; return the byte behind it. */
uint8_t *record_header_write(uint8_t *at, const struct piece *name, const struct piece *content);

/* Write all else of the record that begins at `begin`, and whose headers end at `at`: key, value, and what is
 * before the headers. Return the byte behind it. */
uint8_t *record_end_write(uint8_t *begin, uint8_t *at, const struct record *record);

/* Consecutive records of one partition. */
struct stretch {
    int32_t partition;
    int32_t epoch; /* of the last one */
    int64_t first_offset;
    int64_t last_offset;
    uint64_t count;
    uint64_t bytes;
};

struct survey {
    uint64_t count;
    uint64_t weight; /* of all of them together, at most */
    /* The last run: the longest end of which all have one partition and one append time. */
    uint64_t run_begin; /* how many records are before it */
    uint64_t stretches;
};

/* Look through all records of `data`. Return 1, or 0 if these are not whole records, or of more stretches
 * than `stretches_max`. */
int delayd_survey(const uint8_t *data, size_t size, struct survey *survey,
                  struct stretch *stretches, size_t stretches_max);

/* Return where the record behind the first `count` begins; `size` if there are no more. */
size_t delayd_skip(const uint8_t *data, size_t size, uint64_t count);

#endif
