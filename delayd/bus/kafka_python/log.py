"""kafka-python's own log lines, as debug events of delayd's log.

Not here: transitions that a person acts on; those surface as errors and counters.

Invariants:
- nothing reaches stdout or stderr by this way unless logging is configured to show debug events of
  `delayd.kafka-python`;
- no password is in a line, whatever is configured.
"""

import logging
from typing import Final

import structlog


class WithoutRequests(logging.Filter):
    """Drops kafka-python's debug lines about requests: they contain passwords in clear text."""

    SPOKEN_BY: Final = ("kafka.protocol.parser", "kafka.net.connection")

    def filter(self, record: logging.LogRecord) -> bool:
        """Return if the line may be seen."""
        return record.levelno > logging.DEBUG


def hide_requests() -> None:
    """Keep the requests of every client of this process out of the logs."""
    for name in WithoutRequests.SPOKEN_BY:
        logger = logging.getLogger(name)
        if not any(isinstance(each, WithoutRequests) for each in logger.filters):
            logger.addFilter(WithoutRequests())


class KafkaPythonLog(logging.Handler):
    """Handler of the logger `kafka`, for lines of any severity."""

    def __init__(self) -> None:
        super().__init__()
        self._log = structlog.wrap_logger(logging.getLogger("delayd.kafka-python"))

    def emit(self, record: logging.LogRecord) -> None:
        """Take one line of kafka-python."""
        self._log.debug(
            "kafka-python", severity=record.levelname, source=record.name, line=record.getMessage()
        )


def take_lines() -> None:
    """Route the process's lines of kafka-python here, once: they are shared by all its clients."""
    hide_requests()
    logger = logging.getLogger("kafka")
    if not any(isinstance(handler, KafkaPythonLog) for handler in logger.handlers):
        logger.addHandler(KafkaPythonLog())
        logger.propagate = False
