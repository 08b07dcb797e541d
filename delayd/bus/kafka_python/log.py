"""kafka-python's own log lines, as debug events of delayd's log.

Not here: transitions that a person acts on; those surface as errors and counters.

Invariant: nothing reaches stdout or stderr by this way unless logging is configured to show debug
events of `delayd.kafka-python`.
"""

import logging

import structlog


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
    logger = logging.getLogger("kafka")
    if not any(isinstance(handler, KafkaPythonLog) for handler in logger.handlers):
        logger.addHandler(KafkaPythonLog())
        logger.propagate = False
