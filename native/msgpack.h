/* Values of msgpack in their shortest form, as Python's packer writes them. */
#ifndef DELAYD_MSGPACK_H
#define DELAYD_MSGPACK_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "records.h"

#define NIL 0xc0
#define BIN_8 0xc4
#define UINT_8 0xcc
#define STR_8 0xd9
#define ARRAY_16 0xdc
#define FIX_ARRAY 0x90 /* and how many values, up to 15 */
#define MINUS_1 0xff

static inline uint8_t *put_big(uint8_t *at, uint64_t number, int bytes) {
    for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8)
        *at++ = (uint8_t)(number >> shift);
    return at;
}

/* 0, 1 or 2, for a length of 1, 2 or 4 bytes. */
static inline int width_of(size_t length) {
    return length < 0x100 ? 0 : length < 0x10000 ? 1 : 2;
}

static inline uint8_t *put_length(uint8_t *at, unsigned form, size_t length) {
    int width = width_of(length);
    *at++ = (uint8_t)(form + (unsigned)width);
    return put_big(at, length, 1 << width);
}

static inline uint8_t *put_bytes(uint8_t *at, const uint8_t *bytes, size_t length) {
    if (length > 0)
        memcpy(at, bytes, length);
    return at + length;
}

static inline size_t bin_bytes(const struct piece *piece) {
    if (piece->bytes < 0)
        return 1;
    size_t length = (size_t)piece->bytes;
    return 1 + ((size_t)1 << width_of(length)) + length;
}

static inline uint8_t *put_bin(uint8_t *at, const struct piece *piece) {
    if (piece->bytes < 0) {
        *at++ = NIL;
        return at;
    }
    at = put_length(at, BIN_8, (size_t)piece->bytes);
    return put_bytes(at, piece->at, (size_t)piece->bytes);
}

static inline size_t str_bytes(const struct piece *piece) {
    size_t length = (size_t)piece->bytes;
    return length < 32 ? 1 + length : 1 + ((size_t)1 << width_of(length)) + length;
}

static inline uint8_t *put_str(uint8_t *at, const struct piece *piece) {
    size_t length = (size_t)piece->bytes;
    if (length < 32)
        *at++ = (uint8_t)(0xa0 | length);
    else
        at = put_length(at, STR_8, length);
    return put_bytes(at, piece->at, length);
}

/* The width of a number's form: 0 for one within its first byte. */
static inline int uint_width(uint64_t number) {
    return number < 0x80             ? 0
           : number < 0x100          ? 1
           : number < 0x10000        ? 2
           : number < 0x100000000ull ? 4
                                     : 8;
}

static inline uint8_t *put_uint(uint8_t *at, uint64_t number) {
    int width = uint_width(number);
    if (width > 0)
        *at++ = (uint8_t)(UINT_8 + (width > 1) + (width > 2) + (width > 4));
    return put_big(at, number, width > 0 ? width : 1);
}

static inline size_t uint_bytes(uint64_t number) {
    return 1 + (size_t)uint_width(number);
}

#endif
