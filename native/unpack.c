#include "unpack.h"

#include <string.h>

#include "body.h"
#include "bytes.h"
#include "crc32.h"
#include "frames.h"
#include "records.h"

#define HEADERS_ADDED 3
#define TOPIC_BYTES_MAX 249
#define DECIMAL_BYTES 20
/* What the headers that are added take at most, beside their lengths and names. */
#define ADDED_BYTES (HEADERS_ADDED * RECORD_HEADER_BYTES + 10 + 12 + 13 + 4 * DECIMAL_BYTES + 1)

/* One call's state. */
struct unpacking {
    const uint8_t *frames;
    const struct unpack_room *room;
    struct unpack_result *result;
    uint32_t target; /* the last message's */
    struct piece fired;
};

static struct piece put_decimal(uint8_t *to, uint64_t number) {
    uint8_t digits[DECIMAL_BYTES];
    int32_t count = 0;
    do
        digits[count++] = (uint8_t)('0' + number % 10);
    while ((number /= 10) > 0);
    for (int32_t place = 0; place < count; place++)
        to[place] = digits[count - 1 - place];
    return (struct piece){to, count};
}

static struct piece put_source(uint8_t *to, const struct entry *entry) {
    int32_t bytes = put_decimal(to, (uint64_t)entry->partition).bytes;
    to[bytes++] = '/';
    bytes += put_decimal(to + bytes, (uint64_t)entry->offset).bytes;
    return (struct piece){to, bytes};
}

/* Read the frame of this entry, where `size` bytes are; 0 if it is not that of a plain message. */
static int read_message(const uint8_t *frame, size_t size, const struct entry *entry,
                        struct body *body) {
    struct frame_header header;
    return entry->kind == KIND_MESSAGE && entry->length >= 0 && (uint64_t)entry->length <= size &&
           frame_read(frame, (size_t)entry->length, &header) == FRAME_WHOLE &&
           header.length == (uint64_t)entry->length && header.form == form_of(KIND_MESSAGE) &&
           header.lane == (uint64_t)entry->lane && header.partition == (uint64_t)entry->partition &&
           header.offset == (uint64_t)entry->offset && header.due_ms == (uint64_t)entry->due_ms &&
           entry->offset >= 0 && entry->due_ms >= 0 &&
           body_read(frame + HEADER_BYTES, header.length - HEADER_BYTES, body) &&
           body->topic.bytes > 0 && body->topic.bytes <= TOPIC_BYTES_MAX;
}

static int is_target(const struct unpacking *unpacking, uint32_t target, const struct piece *name) {
    const struct target *found = &unpacking->room->targets[target];
    return found->bytes == (uint32_t)name->bytes &&
           memcmp(unpacking->frames + found->begin, name->at, found->bytes) == 0;
}

/* Find the target among those of this call, or add it; 0 if it is one too many. */
static int find_target(struct unpacking *unpacking, const struct piece *name) {
    struct unpack_result *result = unpacking->result;
    if (unpacking->target < result->targets && is_target(unpacking, unpacking->target, name))
        return 1;
    for (unpacking->target = 0; unpacking->target < result->targets; unpacking->target++)
        if (is_target(unpacking, unpacking->target, name))
            return 1;
    if (result->targets == TARGETS_MAX)
        return 0;
    unpacking->room->targets[result->targets++] = (struct target){
        .begin = (uint32_t)(name->at - unpacking->frames),
        .bytes = (uint32_t)name->bytes,
        .first = result->taken,
        .partition_max = -1,
    };
    return 1;
}

/* What the record takes, or a little more. */
static uint64_t bytes_of(const struct body *body, const uint8_t *end) {
    uint64_t bytes = RECORD_BYTES + ADDED_BYTES;
    const uint8_t *at = body->headers;
    struct piece name, content;
    bytes += body->key.bytes > 0 ? (uint64_t)body->key.bytes : 0;
    bytes += body->value.bytes > 0 ? (uint64_t)body->value.bytes : 0;
    for (int32_t place = 0; place < body->header_count; place++) {
        at = body_header_read(at, end, &name, &content);
        bytes += RECORD_HEADER_BYTES + (uint64_t)name.bytes;
        bytes += content.bytes > 0 ? (uint64_t)content.bytes : 0;
    }
    return bytes;
}

