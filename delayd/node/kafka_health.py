"""A watch that asks now and then if Kafka lets a running node in, and still has what the node
needs.

Nothing else that a follower does would show it: drivers retry its reading, so that a refusal looks
like a topic without records. Not here: what topics must be like (`delayd.cluster.topic_checks`).

Invariant: no single answer ends a node. A broker that has just started, or that is cut off from its
controller, describes what it remembers.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from delayd.bus import Bus, Cluster
from delayd.cluster.topic_checks import Findings, check_topics, endangered
from delayd.errors import DelaydError, TopicMismatchError
from delayd.runtime.clock import Clock
from replication.settings import Settings

log = structlog.get_logger()

INTERVAL_S = 30
AGAIN_S = 10
"""How soon it asks again when an answer says that something is broken."""
TIMEOUT_MS = 20_000
ANSWERS_NEEDED = 5
"""Answers in a row, each over new connections and so of any broker, that must name a problem before
it is believed."""


class KafkaHealth:
    """The watch of one node. Lives on the event loop; what it found is read by any thread."""

    def __init__(
        self, bus: Bus, settings: Settings, clock: Clock, read_to: Callable[[], Sequence[int]]
    ) -> None:
        """`read_to` returns 1 + the last offset of the buffer that the node has read, by
        partition."""
        self._bus = bus
        self._settings = settings
        self._clock = clock
        self._read_to = read_to
        self.problem: str | None = None
        """What was wrong the last time: Kafka is away, does not let this node in, or says that the
        topics are broken."""
        self.warnings: tuple[str, ...] = ()
        """What will lose records if it stays, as of the last answer."""
        self._advice: tuple[str, ...] = ()
        self._kind: tuple[str, str] | None = None

    async def run(self) -> list[str]:
        """Watch until the topics are not what the contract needs any more; return what is wrong."""
        cluster = self._bus.cluster()
        told: dict[str, int] = {}
        try:
            while True:
                await asyncio.sleep(AGAIN_S if told else INTERVAL_S)
                try:
                    found = await asyncio.to_thread(self._ask, cluster)
                except DelaydError as error:
                    self._note(error)
                    continue
                told = {problem: told.get(problem, 0) + 1 for problem in found.broken}
                if wrong := [each for each, times in told.items() if times >= ANSWERS_NEEDED]:
                    return wrong
                self._note(TopicMismatchError("; ".join(told)) if told else None)
                self._warn(found.warnings)
                self._advise(found.advice)
                if told:
                    cluster.close()
                    cluster = self._bus.cluster()
        finally:
            cluster.close()

    def _ask(self, cluster: Cluster) -> Findings:
        found = check_topics(cluster, self._settings, TIMEOUT_MS)
        if found.broken or not found.warnings:
            return found
        now_ms, read_to = self._clock.wall_ms(), self._read_to()
        lost = endangered(cluster, self._settings, read_to, now_ms, TIMEOUT_MS)
        return found._replace(warnings=(*lost, *found.warnings))

    def _advise(self, advice: tuple[str, ...]) -> None:
        """Log one line when it is first seen that brokers take batches that no node can hold."""
        if advice and advice != self._advice:
            log.warning("buffer_unguarded", advice="; ".join(advice))
        self._advice = advice

    def _warn(self, warnings: tuple[str, ...]) -> None:
        """Log one line when more is endangered than before, and when nothing is any more."""
        if len(warnings) > len(self.warnings):
            log.error("buffer_endangered", error="; ".join(warnings))
        if self.warnings and not warnings:
            log.info("buffer_safe")
        self.warnings = warnings

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
