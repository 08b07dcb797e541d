"""librdkafka's own log lines, as debug events of delayd's log.

Not here: transitions that a person acts on; those surface as errors and counters.

Invariant: nothing reaches stdout or stderr by this way unless logging is configured to show debug
events of `delayd.librdkafka`.
"""

import logging

import structlog


class LibrdkafkaLog:
    """The `logger` that a confluent-kafka client calls from its poll."""

    def __init__(self, role: str) -> None:
        self._log = structlog.wrap_logger(logging.getLogger("delayd.librdkafka"), role=role)

    def log(self, severity: int, text: str, *arguments: object) -> None:
        """One line of librdkafka, whatever its own severity."""
        self._log.debug("librdkafka", severity=severity, line=text % arguments)
