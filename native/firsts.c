#include "firsts.h"

#include "msgpack.h"

#define STATE_FIELDS 5
#define LIVE_FIELDS 5
#define STATE_KEY_BYTES 4 /* without the id */
#define END_KEY_BYTES 12

static uint8_t *put_name(uint8_t *at, const struct piece *id) {
    *at++ = 'i';
    return put_bytes(at, id->at, (size_t)id->bytes);
}

static size_t value_bytes(const struct record *record, const struct request *request, uint32_t lane,
                          int64_t due_ms, int64_t keep_ms) {
    size_t bytes = 1 + uint_bytes((uint64_t)keep_ms) + 1; /* two arrays */
    bytes += 1 + uint_bytes((uint64_t)due_ms) + uint_bytes((uint64_t)record->offset);
    bytes += uint_bytes(lane) + 2 + DIGEST_BYTES + 1;
    return bytes + 2 + str_bytes(&request->topic);
}

static uint8_t *put_value(uint8_t *at, const struct record *record, const struct request *request,
                          uint32_t lane, int64_t due_ms, int64_t keep_ms) {
    const struct piece digest = {request->digest, DIGEST_BYTES};
    *at++ = FIX_ARRAY | STATE_FIELDS;
    at = put_uint(at, (uint64_t)keep_ms);
    *at++ = FIX_ARRAY | 1;
    *at++ = FIX_ARRAY | LIVE_FIELDS;
    at = put_uint(at, (uint64_t)due_ms);
    at = put_uint(at, (uint64_t)record->offset);
    at = put_uint(at, lane);
    at = put_bin(at, &digest);
    *at++ = MINUS_1;
    *at++ = FIX_ARRAY; /* nothing is killed, */
    *at++ = MINUS_1;   /* and by nothing */
    return put_str(at, &request->topic);
}

int first_write(uint8_t *lines, const struct record *record, const struct request *request,
                uint32_t lane, int64_t due_ms, int64_t keep_ms, struct first *first) {
    size_t id = (size_t)request->id.bytes;
    size_t bytes = STATE_KEY_BYTES + END_KEY_BYTES + 2 * id +
                   value_bytes(record, request, lane, due_ms, keep_ms);
    if (bytes > LINES_BYTES - first->key)
        return 0;
    uint8_t *at = lines + first->key;
    *at++ = 'i';
    at = put_big(at, (uint64_t)record->partition, 2);
    at = put_name(at, &request->id);
    first->value = (uint32_t)(at - lines);
    at = put_value(at, record, request, lane, due_ms, keep_ms);
    first->end_key = (uint32_t)(at - lines);
    *at++ = 'e';
    at = put_big(at, (uint64_t)record->partition, 2);
    at = put_big(at, (uint64_t)(due_ms + keep_ms), 8);
    at = put_name(at, &request->id);
    first->end = (uint32_t)(at - lines);
    return 1;
}
