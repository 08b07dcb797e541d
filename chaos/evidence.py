"""What the topics hold, read by kafka-python as any read_committed consumer sees them.

The buffer is read too: what the brokers committed there, and only that, are the requests. So it
does not matter what a producer believes of a request whose acknowledgement was lost.

Invariant: a record is read once; `read` returns when it has all that was committed at its call.
"""

import threading
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

from chaos.records import Logged

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # kafka-python's own code; not ours to mend
    from kafka import KafkaConsumer, TopicPartition
    from kafka.partitioner.default import murmur2

READ_TIMEOUT_MS: Final = 60_000
POLL_MS: Final = 50
POLL_RECORDS_MAX: Final = 5_000
ASSIGN_EVERY_S: Final = 1.0
PAUSE_S: Final = 0.5
JOIN_TIMEOUT_S: Final = 60.0

OWN: Final = ("buffer", "dead", "receipts", "frontier")
"""Topics of delayd's own, without their prefix."""


class Evidence:
    """All records of delayd's topics and of the targets so far."""

    def __init__(
        self,
        bootstrap: str,
        prefix: str,
        targets: Sequence[str],
        *,
        with_frontier: bool = False,
        others: Sequence[str] = (),
        since: Mapping[str, Sequence[int]] | None = None,
        seen: Callable[[Logged], None] = lambda _record: None,
    ) -> None:
        """`prefix` is that of delayd's topics; `others` are read too; `seen` gets each record as it
        comes. Topics in `since` are read from those offsets, one for each partition, others from
        their start."""
        self._consumer = _consumer(bootstrap)
        self._since = since or {}
        self._seen = seen
        self._assigned_s = -ASSIGN_EVERY_S
        self.targets = tuple(targets)
        own = OWN if with_frontier else OWN[:-1]
        self._topics = (*(f"{prefix}{name}" for name in own), *targets, *others)
        self._of_topic: dict[str, list[Logged]] = defaultdict(list)
        self.requests, self.dead, self.receipts, self.frontiers = (
            self._of_topic[f"{prefix}{name}"] for name in OWN
        )

    @property
    def delivered(self) -> list[Logged]:
        """The records of all targets."""
        return [record for topic in self.targets for record in self.of(topic)]

    def of(self, topic: str) -> list[Logged]:
        """The records of one target, or of another topic."""
        return self._of_topic[topic]

    def read(self) -> None:
        """Read on; topics that do not exist yet are passed over. TimeoutError if it takes long."""
        for records in _polled(self._consumer, self._assign()):
            self._take(records)

    def glance(self) -> None:
        """Take what is there or comes within POLL_MS. While brokers are away kafka-python raises
        what it likes; the next glance goes on."""
        if time.monotonic() - self._assigned_s > ASSIGN_EVERY_S:
            self._assign()
            self._assigned_s = time.monotonic()
        self._take(_records(self._consumer))

    def close(self) -> None:
        """Give back the sockets."""
        self._consumer.close()

    def _take(self, records: Iterable[Logged]) -> None:
        for record in records:
            self._of_topic[record.topic].append(record)
            self._seen(record)

    def _assign(self) -> list[Any]:
        """All partitions that exist by now; those known before go on where they stood."""
        known = self._consumer.assignment()
        found = known.union(*(_partitions(self._consumer, topic) for topic in self._topics))
        if found != known:
            positions = {each: self._consumer.position(each) for each in known}
            self._consumer.assign(sorted(found))
            for each in found:
                if each in positions:
                    self._consumer.seek(each, positions[each])
                elif each.topic in self._since:
                    self._consumer.seek(each, self._since[each.topic][each.partition])
                else:
                    self._consumer.seek_to_beginning(each)
        return sorted(found)


@contextmanager
def observing(evidence: Evidence) -> Iterator[None]:
    """Read along meanwhile, whatever becomes of brokers, in a thread of its own."""
    is_over = threading.Event()

    def observe() -> None:
        while not is_over.is_set():
            try:
                evidence.glance()
            except Exception:  # kafka-python raises what it likes while brokers are away
                is_over.wait(PAUSE_S)
        evidence.close()

    thread = threading.Thread(target=observe, name="consumer", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(JOIN_TIMEOUT_S)


Ends = dict[str, tuple[int, ...]]
"""By topic, and partition: the offset that the next record gets."""


def ends_of(bootstrap: str, topics: Iterable[str], *, stable: bool = False) -> Ends:
    """Of topics that exist; the stable ends are those that open transactions hold back."""
    with closing(_consumer(bootstrap, "read_committed" if stable else "read_uncommitted")) as found:
        places = {topic: _partitions(found, topic) for topic in topics}
        ends = found.end_offsets([place for each in places.values() for place in each])
        return {topic: tuple(ends[place] for place in each) for topic, each in places.items()}


def read_all(
    bootstrap: str, topics: Iterable[str], partitions_of: dict[str, int] | None = None
) -> list[Logged]:
    """Return all committed records of the topics that exist. `partitions_of` gets how many
    partitions each has. AssertionError if kafka-python returns a record twice."""
    with closing(_consumer(bootstrap)) as consumer:
        there = sorted(set(topics) & consumer.topics())
        places = [place for topic in there for place in _partitions(consumer, topic)]
        if partitions_of is not None:
            partitions_of.update(Counter(place.topic for place in places))
        consumer.assign(places)
        found = [record for records in _polled(consumer, places) for record in records]
        again = [place for place, n in Counter(each[:3] for each in found).items() if n > 1]
        assert not again, f"kafka-python returned {len(again)} records twice: {again[:3]}"
        return found


def partition_for(key: bytes, partitions: int) -> int:
    """Return where Kafka's own partitioner puts a key."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions


def _polled(consumer: Any, partitions: Iterable[Any]) -> Iterator[list[Logged]]:
    """Read on to the stable ends that there are now. TimeoutError if nothing comes for long."""
    ends: dict[Any, int] = consumer.end_offsets(list(partitions))
    polls = 0
    while any(consumer.position(each) < end for each, end in ends.items()):
        records = _records(consumer)
        polls = 0 if records else polls + 1
        if polls * POLL_MS > READ_TIMEOUT_MS:
            raise TimeoutError("the topics could not be read to their ends")
        yield records


def _records(consumer: Any) -> list[Logged]:
    polled = consumer.poll(timeout_ms=POLL_MS).values()
    return [
        Logged(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, tuple(r.headers))
        for records in polled
        for r in records
    ]


def _partitions(consumer: Any, topic: str) -> list[Any]:
    numbers = sorted(consumer.partitions_for_topic(topic) or ())
    return [TopicPartition(topic, number) for number in numbers]


def _consumer(bootstrap: str, isolation: str = "read_committed") -> Any:
    return KafkaConsumer(
        bootstrap_servers=bootstrap.split(","),
        group_id=None,
        isolation_level=isolation,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        allow_auto_create_topics=False,
        fetch_max_wait_ms=20,
        max_poll_records=POLL_RECORDS_MAX,
        metadata_max_age_ms=1_000,
    )
