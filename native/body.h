/* Bodies of plain messages: msgpack, as delayd/request/bodies.py lays them out.
 *
 *     body    := [topic, asked_ms, key, value, [header*], partition, nil, bin "", str "", 0]
 *     header  := [str name, bin content]
 *
 * Every value takes its shortest form, as Python's packer writes it.
 */
#ifndef DELAYD_BODY_H
#define DELAYD_BODY_H

#include <stddef.h>
#include <stdint.h>

#include "records.h"
#include "request.h"

/* How many bytes the body of this record takes. */
size_t body_bytes(const struct record *record, const struct request *request);

/* Write it to `at`, where so many bytes are; return the byte behind it. */
uint8_t *body_write(uint8_t *at, const struct record *record, const struct request *request);

#endif
