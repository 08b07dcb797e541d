"""A watch that asks now and then if Kafka lets a running node in, and still has what the node
needs.

Nothing else that a follower does would show it: drivers retry its reading, so that a refusal looks
like a topic without records. Not here: what topics must be like (`delayd.cluster.topics`).
"""

import asyncio
import contextlib

import structlog

from delayd.bus import Bus
from delayd.cluster.topics import check_topics
from delayd.errors import DelaydError
from replication.settings import Settings

log = structlog.get_logger()

INTERVAL_S = 30
TIMEOUT_MS = 20_000


class KafkaHealth:
    """The watch of one node. Lives on the event loop; `problem` is read by any thread."""

    def __init__(self, bus: Bus, settings: Settings) -> None:
        self._bus = bus
        self._settings = settings
        self.problem: str | None = None
        """Why Kafka could not be asked the last time: away, or not letting this node in."""
        self._kind: tuple[str, str] | None = None

    async def run(self) -> list[str]:
        """Watch until the topics are not what the contract needs any more; return what is wrong."""
        with contextlib.closing(self._bus.cluster()) as cluster:
            while True:
                await asyncio.sleep(INTERVAL_S)
                try:
                    wrong = await asyncio.to_thread(
                        check_topics, cluster, self._settings, TIMEOUT_MS
                    )
                except DelaydError as error:
                    self._note(error)
                    continue
                self._note(None)
                if wrong:
                    return wrong

    def _note(self, error: DelaydError | None) -> None:
        """Log one line when a problem begins, when it changes what to do, and when it is over."""
        kind = None if error is None else (error.code, error.remedy)
        if error is not None and kind != self._kind:
            log.warning("kafka_refuses", code=error.code, error=str(error))
        elif error is None and self._kind is not None:
            log.info("kafka_answers")
        # What Kafka says differs each time, by how long it took for one.
        self._kind = kind
        self.problem = None if error is None else str(error)
