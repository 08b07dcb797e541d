/* The different targets of one call, and their lanes. */
#ifndef DELAYD_TOPICS_H
#define DELAYD_TOPICS_H

#include <stdint.h>

#include "records.h"

#define TOPICS_MAX 64 /* different targets of one call; it ends before the next one */

struct topic_place {
    uint32_t begin; /* in the records */
    uint32_t bytes;
};

struct topics {
    const uint8_t *records;
    struct topic_place *places; /* TOPICS_MAX of them */
    uint32_t count;
    uint32_t lanes_count; /* of the cluster */
    uint32_t last;        /* the one that was found last */
    uint32_t lanes[TOPICS_MAX];
};

/* Find the topic among those of this call, or add it; 0 if it is one too many. */
int topics_find(struct topics *topics, const struct piece *name);

#endif
