#include "message.h"

#include "body.h"
#include "bytes.h"
#include "crc32c.h"
#include "frames.h"

uint32_t message_bytes(const struct record *record, const struct request *request) {
    return HEADER_BYTES + (uint32_t)body_bytes(record, request);
}

uint32_t message_write(uint8_t *frame, uint32_t length, const struct record *record,
                       const struct request *request, uint32_t lane, int64_t due_ms) {
    uint8_t *at = put_number(frame, length, 4) + 4;
    at = put_number(at, form_of(KIND_MESSAGE), 4);
    at = put_number(at, lane, 2);
    at = put_number(at, (uint64_t)record->partition, 2);
    at = put_number(at, (uint64_t)record->offset, 8);
    at = put_number(at, (uint64_t)record->append_ms, 8);
    at = put_number(at, (uint64_t)due_ms, 8);
    body_write(at, record, request);
    uint32_t crc = crc32c(frame + PREFIX_BYTES, length - PREFIX_BYTES);
    put_number(frame + 4, crc, 4);
    return crc;
}
