#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rdkafka.h"

#define NAME "delayd"

struct rdkafka rdkafka;

static _Thread_local struct client *made;

/* Find a function in the file that is loaded at `base`; NULL if it is not there. */
static void *find(void *file, const void *base, const char *name) {
    Dl_info where;
    void *function = dlsym(file, name);
    if (function == NULL || dladdr(function, &where) == 0 || where.dli_fbase != base)
        return NULL;
    return function;
}

/* Find all functions in the library that this address lies in; NULL, or the name of what is missing. */
static const char *bind_to(const void *address) {
    Dl_info where;
    if (dladdr(address, &where) == 0)
        return "its file";
    if (rdkafka.base != NULL)
        return rdkafka.base == where.dli_fbase ? NULL : "the librdkafka that was used before";
    void *file = dlopen(where.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (file == NULL)
        return where.dli_fname;
#define FIND(name, result, arguments)                                                             \
    if ((*(void **)&rdkafka.name = find(file, where.dli_fbase, "rd_kafka_" #name)) == NULL)       \
        return "rd_kafka_" #name;
    FUNCTIONS(FIND)
#undef FIND
    /* The library stays loaded as long as the process: `file` is kept. */
    rdkafka.base = where.dli_fbase;
    return NULL;
}

/* Note that a record was lost, unless one like it was before. */
static void note_failure(struct client *client, const rd_kafka_message_t *message) {
    const char *topic = rdkafka.topic_name(message->topic);
    pthread_mutex_lock(&client->lock);
    uint32_t at = 0;
    while (at < client->failure_count && (client->failures[at].code != message->err ||
                                          client->failures[at].partition != message->partition ||
                                          strcmp(client->failures[at].topic, topic) != 0))
        at++;
    if (at == client->failure_count && at < FAILURES_MAX) {
        struct failure *failure = &client->failures[client->failure_count++];
        failure->code = message->err;
        failure->partition = message->partition;
        snprintf(failure->topic, sizeof failure->topic, "%s", topic);
    }
    pthread_mutex_unlock(&client->lock);
}

/* librdkafka's interceptor: a record was acknowledged, or is lost. Its threads call it, before the record
 * stops to count as waiting. Records of confluent-kafka's have an opaque, and a callback in Python. */
static int on_acknowledgement(rd_kafka_t *handle, rd_kafka_message_t *message, void *opaque) {
    (void)handle;
    if (message->err != 0 && message->opaque == NULL)
        note_failure(opaque, message);
    return DONE;
}

/* librdkafka's interceptor: a client has been made. */
static int on_new(rd_kafka_t *handle, const rd_kafka_conf_t *conf, void *opaque, char *why,
                  size_t size) {
    struct client *client = opaque;
    client->handle = handle;
    if (rdkafka.type(handle) == PRODUCER) {
        client->failures = calloc(FAILURES_MAX, sizeof *client->failures);
        if (client->failures == NULL) {
            snprintf(why, size, "there is no memory");
            return FAILED;
        }
        made = client;
        return rdkafka.interceptor_add_on_acknowledgement(handle, NAME, on_acknowledgement, client);
    }
    if (conf != rdkafka.conf(handle)) {
        snprintf(why, size, "librdkafka shows another configuration than the client's");
        return FAILED;
    }
    /* confluent-kafka sets its own always, and needs the interpreter's lock in it. Without one librdkafka
     * writes errors of connections to its log. */
    rdkafka.conf_set_error_cb((rd_kafka_conf_t *)conf, NULL);
    made = client;
    return DONE;
}

/* librdkafka's interceptor: a client's configuration goes, after its threads; or one that became no client. */
static int on_conf_destroy(void *opaque) {
    struct client *client = opaque;
    if (made == client)
        made = NULL;
    pthread_mutex_destroy(&client->lock);
    free(client->failures);
    free(client);
    return DONE;
}

/* librdkafka's plugin interface: called while a client's properties are set. */
int conf_init(rd_kafka_conf_t *conf, void **opaque, char *why, size_t size);
int conf_init(rd_kafka_conf_t *conf, void **opaque, char *why, size_t size) {
    const char *missing = bind_to(__builtin_return_address(0));
    (void)opaque;
    if (missing != NULL) {
        snprintf(why, size, "delayd's native library does not find %s", missing);
        return FAILED;
    }
    struct client *client = calloc(1, sizeof *client);
    if (client == NULL || pthread_mutex_init(&client->lock, NULL) != 0) {
        snprintf(why, size, "there is no memory");
        free(client);
        return FAILED;
    }
    int error = rdkafka.conf_interceptor_add_on_conf_destroy(conf, NAME, on_conf_destroy, client);
    if (error != DONE) {
        on_conf_destroy(client);
        return error;
    }
    return rdkafka.conf_interceptor_add_on_new(conf, NAME, on_new, client);
}

struct client *delayd_client_made(void) {
    struct client *client = made;
    made = NULL;
    return client;
}
