/* The one door to librdkafka.
 *
 * The library that confluent-kafka has loaded is used, and no other. How it is found:
 *
 * 1. A client is made with `plugin.library.paths` naming this library. librdkafka loads it, and calls
 *    `conf_init`.
 * 2. The address that `conf_init` returns to lies in that librdkafka: `dladdr` names its file. All functions are
 *    looked up there, and each must lie in the same file. If one is missing or lies elsewhere, the client
 *    cannot be made.
 * 3. `conf_init` adds an interceptor, which librdkafka calls with the handle of the new client, in the thread
 *    that makes it. That thread asks for it next (`delayd_client_made`).
 *
 * A consumer is read (reader.h), and is made without callbacks. A producer is written to (writer.h), and keeps
 * its callbacks: only confluent-kafka polls it.
 */
#ifndef DELAYD_DRIVER_H
#define DELAYD_DRIVER_H

struct client;

/* The client that this thread made last, once; NULL if it made none since. Valid until it is destroyed. */
struct client *delayd_client_made(void);

#endif
