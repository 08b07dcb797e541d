"""A filter against passwords in logs: kafka-python's debug lines hold requests in clear text."""

import logging
from typing import Final

LOGGERS: Final = ("kafka.protocol.parser", "kafka.net.connection")


def hide_requests() -> None:
    """Keep the requests of every client of this process out of the logs. Idempotent."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_is_above_debug)


def _is_above_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG
