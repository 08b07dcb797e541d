/* CRC32C (Castagnoli, RFC 3720), by the processor's instruction where it has one. */
#ifndef DELAYD_CRC32C_H
#define DELAYD_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Return the CRC of these bytes. */
uint32_t crc32c(const uint8_t *data, size_t size);

/* Return the CRC as it is computed where the processor has no instruction for it: for tests. */
uint32_t crc32c_by_table(const uint8_t *data, size_t size);

#endif
