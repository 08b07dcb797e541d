#include "frames.h"

#include "crc32c.h"

static uint16_t u16(const uint8_t *at) {
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint32_t u32(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t u64(const uint8_t *at) {
    return (uint64_t)u32(at) | (uint64_t)u32(at + 4) << 32;
}

void frame_header_read(const uint8_t *data, struct frame_header *header) {
    header->length = u32(data);
    header->crc = u32(data + 4);
    header->form = u32(data + 8);
    header->lane = u16(data + 12);
    header->partition = u16(data + 14);
    header->offset = u64(data + 16);
    header->due_ms = u64(data + 32);
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
