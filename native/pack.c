#include "pack.h"

#include <string.h>

#include "message.h"

#define PLACES (2 * PACKED_MAX) /* of a hash table that is never more than half full */
#define PROOF_TRAILS 12
#define OFFSETS_END ((int64_t)1 << 48)
#define PARTITIONS_END 65536

/* Which entries there are, by what they are about: 1 + their number, 0 where none is. */
struct table {
    uint16_t places[PLACES];
};

/* One call's state. */
struct packing {
    const uint8_t *records;
    size_t size;
    const struct pack_rules *rules;
    const struct pack_room *room;
    struct pack_result *result;
    struct table groups;
    struct table tallies;
    struct topics topics;
    struct request requests[PACKED_MAX];
};

static uint32_t place_of(uint64_t number, uint64_t other) {
    uint64_t mixed = (number * 0x9e3779b97f4a7c15u) ^ (other * 0xc2b2ae3d27d4eb4fu);
    return (uint32_t)(mixed >> 40) % PLACES;
}

/* Log time after one more record: `log_time_after` of replication/log_time.py. */
static void pass_time(struct pack_result *result, int64_t append_ms, int64_t trail_ms) {
    if (trail_ms == 0) {
        result->leap_ms = 0;
        if (append_ms > result->log_ms)
            result->log_ms = append_ms;
    } else if (append_ms <= result->log_ms + 2 * trail_ms) {
        result->leap_ms = 0;
        if (append_ms - trail_ms > result->log_ms)
            result->log_ms = append_ms - trail_ms;
    } else if (result->leap_ms == 0 || append_ms < result->leap_ms) {
        result->leap_ms = append_ms;
    } else {
        int64_t over_ms = append_ms - result->leap_ms - PROOF_TRAILS * trail_ms;
        if (over_ms > trail_ms) {
            result->log_ms = result->leap_ms - trail_ms;
            result->leap_ms = append_ms;
        } else if (over_ms >= 0) {
            result->log_ms = append_ms - trail_ms;
            result->leap_ms = 0;
        }
    }
}

static int is_covered(const struct pack_rules *rules, uint32_t lane, int64_t due_ms,
                      int64_t offset) {
    if (rules->cursors == NULL || offset >= rules->covered_below)
        return 0;
    const struct cursor *cursor = &rules->cursors[lane];
    if (due_ms != cursor->due_ms)
        return due_ms < cursor->due_ms;
    if (rules->partition != cursor->partition)
        return rules->partition < cursor->partition;
    return offset < cursor->offset;
}

static uint32_t find_group(struct packing *packing, int64_t number, uint32_t is_hour) {
    struct group *groups = packing->room->groups;
    uint32_t at = place_of((uint64_t)number, is_hour);
    for (uint16_t found; (found = packing->groups.places[at]) != 0; at = (at + 1) % PLACES)
        if (groups[found - 1].number == number && groups[found - 1].is_hour == is_hour)
            return found - 1u;
    uint32_t group = packing->result->groups++;
    packing->groups.places[at] = (uint16_t)(group + 1);
    groups[group] = (struct group){.number = number, .is_hour = is_hour};
    return group;
}

static void count(struct packing *packing, int64_t slot) {
    struct tally *tallies = packing->room->tallies;
    uint32_t at = place_of((uint64_t)slot, packing->topics.last);
    for (uint16_t found; (found = packing->tallies.places[at]) != 0; at = (at + 1) % PLACES)
        if (tallies[found - 1].slot == slot && tallies[found - 1].topic == packing->topics.last) {
            tallies[found - 1].count++;
            return;
        }
    uint32_t tally = packing->result->tallies++;
    packing->tallies.places[at] = (uint16_t)(tally + 1);
    tallies[tally] = (struct tally){slot, packing->topics.last, 1};
}

/* Give a plain record its place among the frames. */
static void place(struct packing *packing, const struct record *record,
                  const struct request *request, int64_t due_ms) {
    const struct pack_rules *rules = packing->rules;
    struct pack_result *result = packing->result;
    int64_t slot = due_ms / SLOT_MS, hour = slot / HOUR_SLOTS;
    uint32_t is_hour = slot >= rules->near_slot;
    uint32_t number = find_group(packing, is_hour ? hour : slot, is_hour);
    struct group *group = &packing->room->groups[number];
    count(packing, is_hour && !rules->counts_slots ? hour * HOUR_SLOTS : slot);
    uint32_t length = message_bytes(record, request);
    packing->requests[result->stored] = *request;
    packing->room->packed[result->stored++] = (struct packed){
        .due_ms = due_ms,
        .offset = record->offset,
        .position = group->bytes,
        .length = length,
        .lane = packing->topics.lanes[packing->topics.last],
        .group = number,
        .record = (uint32_t)(record->begin - packing->records),
    };
    group->count++;
    group->bytes += length;
    group->last_offset = record->offset;
    result->frames_bytes += length;
    result->append_ms = record->append_ms;
    if (result->stored == 1 || due_ms < result->first_due_ms)
        result->first_due_ms = due_ms;
}

