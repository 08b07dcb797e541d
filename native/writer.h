/* Writing to a producer in C: records as bytes (records.h), each to one of some topics.
 *
 * A record's `partition` is the one to send it to, or ANY_PARTITION; its `epoch` is the number of its topic. Nothing
 * is polled here: confluent-kafka's own callbacks run only in its own calls, which are to follow. What it calls
 * for a record without a message state of its own, as all of these are, is nothing (its `dr_msg_cb`). So that a
 * record is lost is noted by an interceptor (driver.c), before any flush could call it acknowledged.
 */
#ifndef DELAYD_WRITER_H
#define DELAYD_WRITER_H

#include <stddef.h>
#include <stdint.h>

#define ANY_PARTITION (-1)
#define WHY_BYTES 256

struct client;
struct failure;

struct written {
    uint64_t bytes; /* of the records that were taken */
    int32_t error;  /* librdkafka's code for the next one, else 0 */
    uint32_t topic; /* of that one */
    char why[WHY_BYTES];
};

/* Hand records to the producer, in their order, up to the first that it does not take. */
void delayd_write(struct client *client, const uint8_t *records, size_t size,
                  const char *const *topics, uint32_t topic_count, struct written *written);

/* Return how many failures are known by now, and copy them, up to `failures_max`. */
uint32_t delayd_failures(struct client *client, struct failure *failures, uint32_t failures_max);

#endif
