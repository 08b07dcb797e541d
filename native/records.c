#include "records.h"

#include <string.h>

#include "bytes.h"

static size_t length_of(int32_t bytes) {
    return bytes < 0 ? 0 : (size_t)bytes;
}

int record_read(const uint8_t *data, size_t size, struct record *record) {
    if (size < RECORD_BYTES)
        return 0;
    record->begin = data;
    record->bytes = get_u32(data);
    if (record->bytes < RECORD_BYTES || record->bytes > size)
        return 0;
    record->partition = (int32_t)get_u32(data + 4);
    record->offset = (int64_t)get_u64(data + 8);
    record->append_ms = (int64_t)get_u64(data + 16);
    record->epoch = (int32_t)get_u32(data + 24);
    record->key.bytes = (int32_t)get_u32(data + 28);
    record->value.bytes = (int32_t)get_u32(data + 32);
    record->header_count = (int32_t)get_u32(data + 36);
    record->headers = data + RECORD_BYTES;
    if (record->key.bytes < NULL_BYTES || record->value.bytes < NULL_BYTES ||
        record->header_count < 0)
        return 0;
    size_t key = length_of(record->key.bytes), value = length_of(record->value.bytes);
    if (key + value > record->bytes - RECORD_BYTES)
        return 0;
    record->value.at = data + record->bytes - value;
    record->key.at = record->value.at - key;
    return 1;
}

const uint8_t *record_header_read(const uint8_t *at, const uint8_t *end, struct piece *name,
                                  struct piece *content) {
    if (end - at < (ptrdiff_t)RECORD_HEADER_BYTES)
        return NULL;
    name->bytes = (int32_t)get_u32(at);
    content->bytes = (int32_t)get_u32(at + 4);
    at += RECORD_HEADER_BYTES;
    if (name->bytes < 0 || content->bytes < NULL_BYTES ||
        length_of(name->bytes) + length_of(content->bytes) > (size_t)(end - at))
        return NULL;
    name->at = at;
    content->at = at + name->bytes;
    return content->at + length_of(content->bytes);
}

static uint8_t *put_piece(uint8_t *at, const struct piece *piece) {
    if (piece->bytes > 0)
        memcpy(at, piece->at, (size_t)piece->bytes);
    return at + length_of(piece->bytes);
}

uint8_t *record_header_write(uint8_t *at, const struct piece *name, const struct piece *content) {
    at = put_number(at, (uint32_t)name->bytes, 4);
    at = put_number(at, (uint32_t)content->bytes, 4);
    at = put_piece(at, name);
    return put_piece(at, content);
}

uint8_t *record_end_write(uint8_t *begin, uint8_t *at, const struct record *record) {
    at = put_piece(at, &record->key);
    at = put_piece(at, &record->value);
    put_number(begin, (uint64_t)(at - begin), 4);
    put_number(begin + 4, (uint32_t)record->partition, 4);
    put_number(begin + 8, (uint64_t)record->offset, 8);
    put_number(begin + 16, (uint64_t)record->append_ms, 8);
    put_number(begin + 24, (uint32_t)record->epoch, 4);
    put_number(begin + 28, (uint32_t)record->key.bytes, 4);
    put_number(begin + 32, (uint32_t)record->value.bytes, 4);
    put_number(begin + 36, (uint32_t)record->header_count, 4);
    return at;
}

/* Add what a record weighs; 0 if its headers are not whole. */
static int weigh(const struct record *record, uint64_t *weight) {
    struct piece name, content;
    const uint8_t *at = record->headers;
    *weight += WEIGHT_OF_RECORD + length_of(record->key.bytes) + length_of(record->value.bytes);
    for (int32_t header = 0; header < record->header_count; header++) {
        if ((at = record_header_read(at, record->key.at, &name, &content)) == NULL)
            return 0;
        *weight += WEIGHT_OF_HEADER + WEIGHT_OF_NAME_BYTE * (uint64_t)name.bytes +
                   length_of(content.bytes);
    }
    return at == record->key.at;
}

int delayd_survey(const uint8_t *data, size_t size, struct survey *survey,
                  struct stretch *stretches, size_t stretches_max) {
    struct record record;
    struct stretch *stretch = NULL;
    int64_t run_ms = 0;
    *survey = (struct survey){0};
    while (size > 0) {
        if (!record_read(data, size, &record) || !weigh(&record, &survey->weight))
            return 0;
        int is_other = stretch == NULL || record.partition != stretch->partition;
        if (is_other) {
            if (survey->stretches == stretches_max)
                return 0;
            stretch = &stretches[survey->stretches++];
            *stretch = (struct stretch){.partition = record.partition, .first_offset = record.offset};
        }
        if (is_other || record.append_ms != run_ms) {
            run_ms = record.append_ms;
            survey->run_begin = survey->count;
        }
        stretch->epoch = record.epoch;
        stretch->last_offset = record.offset;
        stretch->count++;
        stretch->bytes += record.bytes;
        survey->count++;
        data += record.bytes;
        size -= record.bytes;
    }
    return 1;
}

size_t delayd_skip(const uint8_t *data, size_t size, uint64_t count) {
    struct record record;
    size_t at = 0;
    for (; count > 0 && record_read(data + at, size - at, &record); count--)
        at += record.bytes;
    return count > 0 ? size : at;
}
