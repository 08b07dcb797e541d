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
    """Drops what kafka-python says of each request when it debugs: passwords are in them, in the
    clear."""

    SPOKEN_BY: Final = ("kafka.protocol.parser", "kafka.net.connection")

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line may be seen."""
        return record.levelno > logging.DEBUG


def hide_requests() -> None:
    """Have no client of this process write its requests into a log."""
    for name in WithoutRequests.SPOKEN_BY:
        logger = logging.getLogger(name)
        if not any(isinstance(each, WithoutRequests) for each in logger.filters):
            logger.addFilter(WithoutRequests())


class KafkaPythonLog(logging.Handler):
    """What takes the lines of the logger `kafka`, whatever their severity."""

    def __init__(self) -> None:
        super().__init__()
        self._log = structlog.wrap_logger(logging.getLogger("delayd.kafka-python"))

    def emit(self, record: logging.LogRecord) -> None:
        """One line of kafka-python."""
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