static uint8_t *add_header(uint8_t *at, const char *name, const struct piece *content) {
    struct piece named = {(const uint8_t *)name, (int32_t)strlen(name)};
    return record_header_write(at, &named, content);
}

/* Write the record of a message, and note it. */
static void put_message(struct unpacking *unpacking, const struct entry *entry,
                        const struct body *body, const uint8_t *end) {
    struct unpack_result *result = unpacking->result;
    struct target *target = &unpacking->room->targets[unpacking->target];
    uint8_t *begin = unpacking->room->records + result->record_bytes, *to = begin + RECORD_BYTES;
    uint8_t asked_text[DECIMAL_BYTES], source_text[2 * DECIMAL_BYTES + 1];
    struct piece asked = put_decimal(asked_text, (uint64_t)body->asked_ms);
    struct piece source = put_source(source_text, entry), name, content;
    const uint8_t *at = body->headers;
    for (int32_t place = 0; place < body->header_count; place++) {
        at = body_header_read(at, end, &name, &content);
        to = record_header_write(to, &name, &content);
    }
    to = add_header(to, "delayd-due", &asked);
    to = add_header(to, "delayd-fired", &unpacking->fired);
    to = add_header(to, "delayd-source", &source);
    struct record record = {
        .partition = body->partition,
        .offset = entry->offset,
        .append_ms = entry->due_ms,
        .epoch = (int32_t)unpacking->target,
        .header_count = body->header_count + HEADERS_ADDED,
        .key = body->key,
        .value = body->value,
    };
    uint32_t crc = crc32_of(source.at, (size_t)source.bytes);
    unpacking->room->unpacked[result->taken++] =
        (struct unpacked){result->record_bytes, unpacking->target, body->partition, crc};
    target->count++;
    if (body->partition > target->partition_max)
        target->partition_max = body->partition;
    result->crcs += crc;
    result->frame_bytes += (uint64_t)entry->length;
    result->record_bytes += (uint64_t)(record_end_write(begin, to, &record) - begin);
}

/* How many messages are to be left to Python: up to where `run_min` in a row are plain. */
static uint32_t others_of(const uint8_t *frames, size_t size, const struct entry *entries,
                          size_t count, uint32_t run_min) {
    struct body body;
    uint32_t seen = 0, plain = 0;
    for (; seen < count && seen < UNPACKED_MAX && plain < run_min; seen++) {
        plain = read_message(frames, size, &entries[seen], &body) ? plain + 1 : 0;
        if (entries[seen].length < 0 || (uint64_t)entries[seen].length > size)
            return seen + 1;
        frames += entries[seen].length;
        size -= (size_t)entries[seen].length;
    }
    return plain < run_min ? seen : seen - plain;
}

void delayd_unpack(const uint8_t *frames, size_t size, const struct entry *entries, size_t count,
                   int64_t fired_ms, uint32_t run_min, const struct unpack_room *room,
                   struct unpack_result *result) {
    uint8_t fired_text[DECIMAL_BYTES];
    struct unpacking unpacking = {
        .frames = frames,
        .room = room,
        .result = result,
        .fired = put_decimal(fired_text, (uint64_t)fired_ms),
    };
    struct body body;
    int is_whole = 1, has_room = size <= UINT32_MAX;
    *result = (struct unpack_result){0};
    while (has_room && result->taken < count && result->taken < UNPACKED_MAX) {
        const struct entry *entry = &entries[result->taken];
        const uint8_t *frame = frames + result->frame_bytes;
        is_whole = read_message(frame, size - result->frame_bytes, entry, &body);
        if (!is_whole)
            break;
        has_room = bytes_of(&body, frame + entry->length) <= room->records_max - result->record_bytes &&
                   find_target(&unpacking, &body.topic);
        if (has_room)
            put_message(&unpacking, entry, &body, frame + entry->length);
    }
    if (result->taken >= run_min || (is_whole && result->taken > 0))
        return;
    /* One for which there is no room, or those up to where enough in a row are plain. */
    *result = (struct unpack_result){
        .others = is_whole ? 1 : others_of(frames, size, entries, count, run_min)};
}
