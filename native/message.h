/* The frame of a message. */
#ifndef DELAYD_MESSAGE_H
#define DELAYD_MESSAGE_H

#include <stdint.h>

#include "records.h"
#include "request.h"

/* How many bytes the frame of this message takes. */
uint32_t message_bytes(const struct record *record, const struct request *request);

/* Write it to `frame`, where these `length` bytes are; return its CRC. */
uint32_t message_write(uint8_t *frame, uint32_t length, const struct record *record,
                       const struct request *request, uint32_t lane, int64_t due_ms);

#endif
