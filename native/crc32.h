/* CRC-32 of zlib, for lanes and for the digests of steps; a table a byte, for what is short. */
#ifndef DELAYD_CRC32_H
#define DELAYD_CRC32_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32_of(const uint8_t *data, size_t size);

#endif
