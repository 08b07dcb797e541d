#define _GNU_SOURCE
#include "writer.h"

#include <stdio.h>
#include <string.h>

#include "rdkafka.h"
#include "records.h"

static rd_kafka_headers_t *headers_of(const struct record *record) {
    rd_kafka_headers_t *headers = rdkafka.headers_new((size_t)record->header_count);
    const uint8_t *at = record->headers;
    struct piece name, content;
    for (int32_t place = 0; place < record->header_count; place++) {
        at = record_header_read(at, record->key.at, &name, &content);
        if (at == NULL) {
            rdkafka.headers_destroy(headers);
            return NULL;
        }
        const char *text = (const char *)name.at;
        const uint8_t *bytes = content.bytes < 0 ? NULL : content.at;
        /* A name ends at its first NUL, whoever sends it. */
        ssize_t text_bytes = (ssize_t)strnlen(text, (size_t)name.bytes);
        rdkafka.header_add(headers, text, text_bytes, bytes, content.bytes);
    }
    return headers;
}

static rd_kafka_vu_t vu_of(int type, const struct piece *piece) {
    rd_kafka_vu_t vu = {.type = type};
    vu.is.piece.at = piece->bytes < 0 ? NULL : piece->at;
    vu.is.piece.bytes = piece->bytes < 0 ? 0 : (size_t)piece->bytes;
    return vu;
}

/* Hand over one record. Return 0, or librdkafka's error; the headers are then destroyed. */
static rd_kafka_error_t *produce(struct client *client, const struct record *record,
                                 const char *topic, rd_kafka_headers_t *headers) {
    const rd_kafka_vu_t vus[] = {
        {.type = VU_TOPIC, .is.text = topic},
        {.type = VU_PARTITION, .is.partition = record->partition},
        vu_of(VU_VALUE, &record->value),
        vu_of(VU_KEY, &record->key),
        {.type = VU_FLAGS, .is.number = MSG_COPY},
        {.type = VU_HEADERS, .is.headers = headers},
    };
    rd_kafka_error_t *error = rdkafka.produceva(client->handle, vus, sizeof vus / sizeof *vus);
    if (error != NULL)
        rdkafka.headers_destroy(headers);
    return error;
}

void delayd_write(struct client *client, const uint8_t *records, size_t size,
                  const char *const *topics, uint32_t topic_count, struct written *written) {
    struct record record;
    *written = (struct written){0};
    while (written->bytes < size) {
        rd_kafka_headers_t *headers = NULL;
        if (!record_read(records + written->bytes, size - written->bytes, &record) ||
            record.epoch < 0 || (uint32_t)record.epoch >= topic_count ||
            (headers = headers_of(&record)) == NULL) {
            written->error = FAILED;
            snprintf(written->why, sizeof written->why, "these bytes are no records");
            return;
        }
        written->topic = (uint32_t)record.epoch;
        rd_kafka_error_t *error = produce(client, &record, topics[record.epoch], headers);
        if (error != NULL) {
            written->error = rdkafka.error_code(error);
            snprintf(written->why, sizeof written->why, "%s", rdkafka.error_string(error));
            rdkafka.error_destroy(error);
            return;
        }
        written->bytes += record.bytes;
    }
}

uint32_t delayd_failures(struct client *client, struct failure *failures, uint32_t failures_max) {
    pthread_mutex_lock(&client->lock);
    uint32_t known = client->failure_count, count = known < failures_max ? known : failures_max;
    if (count > 0)
        memcpy(failures, client->failures, count * sizeof *failures);
    pthread_mutex_unlock(&client->lock);
    return known;
}
