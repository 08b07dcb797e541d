/* Numbers in bytes, little-endian, wherever they lie. */
#ifndef DELAYD_BYTES_H
#define DELAYD_BYTES_H

#include <stdint.h>

static inline uint16_t get_u16(const uint8_t *at) {
    return (uint16_t)(at[0] | at[1] << 8);
}

static inline uint32_t get_u32(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t get_u64(const uint8_t *at) {
    return (uint64_t)get_u32(at) | (uint64_t)get_u32(at + 4) << 32;
}

static inline uint8_t *put_number(uint8_t *at, uint64_t number, int bytes) {
    for (int shift = 0; shift < 8 * bytes; shift += 8)
        *at++ = (uint8_t)(number >> shift);
    return at;
}

#endif
