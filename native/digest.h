/* The digest of a message as sent: two requests under one id with the same digest are the same.
 * delayd/request/proof.py says of what, and computes the same.
 */
#ifndef DELAYD_DIGEST_H
#define DELAYD_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#include "records.h"
#include "request.h"

/* Names of headers that do not count, whatever their case: one each, or the beginning of many. */
struct uncounted {
    const char *text; /* in lower case */
    uint32_t bytes;
    uint32_t is_stem;
};

struct digest_rules {
    const struct uncounted *uncounted;
    uint32_t uncounted_count;
};

/* Compute the digest of a schedule that was read; keep it in the request. */
void digest_make(const struct record *record, const struct digest_rules *rules,
                 struct request *request);

#endif
