"""`delayd import`: messages that another system holds, scheduled here, each with its verdict.

| file | what it holds |
|---|---|
| `mapping.py` | the mapping file: from a row to a request. Pure |
| `files.py` | rows of JSON lines and CSV |
| `topic.py` | rows of a Kafka topic |
| `redis_server.py` | a Redis, and how messages are taken there |
| `zset.py` | rows of a sorted set of Redis |
| `celery_queue.py` | rows of a queue of Celery on Redis |
| `amqp_server.py` | a RabbitMQ |
| `rabbit_queue.py` | rows of a queue of RabbitMQ, and how they are taken |
| `contents.py` | what bytes are as fields. Pure |
| `sources.py` | which source a word is |
| `journal.py` | how far an import has come |
| `job.py` | the import: rows are sent, answers counted |
| `command.py` | the command |

Invariants: rows are sent in their order and answered in that order; the journal's position is
behind the last row of which every one before has an answer; what is sent twice is a `duplicate`,
because each row has an id. A source that delivers by itself is disarmed before a row is sent, and
what was taken is kept: nothing here removes a message. Memory does not grow with the rows.

Source: docs/guides/importing.md.
"""
