#include "digest.h"

#include <string.h>

#include "blake2b.h"

#define DIGITS_MAX 20

static void add_piece(struct blake2b *state, const struct piece *piece) {
    uint8_t length[4];
    for (int at = 0; at < 4; at++)
        length[at] = (uint8_t)((uint32_t)piece->bytes >> (24 - 8 * at));
    blake2b_add(state, length, sizeof length);
    if (piece->bytes > 0)
        blake2b_add(state, piece->at, (size_t)piece->bytes);
}

static void add_number(struct blake2b *state, uint64_t number) {
    uint8_t digits[DIGITS_MAX];
    int at = DIGITS_MAX;
    do {
        digits[--at] = (uint8_t)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    const struct piece text = {digits + at, DIGITS_MAX - at};
    add_piece(state, &text);
}

static uint8_t lower(uint8_t letter) {
    return letter >= 'A' && letter <= 'Z' ? (uint8_t)(letter | 0x20) : letter;
}

static int counts(const struct piece *name, const struct digest_rules *rules) {
    if (is_reserved(name))
        return 0;
    for (uint32_t each = 0; each < rules->uncounted_count; each++) {
        const struct uncounted *other = &rules->uncounted[each];
        uint32_t bytes = (uint32_t)name->bytes, at = 0;
        if (other->is_stem ? bytes < other->bytes : bytes != other->bytes)
            continue;
        while (at < other->bytes && lower(name->at[at]) == (uint8_t)other->text[at])
            at++;
        if (at == other->bytes)
            return 0;
    }
    return 1;
}

/* Add the headers that count, or only say how many they are, if there is no state. */
static uint64_t add_headers(struct blake2b *state, const struct record *record,
                            const struct digest_rules *rules) {
    struct piece name, content;
    const uint8_t *at = record->headers;
    uint64_t counted = 0;
    for (int32_t place = 0; place < record->header_count; place++) {
        at = record_header_read(at, record->key.at, &name, &content);
        if (!counts(&name, rules))
            continue;
        counted++;
        if (state != NULL) {
            add_piece(state, &name);
            add_piece(state, &content);
        }
    }
    return counted;
}

void digest_make(const struct record *record, const struct digest_rules *rules,
                 struct request *request) {
    static const struct piece null = {NULL, NULL_BYTES};
    struct blake2b state;
    blake2b_begin(&state);
    add_piece(&state, &request->topic);
    add_piece(&state, request->key.at != NULL ? &request->key : &record->key);
    add_piece(&state, &record->value);
    add_number(&state, add_headers(NULL, record, rules));
    add_headers(&state, record, rules);
    if (request->partition < 0)
        add_piece(&state, &null);
    else
        add_number(&state, (uint64_t)request->partition);
    add_piece(&state, &request->when_name);
    add_piece(&state, &request->when);
    blake2b_end(&state, request->digest);
}
