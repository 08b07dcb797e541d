#include "crc32c.h"

#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* reflected */

/* tables[k][b] is the CRC of byte b with k zero bytes behind it: eight bytes a turn. Filled once, when
 * the library is loaded, before any other function of it can run. */
static uint32_t tables[8][256];

__attribute__((constructor)) static void fill_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
        tables[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int more = 1; more < 8; more++) {
            uint32_t before = tables[more - 1][byte];
            tables[more][byte] = before >> 8 ^ tables[0][before & 0xff];
        }
}

uint32_t crc32c_by_table(const uint8_t *data, size_t size) {
    uint32_t crc = ~0u;
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 |
                              (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
        crc = tables[7][low & 0xff] ^ tables[6][low >> 8 & 0xff] ^ tables[5][low >> 16 & 0xff] ^
              tables[4][low >> 24] ^ tables[3][data[4]] ^ tables[2][data[5]] ^
              tables[1][data[6]] ^ tables[0][data[7]];
    }
    for (; size > 0; data++, size--)
        crc = crc >> 8 ^ tables[0][(crc ^ *data) & 0xff];
    return ~crc;
}

#if defined(__x86_64__)

#include <cpuid.h>

#define SSE42_BIT (1u << 20) /* of ECX, leaf 1; asked of the processor itself: zig's compiler says no */

static int has_instruction;

__attribute__((constructor)) static void ask_processor(void) {
    unsigned a, b, c, d;
    has_instruction = __get_cpuid(1, &a, &b, &c, &d) && (c & SSE42_BIT) != 0;
}

#if defined(__clang__) && __clang_major__ >= 14
#define CRC_FEATURE "crc32" /* no part of sse4.2 any more, as those see it */
#else
#define CRC_FEATURE "sse4.2"
#endif

__attribute__((target(CRC_FEATURE))) static uint32_t by_instruction(const uint8_t *data, size_t size) {
    uint64_t crc = ~0u;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t eight;
        memcpy(&eight, data, 8);
        crc = __builtin_ia32_crc32di(crc, eight);
    }
    for (; size > 0; data++, size--)
        crc = __builtin_ia32_crc32qi((uint32_t)crc, *data);
    return ~(uint32_t)crc;
}

uint32_t crc32c(const uint8_t *data, size_t size) {
    return has_instruction ? by_instruction(data, size) : crc32c_by_table(data, size);
}

#elif defined(__aarch64__) && defined(__linux__)

#include <sys/auxv.h>

#define CRC32_BIT (1ul << 7) /* HWCAP_CRC32 */

static int has_instruction;

__attribute__((constructor)) static void ask_processor(void) {
    has_instruction = (getauxval(AT_HWCAP) & CRC32_BIT) != 0;
}

__attribute__((target("+crc"))) static uint32_t by_instruction(const uint8_t *data, size_t size) {
    uint32_t crc = ~0u;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t eight;
        memcpy(&eight, data, 8);
        __asm__("crc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(eight));
    }
    for (; size > 0; data++, size--)
        __asm__("crc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)*data));
    return ~crc;
}

uint32_t crc32c(const uint8_t *data, size_t size) {
    return has_instruction ? by_instruction(data, size) : crc32c_by_table(data, size);
}

#else

uint32_t crc32c(const uint8_t *data, size_t size) {
    return crc32c_by_table(data, size);
}

#endif