static void write_frame(const struct packing *packing, const struct packed *packed,
                        const struct request *request) {
    struct record record;
    record_read(packing->records + packed->record, packing->size - packed->record, &record);
    struct group *group = &packing->room->groups[packed->group];
    uint8_t *frame = packing->room->frames + group->begin + packed->position;
    group->crcs +=
        message_write(frame, packed->length, &record, request, packed->lane, packed->due_ms);
}

/* May the run hold a request of this kind? */
static int is_plain(enum request_kind kind, const struct pack_rules *rules) {
    return kind == REQUEST_PLAIN || (kind == REQUEST_KEYED && rules->takes_ids);
}

/* Write what is to be remembered of a schedule with an id; 0 if there is no room. */
static int add_first(struct packing *packing, const struct record *record, struct request *request,
                     int64_t due_ms) {
    struct pack_result *result = packing->result;
    struct first *first = &packing->room->firsts[result->firsts];
    uint32_t lane = packing->topics.lanes[packing->topics.last];
    digest_make(record, &packing->rules->digest, request);
    *first = (struct first){.key = result->lines_bytes, .record = result->taken};
    if (!first_write(packing->room->lines, record, request, lane, due_ms, packing->rules->keep_ms, first))
        return 0;
    result->lines_bytes = first->end;
    result->firsts++;
    return 1;
}

/* How many records are to be left to Python: up to where `run_min` in a row are plain. */
static uint32_t others_of(const uint8_t *records, size_t size, const struct pack_rules *rules) {
    struct record record;
    struct request request;
    uint32_t seen = 0, plain = 0;
    while (seen < PACKED_MAX && plain < rules->run_min && record_read(records, size, &record)) {
        plain = is_plain(request_read(&record, &rules->limits, &request), rules) ? plain + 1 : 0;
        seen++;
        records += record.bytes;
        size -= record.bytes;
    }
    return plain < rules->run_min ? seen : seen - plain;
}

static int is_in_order(const struct record *record, const struct pack_rules *rules,
                       int64_t next_offset) {
    return record->partition == rules->partition && record->partition < PARTITIONS_END &&
           record->offset >= next_offset && record->offset < OFFSETS_END;
}

int delayd_pack(const uint8_t *records, size_t size, const struct pack_rules *rules,
                const struct pack_room *room, struct pack_result *result) {
    struct packing packing;
    memset(&packing.groups, 0, sizeof packing.groups);
    memset(&packing.tallies, 0, sizeof packing.tallies);
    packing.records = records, packing.size = size;
    packing.rules = rules, packing.room = room, packing.result = result;
    packing.topics = (struct topics){records, room->topics, 0, rules->lanes, 0, {0}};
    struct record record;
    struct request request;
    int is_whole = 1;
    uint32_t taken_max = rules->taken_max < PACKED_MAX ? rules->taken_max : PACKED_MAX;
    *result = (struct pack_result){
        .next_offset = rules->next_offset, .log_ms = rules->log_ms, .leap_ms = rules->leap_ms};
    if (size > UINT32_MAX / 2)
        return 0;
    while (result->taken < taken_max && result->taken_bytes < size) {
        const uint8_t *at = records + result->taken_bytes;
        if (!record_read(at, size - result->taken_bytes, &record))
            return 0;
        is_whole = is_in_order(&record, rules, result->next_offset) &&
                   is_plain(request_read(&record, &rules->limits, &request), rules);
        if (!is_whole || !topics_find(&packing.topics, &request.topic))
            break;
        int64_t due_ms = request.asked_ms > record.append_ms ? request.asked_ms : record.append_ms;
        if (request.id.at != NULL && !add_first(&packing, &record, &request, due_ms))
            break;
        if (!is_covered(rules, packing.topics.lanes[packing.topics.last], due_ms, record.offset))
            place(&packing, &record, &request, due_ms);
        pass_time(result, record.append_ms, rules->trail_ms);
        result->next_offset = record.offset + 1;
        result->epoch = record.epoch;
        result->taken++;
        result->taken_bytes += record.bytes;
    }
    if (!is_whole && result->taken < rules->run_min) {
        uint32_t others = others_of(records, size, rules);
        *result = (struct pack_result){.others = others > 0 ? others : result->taken + 1};
        return 1;
    }
    result->topics = packing.topics.count;
    if (result->frames_bytes > room->frames_max)
        return 0;
    for (uint32_t group = 1; group < result->groups; group++)
        room->groups[group].begin = room->groups[group - 1].begin + room->groups[group - 1].bytes;
    for (uint32_t frame = 0; frame < result->stored; frame++)
        write_frame(&packing, &room->packed[frame], &packing.requests[frame]);
    return 1;
}
