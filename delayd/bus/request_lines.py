"""Keeps passwords out of logs: kafka-python's debug lines contain requests in clear text."""

import logging
from typing import Final

LOGGERS: Final = ("kafka.protocol.parser", "kafka.net.connection")


class WithoutRequests(logging.Filter):
    """Drops the debug lines of a logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return if the line may be seen."""
        return record.levelno > logging.DEBUG


def hide_requests() -> None:
    """Keep the requests of every client of this process out of the logs. Idempotent."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(each, WithoutRequests) for each in logger.filters):
            logger.addFilter(WithoutRequests())
