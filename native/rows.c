#include "rows.h"

#include <string.h>

#include "message.h"

#define OFFSETS_END ((int64_t)1 << 48)
#define PARTITIONS_END 65536

/* Fill the row of a schedule, and write its frame behind the `used` bytes of others; 0 if there is no room. */
static int put_schedule(const struct row_room *room, uint64_t used, const struct topics *topics,
                        const struct record *record, const struct request *request,
                        struct row *row) {
    row->frame_bytes = message_bytes(record, request);
    if (row->frame_bytes > room->frames_max - used)
        return 0;
    row->due_ms = request->asked_ms > record->append_ms ? request->asked_ms : record->append_ms;
    row->topic = topics->last;
    row->lane = topics->lanes[topics->last];
    row->frame = (uint32_t)used;
    row->crc = message_write(room->frames + used, row->frame_bytes, record, request, row->lane,
                             row->due_ms);
    return 1;
}

int delayd_rows(const uint8_t *records, size_t size, const struct row_rules *rules,
                const struct row_room *room, struct rows_result *result) {
    struct topics topics = {records, room->topics, 0, rules->lanes, 0, {0}};
    struct record record;
    struct request request;
    uint64_t used = 0;
    *result = (struct rows_result){0};
    if (size > UINT32_MAX / 2 || room->frames_max > UINT32_MAX)
        return 0;
    while (result->rows < ROWS_MAX && result->bytes < size) {
        if (!record_read(records + result->bytes, size - result->bytes, &record))
            return 0;
        enum request_kind kind = REQUEST_OTHER;
        if (record.offset < OFFSETS_END && record.partition < PARTITIONS_END && record.partition >= 0)
            kind = request_read(&record, &rules->limits, &request);
        int is_schedule = kind == REQUEST_PLAIN || kind == REQUEST_KEYED;
        if (is_schedule && !topics_find(&topics, &request.topic))
            break;
        struct row *row = &room->rows[result->rows];
        *row = (struct row){
            .offset = record.offset,
            .append_ms = record.append_ms,
            .kind = kind,
            .partition = record.partition,
            .epoch = record.epoch,
            .record = (uint32_t)(record.begin - records),
        };
        if (kind == REQUEST_KEYED || kind == REQUEST_CANCEL) {
            row->id = (uint32_t)(request.id.at - records);
            row->id_bytes = (uint32_t)request.id.bytes;
        }
        if (kind == REQUEST_KEYED) {
            digest_make(&record, &rules->digest, &request);
            memcpy(row->digest, request.digest, DIGEST_BYTES);
        }
        if (is_schedule && !put_schedule(room, used, &topics, &record, &request, row))
            return 0;
        used += row->frame_bytes;
        result->bytes += record.bytes;
        result->rows++;
    }
    result->topics = topics.count;
    return 1;
}
