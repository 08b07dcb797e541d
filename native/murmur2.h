/* Java's partitioner: delayd/bus/murmur2.py has the same. */
#ifndef DELAYD_MURMUR2_H
#define DELAYD_MURMUR2_H

#include <stddef.h>
#include <stdint.h>

uint32_t murmur2(const uint8_t *data, size_t size);

#endif
