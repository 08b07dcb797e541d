"""The bridge: reads events and writes cancels, each event once.

It runs on the master. A transaction holds the cancels of some events and where the events' consumer
group reads on, so an event has caused its cancel, or will. The transactional id is one for the
cluster: who takes it fences whoever had it. Nothing here stops deliveries: what fails is said, and
tried again.

A topic's events count from the moment on when the first bridge has seen the topic; of partitions
that come later all do.

Not here: what an event says (`event.py`). What a cancel comes to is decided as of any other.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from typing import Any, Final

import structlog

from delayd.bus import Bus, Cluster, Consumer, Headers, Position, Record, TransactionalProducer
from delayd.bus.murmur2 import partition_of
from delayd.config.cancel_on import CancelOn
from delayd.errors import DelaydError, ProducerError
from delayd.node.cancel_on.event import Event, cancelled_by
from delayd.runtime.clock import Clock
from delayd.runtime.threads import SystemThreads, Threads
from replication.settings import Settings

log = structlog.get_logger()

EVENTS_MAX: Final = 500
"""Of a topic in one transaction."""
POLL_MS: Final = 50
LOOK_MS: Final = 200
"""How often a node that does not lead looks whether it does."""
RETRY_MS: Final = 2_000
"""After a failure; a fenced bridge must not fence its successor at once."""
SURVEY_MS: Final = 5_000
"""How often the lag is measured, and a topic that could not be read is tried again."""
TIMEOUT_MS: Final = 10_000
CAUSE: Final = "cancelled-by"
"""The header of a cancel that names its event: `topic/partition/offset`."""


@dataclass(slots=True)
class Figures:
    """What a bridge has done with the events of one topic since the node's start."""

    events: int = 0
    cancels: int = 0
    unusable: int = 0
    """Events that a rule was for, without an id that a message can have."""
    lost: int = 0
    """Times that the topic was trimmed before it was read to its end."""
    lag: int | None = None
    """Events that are still to be read; None if nobody knows."""
    problem: str | None = None


def bridge_id(realm: str) -> str:
    """Return the bridge's transactional id, which is the name of its consumer group, too."""
    return f"{realm}-cancel-on"


class CancelBridge:
    """The thread; `stop` may be called from another one."""

    def __init__(
        self,
        bus: Bus,
        settings: Settings,
        rules: Sequence[CancelOn],
        clock: Clock,
        is_master: Callable[[], bool],
        threads: Threads | None = None,
    ) -> None:
        self._bus = bus
        self._settings = settings
        self._rules: defaultdict[str, list[CancelOn]] = defaultdict(list)
        for rule in rules:
            self._rules[rule.topic].append(rule)
        self._clock = clock
        self._is_master = is_master
        self.figures: Mapping[str, Figures] = {topic: Figures() for topic in self._rules}
        self.problem: str | None = None
        """Why no event is read now, of whichever topic."""
        threads = threads or SystemThreads()
        self._stopping = threads.event()
        self._thread = threads.thread("cancel-on", self._run)

    def start(self) -> None:
        """Begin, if there is a rule."""
        if self._rules:
            self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End; what is under way is given up, and read again by the next master."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def shown(self) -> dict[str, Any]:
        """Return what it does, for /status."""
        topics = {topic: asdict(figures) for topic, figures in self.figures.items()}
        return {"problem": self.problem, "topics": topics}

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._is_master():
                self._forget()
                self._stopping.wait(LOOK_MS / 1000)
                continue
            try:
                with closing(Passage(self._bus, self._settings, self._rules, self.figures)) as way:
                    self.problem = None
                    self._go(way)
            except Exception as error:  # deliveries go on, whatever is wrong with events
                self.problem = str(error)
                code = error.code if isinstance(error, DelaydError) else type(error).__name__
                log.warning("cancel_bridge_failed", code=code, error=str(error))
                self._stopping.wait(RETRY_MS / 1000)
        self._forget()

    def _go(self, way: "Passage") -> None:
        surveyed_ms = self._clock.monotonic_ms() - SURVEY_MS
        while self._is_master() and not self._stopping.is_set():
            if self._clock.monotonic_ms() - surveyed_ms >= SURVEY_MS:
                way.survey()
                surveyed_ms = self._clock.monotonic_ms()
            if not way.turn():
                self._stopping.wait(POLL_MS / 1000)

    def _forget(self) -> None:
        """A node that does not lead knows nothing of lags."""
        self.problem = None
        for figures in self.figures.values():
            figures.lag = figures.problem = None


