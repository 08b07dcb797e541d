#include "murmur2.h"

#include "bytes.h"

#define SEED 0x9747b28cu
#define FACTOR 0x5bd1e995u

uint32_t murmur2(const uint8_t *data, size_t size) {
    uint32_t hash = SEED ^ (uint32_t)size;
    for (; size >= 4; data += 4, size -= 4) {
        uint32_t word = get_u32(data) * FACTOR;
        word = (word ^ word >> 24) * FACTOR;
        hash = hash * FACTOR ^ word;
    }
    if (size > 0) {
        uint32_t rest = 0;
        for (size_t at = 0; at < size; at++)
            rest |= (uint32_t)data[at] << (8 * at);
        hash = (hash ^ rest) * FACTOR;
    }
    hash = (hash ^ hash >> 13) * FACTOR;
    return hash ^ hash >> 15;
}
