"""kafka-python's own log lines, as debug events of delayd's log.

Not here: transitions that a person acts on; those surface as errors and counters.

Invariants:
- nothing reaches stdout or stderr by this way unless logging is configured to show debug events of
  `delayd.kafka-python`;
- no password is in a line, whatever is configured.
"""

import logging

import structlog

REQUEST_LOGGERS = ("kafka.protocol.parser", "kafka.net.connection")
"""Their debug lines hold requests in clear text, passwords among them."""


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


def hide_requests() -> None:
    """Keep the requests of every client of this process out of the logs. Idempotent."""
    for name in REQUEST_LOGGERS:
        logging.getLogger(name).addFilter(_is_above_debug)


def _is_above_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG
