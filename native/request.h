/* Plain schedules: what the headers of a record ask for, where they ask for nothing but a delivery.
 *
 *     delayd-topic       a legal topic that is not delayd's or Kafka's own
 *     one of
 *       delayd-due       1 to 14 digits: Unix ms
 *       delayd-delay     1 to 15 digits, then ms, s, m, h or d
 *       delayd-level     1 to 15 digits: 1 to 18
 *     delayd-partition   1 to 10 digits, if at all
 *     any others         of the user: names in ASCII, no null
 *
 * delayd/request/grammar.py and times.py have the whole grammar, and say what is wrong with the rest. Here
 * a record is plain, all of it and without a doubt, or it is left to Python.
 */
#ifndef DELAYD_REQUEST_H
#define DELAYD_REQUEST_H

#include <stddef.h>
#include <stdint.h>

#include "records.h"

/* The limits of a cluster (delayd/request/request.py); all fixed when its topics were created. */
struct request_limits {
    int64_t max_delay_ms;
    uint64_t record_bytes_max;
    const char *prefix; /* of delayd's own topics */
    size_t prefix_bytes;
};

#define HEADERS_MAX 1024
#define NO_HEADER (-1)

struct request {
    struct piece topic;
    int64_t asked_ms;      /* the due time asked for, in Unix ms */
    int64_t partition;     /* of the target; -1: the partitioner's choice */
    int32_t users;         /* how many headers are the user's */
    int32_t places[3];     /* which headers are delayd's, NO_HEADER behind the last */
};

/* Read what a record asks for. Return 1, or 0 if it is not plain. */
int request_read(const struct record *record, const struct request_limits *limits,
                 struct request *request);

#endif
