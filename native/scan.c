#include "scan.h"

#include <string.h>

#include "bytes.h"
#include "frames.h"

#define OFFSET_BITS 48
#define POSITION_BITS 40

static void put_place(uint8_t *at, const struct frame_header *header, uint64_t position) {
    put_number(at, (uint64_t)header->partition << OFFSET_BITS | header->offset, 8);
    put_number(at + 8, (uint64_t)header->lane << POSITION_BITS | position, 8);
    put_number(at + 16, header->length, 4);
}

/* Verify all frames and count them; 0 if anything is not usual. */
static int count(const uint8_t *data, size_t size, struct scanned *scanned) {
    struct frame_header header;
    enum frame_reading reading;
    uint64_t messages = 0;
    while ((reading = frame_read(data + scanned->bytes, size - scanned->bytes, &header)) ==
           FRAME_WHOLE) {
        if (header.offset >> OFFSET_BITS != 0)
            return 0;
        if (header.form == form_of(KIND_MESSAGE)) {
            uint64_t second = header.due_ms / SLOT_MS;
            if (messages > 0 && second != scanned->second)
                return 0;
            scanned->second = second;
            scanned->places[header.due_ms % SLOT_MS]++;
            messages++;
        } else if (header.form != form_of(KIND_PENDING_REPLY) &&
                   header.form != form_of(KIND_CANCEL_MARKER)) {
            return 0;
        }
        scanned->bytes += header.length;
        scanned->count++;
        scanned->crcs += header.crc;
    }
    return reading == FRAME_CUT;
}

int delayd_scan(const uint8_t *data, size_t size, uint64_t position, struct scanned *scanned,
                uint8_t *places, size_t places_max) {
    memset(scanned, 0, sizeof *scanned);
    if (position >> POSITION_BITS != 0 || size > ((uint64_t)1 << POSITION_BITS) - position)
        return 0;
    if (!count(data, size, scanned))
        return 0;
    uint64_t next[SLOT_MS], messages = 0;
    for (int ms = 0; ms < SLOT_MS; ms++) {
        next[ms] = messages;
        messages += scanned->places[ms];
    }
    if (messages > places_max)
        return 0;
    for (uint64_t at = 0; at < scanned->bytes;) {
        struct frame_header header;
        frame_header_read(data + at, &header);
        if (header.form == form_of(KIND_MESSAGE))
            put_place(places + PLACE_BYTES * next[header.due_ms % SLOT_MS]++, &header, position + at);
        at += header.length;
    }
    return 1;
}
