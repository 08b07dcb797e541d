#include "blake2b.h"

#include <string.h>

#include "bytes.h"

#define ROUNDS 12

static const uint64_t START[8] = {
    0x6a09e667f3bcc908u, 0xbb67ae8584caa73bu, 0x3c6ef372fe94f82bu, 0xa54ff53a5f1d36f1u,
    0x510e527fade682d1u, 0x9b05688c2b3e6c1fu, 0x1f83d9abfb41bd6bu, 0x5be0cd19137e2179u,
};

static const uint8_t ORDER[ROUNDS][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
};

static inline uint64_t turned(uint64_t word, int bits) {
    return word >> bits | word << (64 - bits);
}

static inline void mix(uint64_t *a, uint64_t *b, uint64_t *c, uint64_t *d, uint64_t x, uint64_t y) {
    *a += *b + x;
    *d = turned(*d ^ *a, 32);
    *c += *d;
    *b = turned(*b ^ *c, 24);
    *a += *b + y;
    *d = turned(*d ^ *a, 16);
    *c += *d;
    *b = turned(*b ^ *c, 63);
}

static void compress(struct blake2b *state, const uint8_t *block, int is_last) {
    uint64_t v[16], words[16];
    for (int at = 0; at < 16; at++)
        words[at] = get_u64(block + 8 * at);
    memcpy(v, state->chain, sizeof state->chain);
    memcpy(v + 8, START, sizeof START);
    v[12] ^= state->bytes;
    if (is_last)
        v[14] = ~v[14];
    for (int round = 0; round < ROUNDS; round++) {
        const uint8_t *order = ORDER[round];
        for (int at = 0; at < 4; at++)
            mix(&v[at], &v[at + 4], &v[at + 8], &v[at + 12], words[order[2 * at]],
                words[order[2 * at + 1]]);
        for (int at = 0; at < 4; at++)
            mix(&v[at], &v[4 + (at + 1) % 4], &v[8 + (at + 2) % 4], &v[12 + (at + 3) % 4],
                words[order[8 + 2 * at]], words[order[9 + 2 * at]]);
    }
    for (int at = 0; at < 8; at++)
        state->chain[at] ^= v[at] ^ v[at + 8];
}

void blake2b_begin(struct blake2b *state) {
    memcpy(state->chain, START, sizeof START);
    state->chain[0] ^= 0x01010000u | DIGEST_BYTES; /* no key, one leaf, so many bytes of digest */
    state->bytes = 0;
    state->held = 0;
}

void blake2b_add(struct blake2b *state, const uint8_t *data, size_t size) {
    while (size > 0) {
        if (state->held == BLAKE2B_BLOCK_BYTES) { /* not the last one: more follows */
            state->bytes += BLAKE2B_BLOCK_BYTES;
            compress(state, state->block, 0);
            state->held = 0;
        }
        size_t room = BLAKE2B_BLOCK_BYTES - state->held, part = size < room ? size : room;
        memcpy(state->block + state->held, data, part);
        state->held += part;
        data += part;
        size -= part;
    }
}

void blake2b_end(struct blake2b *state, uint8_t digest[DIGEST_BYTES]) {
    state->bytes += state->held;
    memset(state->block + state->held, 0, BLAKE2B_BLOCK_BYTES - state->held);
    compress(state, state->block, 1);
    put_number(digest, state->chain[0], 8);
    put_number(digest + 8, state->chain[1], 8);
}
