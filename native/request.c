#include "request.h"

#include <string.h>

#define RESERVED "delayd-"
#define RESERVED_BYTES 7
#define TOPIC_BYTES_MAX 249
#define DUE_DIGITS_MAX 14   /* 15 and more may be beyond the last due time */
#define DELAY_DIGITS_MAX 15
#define PARTITION_DIGITS_MAX 10
#define PARTITION_MAX 2147483647
#define APPEND_MS_MAX ((int64_t)1 << 53) /* so that no sum here overflows */
/* Numbers that look like seconds are refused, unless the cluster's rules are old. */
#define SECONDS_MIN 1000000000
#define SECONDS_END 10000000000

/* What counts against `record_bytes_max` besides bytes: delayd/request/headers.py. */
#define RECORD_ALLOWANCE 128u
#define HEADER_ALLOWANCE 10u

static const int64_t LEVELS_MS[] = {
    1000,   5000,   10000,  30000,  60000,  120000,  180000,  240000,  300000,
    360000, 420000, 480000, 540000, 600000, 1200000, 1800000, 3600000, 7200000,
};
#define LEVELS ((int64_t)(sizeof LEVELS_MS / sizeof *LEVELS_MS))

static int is(const struct piece *piece, const char *text) {
    size_t bytes = strlen(text);
    return (size_t)piece->bytes == bytes && memcmp(piece->at, text, bytes) == 0;
}

/* The number that the text begins with, of at most `digits_max` <= 18 digits; `used`: how many there are. */
static int64_t number_of(const struct piece *text, int digits_max, int *used) {
    int64_t number = 0;
    int at = 0;
    for (; at < text->bytes && at <= digits_max; at++) {
        unsigned digit = (unsigned)text->at[at] - '0';
        if (digit > 9)
            break;
        number = number * 10 + digit;
    }
    *used = at > digits_max ? 0 : at;
    return number;
}

/* Of a text that is a number and nothing else; -1 if it is not. */
static int64_t whole_number(const struct piece *text, int digits_max) {
    int used;
    int64_t number = number_of(text, digits_max, &used);
    return used > 0 && used == text->bytes ? number : -1;
}

static int topic_is_legal(const struct piece *topic, const struct request_limits *limits) {
    if (topic->bytes < 1 || topic->bytes > TOPIC_BYTES_MAX)
        return 0;
    for (int at = 0; at < topic->bytes; at++) {
        uint8_t byte = topic->at[at];
        int is_letter = (byte | 0x20) >= 'a' && (byte | 0x20) <= 'z';
        if (!is_letter && (byte < '0' || byte > '9') && byte != '.' && byte != '_' && byte != '-')
            return 0;
    }
    if (is(topic, ".") || is(topic, ".."))
        return 0;
    if (topic->bytes >= 2 && memcmp(topic->at, "__", 2) == 0)
        return 0;
    return (size_t)topic->bytes < limits->prefix_bytes ||
           memcmp(topic->at, limits->prefix, limits->prefix_bytes) != 0;
}

/* The delay of a delayd-delay; -1 if it is none, or longer than `max_ms`. */
static int64_t delay_ms_of(const struct piece *text, int64_t max_ms) {
    int digits;
    int64_t count = number_of(text, DELAY_DIGITS_MAX, &digits), unit_ms;
    struct piece unit = {text->at + digits, text->bytes - digits};
    if (digits == 0)
        return -1;
    if (is(&unit, "ms"))
        unit_ms = 1;
    else if (is(&unit, "s"))
        unit_ms = 1000;
    else if (is(&unit, "m"))
        unit_ms = 60000;
    else if (is(&unit, "h"))
        unit_ms = 3600000;
    else if (is(&unit, "d"))
        unit_ms = 86400000;
    else
        return -1;
    return count > max_ms / unit_ms ? -1 : count * unit_ms;
}

/* The due time that a header asks for, by name; -1 if it is none, or to be refused. */
static int64_t asked_ms_of(char kind, const struct piece *text, int64_t append_ms,
                           const struct request_limits *limits) {
    int64_t number;
    switch (kind) {
    case 'd': /* due */
        number = whole_number(text, DUE_DIGITS_MAX);
        return number >= SECONDS_MIN && number < SECONDS_END ? -1 : number;
    case 'w': /* delay */
        number = delay_ms_of(text, limits->max_delay_ms);
        return number < 0 ? -1 : append_ms + number;
    default: /* level */
        number = whole_number(text, DELAY_DIGITS_MAX);
        return number < 1 || number > LEVELS ? -1 : append_ms + LEVELS_MS[number - 1];
    }
}

/* What a header of delayd's is for: a letter, 0 if it is not one of a plain schedule. */
static char kind_of(const struct piece *name) {
    const struct piece rest = {name->at + RESERVED_BYTES, name->bytes - RESERVED_BYTES};
    if (is(&rest, "topic"))
        return 't';
    if (is(&rest, "due"))
        return 'd';
    if (is(&rest, "delay"))
        return 'w';
    if (is(&rest, "level"))
        return 'l';
    return is(&rest, "partition") ? 'p' : 0;
}

static int is_ascii(const struct piece *name) {
    uint8_t any = 0;
    for (int at = 0; at < name->bytes; at++)
        any |= name->at[at];
    return any < 0x80;
}

int request_read(const struct record *record, const struct request_limits *limits,
                 struct request *request) {
    if (record->header_count < 2 || record->header_count > HEADERS_MAX || record->append_ms < 0 ||
        record->append_ms > APPEND_MS_MAX || record->offset < 0)
        return 0;
    uint64_t size = RECORD_ALLOWANCE + HEADER_ALLOWANCE * (uint64_t)record->header_count;
    size += record->key.bytes > 0 ? (uint64_t)record->key.bytes : 0;
    size += record->value.bytes > 0 ? (uint64_t)record->value.bytes : 0;
    const uint8_t *at = record->headers;
    struct piece name, content, when = {NULL, 0};
    char when_kind = 0;
    int found = 0;
    *request = (struct request){.partition = -1, .places = {NO_HEADER, NO_HEADER, NO_HEADER}};
    for (int32_t place = 0; place < record->header_count; place++) {
        at = record_header_read(at, record->key.at, &name, &content);
        if (at == NULL || content.bytes < 0 || !is_ascii(&name))
            return 0;
        size += (uint64_t)name.bytes + (uint64_t)content.bytes;
        if (name.bytes < RESERVED_BYTES || memcmp(name.at, RESERVED, RESERVED_BYTES) != 0) {
            request->users++;
            continue;
        }
        char kind = kind_of(&name);
        if (kind == 0 || found == 3)
            return 0;
        request->places[found++] = place;
        if (kind == 't') {
            if (request->topic.at != NULL || !topic_is_legal(&content, limits))
                return 0;
            request->topic = content;
        } else if (kind == 'p') {
            int64_t partition = whole_number(&content, PARTITION_DIGITS_MAX);
            if (request->partition >= 0 || partition < 0 || partition > PARTITION_MAX)
                return 0;
            request->partition = partition;
        } else if (when_kind != 0) {
            return 0;
        } else {
            when_kind = kind;
            when = content;
        }
    }
    if (at != record->key.at || request->topic.at == NULL || when_kind == 0 ||
        size > limits->record_bytes_max)
        return 0;
    request->asked_ms = asked_ms_of(when_kind, &when, record->append_ms, limits);
    return request->asked_ms >= 0 && request->asked_ms - record->append_ms <= limits->max_delay_ms;
}
