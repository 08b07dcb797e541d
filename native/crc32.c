#include "crc32.h"

#define POLYNOMIAL 0xedb88320u /* reflected */

static uint32_t table[256];

__attribute__((constructor)) static void fill_table(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
        table[byte] = crc;
    }
}

uint32_t crc32_of(const uint8_t *data, size_t size) {
    uint32_t crc = ~0u;
    for (; size > 0; data++, size--)
        crc = crc >> 8 ^ table[(crc ^ *data) & 0xff];
    return ~crc;
}
