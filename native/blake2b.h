/* BLAKE2b (RFC 7693) without a key, for digests of 16 bytes. */
#ifndef DELAYD_BLAKE2B_H
#define DELAYD_BLAKE2B_H

#include <stddef.h>
#include <stdint.h>

#define DIGEST_BYTES 16
#define BLAKE2B_BLOCK_BYTES 128

struct blake2b {
    uint64_t chain[8];
    uint64_t bytes; /* of all blocks that were compressed */
    size_t held;    /* bytes of `block` */
    uint8_t block[BLAKE2B_BLOCK_BYTES];
};

void blake2b_begin(struct blake2b *state);
void blake2b_add(struct blake2b *state, const uint8_t *data, size_t size);
void blake2b_end(struct blake2b *state, uint8_t digest[DIGEST_BYTES]);

#endif