class Passage:
    """One holder of the transactional id. Any error but those of one topic is final."""

    def __init__(
        self,
        bus: Bus,
        settings: Settings,
        rules: Mapping[str, Sequence[CancelOn]],
        figures: Mapping[str, Figures],
    ) -> None:
        """Take the transactional id. Raises ProducerError and KafkaUnreachableError."""
        self._bus = bus
        self._settings = settings
        self._rules = rules
        self._figures = figures
        self._group = bridge_id(settings.realm)
        self._consumers: dict[str, Consumer] = {}
        self._partitions: dict[str, frozenset[int]] = {}
        self._closing = ExitStack()
        with ExitStack() as unless_made:
            self._cluster: Cluster = unless_made.enter_context(closing(bus.cluster()))
            self._producer: TransactionalProducer = unless_made.enter_context(
                closing(bus.transactional_producer(self._group))
            )
            self._producer.init_transactions(TIMEOUT_MS)
            self._closing = unless_made.pop_all()

    def close(self) -> None:
        """Give up what is open."""
        for topic in list(self._consumers):
            self._drop(topic)
        self._closing.close()

    def survey(self) -> None:
        """Measure each topic's lag; begin to read those that are not read, or have grown."""
        for topic in self._rules:
            figures = self._figures[topic]
            try:
                ends = self._cluster.end_offsets(topic, TIMEOUT_MS, committed=True)
                if self._partitions.get(topic) != ends.keys():
                    self._begin(topic, ends)
                consumer = self._consumers[topic]
                figures.lag = sum(max(0, end - consumer.position(n)) for n, end in ends.items())
                figures.problem = None
            except ProducerError:
                raise
            except DelaydError as error:
                self._drop(topic)
                figures.lag, figures.problem = None, str(error)

    def turn(self) -> bool:
        """Carry out the cancels of some events; return whether there was any event."""
        read: dict[str, Sequence[Record]] = {}
        for topic, consumer in list(self._consumers.items()):
            try:
                records = consumer.poll(EVENTS_MAX, 0)
            except DelaydError as error:  # the next survey begins anew
                log.warning("cancel_events_unread", topic=topic, error=str(error))
                self._figures[topic].problem = str(error)
                self._drop(topic)
                continue
            if records:
                read[topic] = records
        if read:
            self._carry_out(read)
        return bool(read)

    def _carry_out(self, read: Mapping[str, Sequence[Record]]) -> None:
        found = {topic: self._cancels(topic, records) for topic, records in read.items()}
        positions = {
            (topic, record.partition): record.offset + 1
            for topic, records in read.items()
            for record in records
        }
        self._producer.begin()
        for cancels, _ in found.values():
            for id, headers in cancels:
                self._producer.send(
                    self._settings.buffer.name,
                    key=id,
                    value=None,
                    headers=headers,
                    partition=partition_of(id, self._settings.partitions),
                )
        self._commit(positions)
        for topic, (cancels, unusable) in found.items():
            figures = self._figures[topic]
            figures.events += len(read[topic])
            figures.cancels += len(cancels)
            figures.unusable += unusable
            if unusable:
                log.warning("cancel_events_unusable", topic=topic, events=unusable)

    def _cancels(
        self, topic: str, records: Iterable[Record]
    ) -> tuple[list[tuple[bytes, Headers]], int]:
        """Return the cancels that these events cause, and how many events are unusable."""
        cancels: list[tuple[bytes, Headers]] = []
        unusable = 0
        for record in records:
            ids = [cancelled_by(rule, record) for rule in self._rules[topic]]
            unusable += Event.UNUSABLE in ids
            cause = f"{topic}/{record.partition}/{record.offset}".encode()
            for id in dict.fromkeys(ids):
                if isinstance(id, bytes):
                    named: Headers = [("delayd-op", b"cancel"), ("delayd-id", id), (CAUSE, cause)]
                    cancels.append((id, named))
        return cancels, unusable

    def _begin(self, topic: str, ends: Mapping[int, int]) -> None:
        """Read a topic from where its group stands."""
        self._drop(topic)
        places = [(topic, number) for number in ends]
        known = self._cluster.group_offsets(self._group, places, TIMEOUT_MS)
        starts = self._cluster.start_offsets(topic, TIMEOUT_MS)
        begin = {n: known.get((topic, n), 0 if known else end) for n, end in ends.items()}
        if trimmed := [n for n, offset in begin.items() if offset < starts.get(n, 0)]:
            if any((topic, n) in known for n in trimmed):
                self._figures[topic].lost += 1
                log.error("cancel_events_lost", topic=topic, partitions=trimmed)
            begin.update({n: starts[n] for n in trimmed})
        if any(begin[n] != known.get((topic, n)) for n in begin):
            self._producer.begin()
            self._commit({(topic, n): offset for n, offset in begin.items()})
        consumer = self._bus.consumer(topic)
        consumer.assign({n: Position(offset) for n, offset in begin.items()})
        self._consumers[topic] = consumer
        self._partitions[topic] = frozenset(ends)
        log.info("cancel_events_read", topic=topic, offsets=begin)

    def _commit(self, positions: Mapping[tuple[str, int], int]) -> None:
        self._producer.send_offsets(self._group, positions, TIMEOUT_MS)
        self._producer.commit(TIMEOUT_MS)

    def _drop(self, topic: str) -> None:
        self._partitions.pop(topic, None)
        consumer = self._consumers.pop(topic, None)
        if consumer is not None:
            consumer.close()
