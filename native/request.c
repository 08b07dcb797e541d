#include "request.h"

#include <string.h>

#include "murmur2.h"

#define TOPIC_BYTES_MAX 249
#define DUE_DIGITS_MAX 14   /* 15 and more may be beyond the last due time */
#define DELAY_DIGITS_MAX 15
#define PARTITION_DIGITS_MAX 10
#define PARTITION_MAX 2147483647
#define ID_BYTES_MAX 256
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

/* What a header of delayd's is for: a letter, 0 if it is left to Python. */
static char kind_of(const struct piece *name) {
    const struct piece rest = {name->at + RESERVED_BYTES, name->bytes - RESERVED_BYTES};
    if (is(&rest, "topic"))
        return 't';
    if (is(&rest, "due"))
        return 'd';
    if (is(&rest, "id"))
        return 'i';
    if (is(&rest, "delay"))
        return 'w';
    if (is(&rest, "level"))
        return 'l';
    if (is(&rest, "op"))
        return 'o';
    if (is(&rest, "key"))
        return 'k';
    return is(&rest, "partition") ? 'p' : 0;
}

static int is_ascii(const struct piece *text) {
    uint8_t any = 0;
    for (int at = 0; at < text->bytes; at++)
        any |= text->at[at];
    return any < 0x80;
}

/* Note a text of its own: once, in ASCII, and not empty. */
static int note_text(struct piece *to, const struct piece *content) {
    int is_good = to->at == NULL && content->bytes > 0 && is_ascii(content);
    *to = *content;
    return is_good;
}

/* Note what a header of delayd's says; 0 if it is left to Python. */
static int note(struct request *request, const struct request_limits *limits,
                const struct piece *name, const struct piece *content) {
    switch (kind_of(name)) {
    case 't':
        return note_text(&request->topic, content) && topic_is_legal(content, limits);
    case 'p':
        if (request->partition >= 0)
            return 0;
        request->partition = whole_number(content, PARTITION_DIGITS_MAX);
        return request->partition >= 0 && request->partition <= PARTITION_MAX;
    case 'i':
        return note_text(&request->id, content) && content->bytes <= ID_BYTES_MAX;
    case 'k':
        return note_text(&request->key, content);
    case 'o':
        if (request->op != OP_NONE)
            return 0;
        request->op = is(content, "schedule") ? OP_SCHEDULE
                      : is(content, "cancel") ? OP_CANCEL
                                              : OP_NONE;
        return request->op != OP_NONE;
    case 0:
        return 0;
    default:
        request->when_name = *name;
        return note_text(&request->when, content);
    }
}

/* Read all headers; 0 if one of them is left to Python, or the record is too large. */
static int read_headers(const struct record *record, const struct request_limits *limits,
                        struct request *request) {
    uint64_t size = RECORD_ALLOWANCE + HEADER_ALLOWANCE * (uint64_t)record->header_count;
    size += record->key.bytes > 0 ? (uint64_t)record->key.bytes : 0;
    size += record->value.bytes > 0 ? (uint64_t)record->value.bytes : 0;
    const uint8_t *at = record->headers;
    struct piece name, content;
    for (int32_t place = 0; place < record->header_count; place++) {
        at = record_header_read(at, record->key.at, &name, &content);
        if (at == NULL || content.bytes < 0 || !is_ascii(&name))
            return 0;
        size += (uint64_t)name.bytes + (uint64_t)content.bytes;
        if (!is_reserved(&name))
            request->users++;
        else if (!note(request, limits, &name, &content))
            return 0;
    }
    return at == record->key.at && size <= limits->record_bytes_max;
}

/* Is the id the record's key, and is the record where such a key belongs? */
static int id_is_in_place(const struct record *record, const struct request_limits *limits,
                          const struct piece *id) {
    if (record->key.bytes != id->bytes || memcmp(record->key.at, id->at, (size_t)id->bytes) != 0)
        return 0;
    uint32_t hash = murmur2(id->at, (size_t)id->bytes) & 0x7fffffffu;
    return record->partition >= 0 && hash % limits->partitions == (uint32_t)record->partition;
}

enum request_kind request_read(const struct record *record, const struct request_limits *limits,
                               struct request *request) {
    *request = (struct request){.partition = -1};
    if (record->header_count < 2 || record->header_count > HEADERS_MAX || record->append_ms < 0 ||
        record->append_ms > APPEND_MS_MAX || record->offset < 0 ||
        !read_headers(record, limits, request))
        return REQUEST_OTHER;
    int has_id = request->id.at != NULL;
    if (has_id && !id_is_in_place(record, limits, &request->id))
        return REQUEST_OTHER;
    if (request->op == OP_CANCEL) {
        int is_more = request->topic.at != NULL || request->when.at != NULL ||
                      request->key.at != NULL || request->partition >= 0;
        return has_id && !is_more ? REQUEST_CANCEL : REQUEST_OTHER;
    }
    if (request->topic.at == NULL || request->when.at == NULL ||
        (!has_id && (request->op != OP_NONE || request->key.at != NULL)))
        return REQUEST_OTHER;
    char when = kind_of(&request->when_name);
    request->asked_ms = asked_ms_of(when, &request->when, record->append_ms, limits);
    if (request->asked_ms < 0 || request->asked_ms - record->append_ms > limits->max_delay_ms)
        return REQUEST_OTHER;
    return has_id ? REQUEST_KEYED : REQUEST_PLAIN;
}
