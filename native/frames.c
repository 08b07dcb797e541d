#include "frames.h"

#include "bytes.h"
#include "crc32c.h"

void frame_header_read(const uint8_t *data, struct frame_header *header) {
    header->length = get_u32(data);
    header->crc = get_u32(data + 4);
    header->form = get_u32(data + 8);
    header->lane = get_u16(data + 12);
    header->partition = get_u16(data + 14);
    header->offset = get_u64(data + 16);
    header->due_ms = get_u64(data + 32);
}

enum frame_reading frame_read(const uint8_t *data, size_t size, struct frame_header *header) {
    if (size < HEADER_BYTES)
        return FRAME_CUT;
    frame_header_read(data, header);
    if (header->length <= HEADER_BYTES || header->length > FRAME_BYTES_MAX)
        return FRAME_BROKEN;
    if (header->length > size)
        return FRAME_CUT;
    if (crc32c(data + PREFIX_BYTES, header->length - PREFIX_BYTES) != header->crc)
        return FRAME_BROKEN;
    return FRAME_WHOLE;
}
