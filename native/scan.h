/* The index of a slot: a stretch of its file, frame by frame, into places by due time.
 *
 *     place := rank where length                     as delayd/wheel/place.py defines them
 *     rank     u64   partition << 48 | offset
 *     where    u64   lane << 40 | position in the file
 *     length   u32   bytes of the whole frame
 *
 * `delayd.wheel.decoding.scan_in_python` does the same for any bytes. Here is what is usual: whole
 * frames of one second, all of them right. Of anything else nothing is said but that it is not usual,
 * and Python scans it, so that there is one place that says what is wrong with it.
 */
#ifndef DELAYD_SCAN_H
#define DELAYD_SCAN_H

#include <stddef.h>
#include <stdint.h>

#define SLOT_MS 1000
#define PLACE_BYTES 20

struct scanned {
    uint64_t bytes;            /* what the whole frames take */
    uint64_t count;            /* of frames, pending replies included */
    uint64_t crcs;             /* sum of their CRCs */
    uint64_t second;           /* of all messages; 0 if there is none */
    uint32_t places[SLOT_MS];  /* how many of each millisecond of it */
};

/* Scan the frames of `data`, whose first byte lies at `position` of the file. Fill `scanned`, and
 * `places` with a place for each message: ascending by millisecond, within one in the order of the
 * file. Return 1, or 0 if anything is not usual, or more than `places_max` messages are there.
 *
 * It reads the `size` bytes of `data`, writes 20 * `places_max` bytes of `places` at most, allocates
 * nothing, and keeps nothing. */
int delayd_scan(const uint8_t *data, size_t size, uint64_t position, struct scanned *scanned,
                uint8_t *places, size_t places_max);

#endif
