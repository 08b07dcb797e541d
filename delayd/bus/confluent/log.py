"""librdkafka's own log lines, as debug events of delayd's log.

Not here: transitions that a person acts on; those surface as errors and counters.

Invariant: nothing reaches stdout or stderr this way unless logging is configured to show debug
events of `delayd.librdkafka`.
"""

import logging

import structlog
from confluent_kafka import KafkaError


class LibrdkafkaLog:
    """The `logger` that a confluent-kafka client calls from its poll."""

    def __init__(self, role: str) -> None:
        self._log = structlog.wrap_logger(logging.getLogger("delayd.librdkafka"), role=role)

    def log(self, severity: int, text: str, *arguments: object) -> None:
        """Take one line of librdkafka, whatever its own severity."""
        self._log.debug("librdkafka", severity=severity, line=text % arguments)


class Refusals:
    """The `error_cb` of a client: the reasons why brokers refused it, for errors and reports.

    It must not lead back to the client, which is closed when its last reference goes.
    """

    def __init__(self, role: str) -> None:
        self._log = structlog.wrap_logger(logging.getLogger("delayd.librdkafka"), role=role)
        self.last: str | None = None
        """The last error of a connection, such as `_AUTHENTICATION, ...`."""

    def take(self, error: KafkaError) -> None:
        """Take one of librdkafka's errors. "No broker is left" says less than those before it."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.last = f"{error.name()}, {error.str()}"
            self._log.debug("librdkafka_error", line=self.last)
