#include "topics.h"

#include <string.h>

#include "crc32.h"

static int is_topic(const struct topics *topics, uint32_t topic, const struct piece *name) {
    const struct topic_place *place = &topics->places[topic];
    return place->bytes == (uint32_t)name->bytes &&
           memcmp(topics->records + place->begin, name->at, place->bytes) == 0;
}

int topics_find(struct topics *topics, const struct piece *name) {
    if (topics->last < topics->count && is_topic(topics, topics->last, name))
        return 1;
    for (topics->last = 0; topics->last < topics->count; topics->last++)
        if (is_topic(topics, topics->last, name))
            return 1;
    if (topics->count == TOPICS_MAX)
        return 0;
    topics->places[topics->count++] =
        (struct topic_place){(uint32_t)(name->at - topics->records), (uint32_t)name->bytes};
    topics->lanes[topics->last] = crc32_of(name->at, (size_t)name->bytes) % topics->lanes_count;
    return 1;
}
