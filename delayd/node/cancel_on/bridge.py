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
from delayd.bus.unreadable import UnreadableBatch
from delayd.config.cancel_on import CancelOn
from delayd.errors import DelaydError, FencedError, ProducerError, TopicMismatchError
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
"""After a bridge that did not live longer; a fenced one must not fence its successor at once."""
SURVEY_MS: Final = 5_000
"""How often a topic's lag is measured, and one that could not be read is tried again."""
SURVEY_TIMEOUT_MS: Final = 2_000
"""How long one topic may hold up the others."""
KEEP_MS: Final = 3_600_000
"""How often all offsets are committed, moved or not: brokers forget those of a group without
members that are older than `offsets.retention.minutes`, seven days by default."""
TIMEOUT_MS: Final = 5_000
"""Of a transaction's calls: while it is open, what is behind its cancels in the buffer waits."""
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
    """Times that events were lost to it: the topic was trimmed, cut off or made anew before it was
    read to its end, or a batch of it cannot be read."""
    lag: int | None = None
    """Events that are still to be read; None if nobody knows."""
    problem: str | None = None


def bridge_id(realm: str) -> str:
    """Return the bridge's transactional id, which is the name of its consumer group, too."""
    return f"delayd-{realm}-cancel-on"


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

    def end(self) -> None:
        """Begin to end: what is under way is carried out, or read again by the next master."""
        self._stopping.set()

    def stop(self, timeout_s: float) -> None:
        """End."""
        self.end()
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
            began_ms = self._clock.monotonic_ms()
            try:
                with closing(self._passage()) as way:
                    self._go(way)
            except Exception as error:  # deliveries go on, whatever is wrong with events
                self.problem = str(error)
                code = error.code if isinstance(error, DelaydError) else type(error).__name__
                log.warning("cancel_bridge_failed", code=code, error=str(error))
                lived_ms = self._clock.monotonic_ms() - began_ms
                if isinstance(error, FencedError) or lived_ms < RETRY_MS:
                    self._stopping.wait(RETRY_MS / 1000)
        self._forget()

    def _passage(self) -> "Passage":
        return Passage(self._bus, self._settings, self._rules, self.figures)

    def _go(self, way: "Passage") -> None:
        now_ms = self._clock.monotonic_ms
        survey_at_ms = dict.fromkeys(self._rules, now_ms())
        keep_at_ms = now_ms() + KEEP_MS
        while self._is_master() and not self._stopping.is_set():
            topic = min(survey_at_ms, key=survey_at_ms.__getitem__)
            if survey_at_ms[topic] <= now_ms():
                way.survey(topic)
                survey_at_ms[topic] = now_ms() + SURVEY_MS
                self.problem = None
            if now_ms() >= keep_at_ms:
                way.keep()
                keep_at_ms = now_ms() + KEEP_MS
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
        self._positions: dict[str, dict[int, int]] = {}
        """Where each topic that is read was at its last survey, by partition."""
        self._absent: set[str] = set()
        """Topics that did not exist when this bridge looked for them."""
        self._suspects: set[str] = set()
        """Topics of which nothing had come at the last survey, though something was there."""
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

    def survey(self, topic: str) -> None:
        """Measure a topic's lag; begin to read it if it is not read, or has grown, or if nothing
        comes of what is there."""
        figures = self._figures[topic]
        is_read = topic in self._consumers
        try:
            ends = self._cluster.end_offsets(topic, SURVEY_TIMEOUT_MS, committed=True)
            if not is_read or self._positions[topic].keys() != ends.keys():
                self._begin(topic, ends)
            at = self._standing(topic)
            behind = {n: end - at[n] for n, end in ends.items() if end > at[n]}
            stands_still = any(at[n] == self._positions[topic][n] for n in behind)
            if stands_still and topic in self._suspects:
                log.warning("cancel_events_stalled", topic=topic, partitions=sorted(behind))
                self._begin(topic, ends)
            self._suspects = self._suspects - {topic} | ({topic} if stands_still else set())
            self._positions[topic] = at
            figures.lag = sum(behind.values())
            if is_read:
                figures.problem = None
        except ProducerError:
            raise
        except DelaydError as error:
            if isinstance(error, TopicMismatchError) and self._is_absent(topic):
                self._absent.add(topic)
            figures.lag, figures.problem = None, str(error)

    def turn(self) -> bool:
        """Carry out the cancels of some events; return whether there was any event."""
        read: dict[str, Sequence[Record]] = {}
        for topic, consumer in list(self._consumers.items()):
            try:
                records = consumer.poll(EVENTS_MAX, 0)
            except DelaydError as error:  # the next survey begins anew
                log.warning("cancel_events_unread", topic=topic, error=str(error))
                self._figures[topic].lag, self._figures[topic].problem = None, str(error)
                self._drop(topic)
                continue
            if records:
                read[topic] = records
        if read:
            self._carry_out(read)
        return bool(read)

    def keep(self) -> None:
        """Commit all offsets anew, so that brokers do not forget them."""
        if self._consumers:
            self._producer.begin()
            self._send_offsets(self._consumers)
            self._producer.commit(TIMEOUT_MS)

    def _carry_out(self, read: Mapping[str, Sequence[Record]]) -> None:
        found = {topic: self._cancels(topic, records) for topic, records in read.items()}
        self._producer.begin()
        # First: if the group has trouble, nothing in the buffer waits for it.
        self._send_offsets(read)
        for cancels, _ in found.values():
            for id, headers in cancels:
                self._producer.send(
                    self._settings.buffer.name,
                    key=id,
                    value=None,
                    headers=headers,
                    partition=partition_of(id, self._settings.partitions),
                )
        self._producer.commit(TIMEOUT_MS)
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
            if isinstance(record, UnreadableBatch):
                self._note_lost(topic, f"{record.partition}: {record.value!r}")
                continue
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
        known = self._cluster.group_offsets(self._group, places, SURVEY_TIMEOUT_MS)
        starts = self._cluster.start_offsets(topic, SURVEY_TIMEOUT_MS)
        reads_all = bool(known) or topic in self._absent
        begin = {
            n: known.get((topic, n), starts[n] if reads_all else end) for n, end in ends.items()
        }
        for number, offset in begin.items():
            if not starts[number] <= offset <= ends[number]:
                self._note_lost(topic, f"{number}: {offset} is not in the log any more")
                begin[number] = starts[number]
        consumer = self._bus.consumer(topic, careful=True)
        consumer.assign({n: Position(offset) for n, offset in begin.items()})
        self._consumers[topic], self._positions[topic] = consumer, begin
        if any(begin[n] != known.get((topic, n)) for n in begin):
            self._producer.begin()
            self._send_offsets([topic])
            self._producer.commit(TIMEOUT_MS)
        log.info("cancel_events_read", topic=topic, offsets=begin, group=self._group)

    def _is_absent(self, topic: str) -> bool:
        """Return whether brokers say that there is no such topic; not: that they do not tell."""
        try:
            return topic not in self._cluster.describe([topic], SURVEY_TIMEOUT_MS)
        except DelaydError:
            return False

    def _note_lost(self, topic: str, what: str) -> None:
        self._figures[topic].lost += 1
        log.error("cancel_events_lost", topic=topic, partition=what)

    def _standing(self, topic: str) -> dict[int, int]:
        """Return where a topic is read on, by partition, behind markers and aborted records."""
        consumer = self._consumers[topic]
        return {number: consumer.position(number) for number in self._positions[topic]}

    def _send_offsets(self, topics: Iterable[str]) -> None:
        """Let the open transaction commit where these topics are read on."""
        offsets = {(t, n): at for t in topics for n, at in self._standing(t).items()}
        self._producer.send_offsets(self._group, offsets, TIMEOUT_MS)

    def _drop(self, topic: str) -> None:
        self._positions.pop(topic, None)
        consumer = self._consumers.pop(topic, None)
        if consumer is not None:
            consumer.close()
