#include "body.h"

#include <string.h>

#include "msgpack.h"

#define FIELDS 10

static const uint8_t NO_ID[5] = {NIL, BIN_8, 0, 0xa0, 0}; /* id, digest, origin, attempt */
static const uint8_t NO_RETRY[2] = {0xa0, 0};

static const struct piece *key_of(const struct record *record, const struct request *request) {
    return request->key.at != NULL ? &request->key : &record->key;
}

size_t body_bytes(const struct record *record, const struct request *request) {
    struct piece name, content;
    const uint8_t *at = record->headers;
    size_t bytes = 1 + str_bytes(&request->topic) + uint_bytes((uint64_t)request->asked_ms);
    bytes += bin_bytes(key_of(record, request)) + bin_bytes(&record->value);
    bytes += request->users < 16 ? 1 : 3;
    for (int32_t place = 0; place < record->header_count; place++) {
        at = record_header_read(at, record->key.at, &name, &content);
        if (!is_reserved(&name))
            bytes += 1 + str_bytes(&name) + bin_bytes(&content);
    }
    bytes += request->partition < 0 ? 1 : uint_bytes((uint64_t)request->partition);
    if (request->id.at == NULL)
        return bytes + sizeof NO_ID;
    return bytes + str_bytes(&request->id) + 2 + DIGEST_BYTES + sizeof NO_RETRY;
}

uint8_t *body_write(uint8_t *to, const struct record *record, const struct request *request) {
    struct piece name, content;
    const uint8_t *at = record->headers;
    *to++ = FIX_ARRAY | FIELDS;
    to = put_str(to, &request->topic);
    to = put_uint(to, (uint64_t)request->asked_ms);
    to = put_bin(to, key_of(record, request));
    to = put_bin(to, &record->value);
    if (request->users < 16) {
        *to++ = (uint8_t)(FIX_ARRAY | request->users);
    } else {
        *to++ = ARRAY_16;
        to = put_big(to, (uint64_t)request->users, 2);
    }
    for (int32_t place = 0; place < record->header_count; place++) {
        at = record_header_read(at, record->key.at, &name, &content);
        if (is_reserved(&name))
            continue;
        *to++ = FIX_ARRAY | 2;
        to = put_str(to, &name);
        to = put_bin(to, &content);
    }
    if (request->partition < 0)
        *to++ = NIL;
    else
        to = put_uint(to, (uint64_t)request->partition);
    if (request->id.at == NULL)
        return put_bytes(to, NO_ID, sizeof NO_ID);
    const struct piece digest = {request->digest, DIGEST_BYTES};
    to = put_str(to, &request->id);
    to = put_bin(to, &digest);
    return put_bytes(to, NO_RETRY, sizeof NO_RETRY);
}

/* Bytes that are still to be read; `at` is NULL once something is not there, or not what it must be. */
struct rest {
    const uint8_t *at;
    const uint8_t *end;
};

static const uint8_t *take(struct rest *rest, uint64_t bytes) {
    const uint8_t *at = rest->at;
    if (at == NULL || bytes > (uint64_t)(rest->end - at)) {
        rest->at = NULL;
        return NULL;
    }
    rest->at += bytes;
    return at;
}

static uint64_t take_big(struct rest *rest, int bytes) {
    const uint8_t *at = take(rest, (uint64_t)bytes);
    uint64_t number = 0;
    for (int place = 0; at != NULL && place < bytes; place++)
        number = number << 8 | at[place];
    return number;
}

static struct piece take_piece(struct rest *rest, uint64_t bytes) {
    if (bytes > INT32_MAX)
        rest->at = NULL;
    const uint8_t *at = take(rest, bytes);
    return (struct piece){at, at == NULL ? 0 : (int32_t)bytes};
}

/* A length behind its form, if that is one of the three from `form` on. */
static uint64_t take_length(struct rest *rest, uint64_t found, unsigned form) {
    if (found < form || found > form + 2)
        rest->at = NULL;
    return rest->at == NULL ? 0 : take_big(rest, 1 << (found - form));
}

static struct piece take_bin(struct rest *rest) {
    uint64_t form = take_big(rest, 1);
    if (form == NIL)
        return (struct piece){NULL, NULL_BYTES};
    return take_piece(rest, take_length(rest, form, BIN_8));
}

static struct piece take_str(struct rest *rest) {
    uint64_t form = take_big(rest, 1);
    return take_piece(rest, form >> 5 == 5 ? form & 31 : take_length(rest, form, STR_8));
}

static uint64_t take_uint(struct rest *rest) {
    uint64_t form = take_big(rest, 1);
    if (form < 0x80)
        return form;
    if (form < UINT_8 || form > UINT_8 + 3)
        rest->at = NULL;
    return rest->at == NULL ? 0 : take_big(rest, 1 << (form - UINT_8));
}

static uint64_t take_array(struct rest *rest) {
    uint64_t form = take_big(rest, 1);
    if (form >> 4 == 9)
        return form & 15;
    if (form != ARRAY_16)
        rest->at = NULL;
    return take_big(rest, 2);
}

/* Is it ASCII, without a NUL? */
static int is_plain(const struct piece *text) {
    int is_other = 0;
    for (int32_t at = 0; at < text->bytes; at++)
        is_other |= text->at[at] == 0 || text->at[at] > 0x7f;
    return !is_other;
}

int body_read(const uint8_t *data, size_t size, struct body *body) {
    struct rest rest = {data, data + size};
    struct piece name;
    uint64_t fields = take_array(&rest);
    body->topic = take_str(&rest);
    uint64_t asked_ms = take_uint(&rest);
    body->key = take_bin(&rest);
    body->value = take_bin(&rest);
    uint64_t headers = take_array(&rest);
    body->headers = rest.at;
    for (uint64_t place = 0; rest.at != NULL && place < headers; place++) {
        if (take_array(&rest) != 2)
            return 0;
        name = take_str(&rest);
        take_bin(&rest);
        if (rest.at == NULL || !is_plain(&name))
            return 0;
    }
    uint64_t partition = 0;
    int is_any = rest.at != NULL && rest.at < rest.end && *rest.at == NIL;
    if (is_any)
        take(&rest, 1);
    else
        partition = take_uint(&rest);
    const uint8_t *end = take(&rest, sizeof NO_ID);
    if (end == NULL || memcmp(end, NO_ID, sizeof NO_ID) != 0 || rest.at != rest.end ||
        fields != FIELDS || asked_ms > INT64_MAX || partition > INT32_MAX || !is_plain(&body->topic))
        return 0;
    body->asked_ms = (int64_t)asked_ms;
    body->header_count = (int32_t)headers;
    body->partition = is_any ? -1 : (int32_t)partition;
    return 1;
}

const uint8_t *body_header_read(const uint8_t *at, const uint8_t *end, struct piece *name,
                                struct piece *content) {
    struct rest rest = {at, end};
    take_array(&rest);
    *name = take_str(&rest);
    *content = take_bin(&rest);
    return rest.at;
}
