"""A made-up Kafka in which commit markers may be lost, and the tool that mends it may be killed.

Two targets, one partition each, and the frontier topic. Each shard's masters have a producer of
their own.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from zlib import crc32

from cluster_settings import LANES, PARTITIONS, SETTINGS

from delayd.bus import Ack, Headers, Record
from delayd.bus.raw import (
    Active,
    Batch,
    Marker,
    OpenTransaction,
    Place,
    ProducerEpoch,
    Producers,
    TransactionState,
)
from delayd.cluster.frontier_log import SeenFrontier
from delayd.commands.recover.marker.looking import Looker
from delayd.errors import NotInitialisedError
from replication.frontier import first_frontier
from replication.record import FrontierRecord, StepCounts, decode
from replication.settings import Settings

MASTER = 7
"""The producer of the first shard's masters; those of others follow."""
FRONTIER = Place(SETTINGS.frontier.name, 0)
TARGETS = (Place("a", 0), Place("b", 0))
NOW_MS = 1_000_000


class KilledError(Exception):
    """The tool is killed here."""


class FakeKafka:
    """The raw log and the producers of one Kafka, whose writes may be the last ones."""

    def __init__(self, shards: int = 1) -> None:
        self.frontiers = tuple(Place(SETTINGS.frontier.name, n) for n in range(shards))
        self.log: dict[Place, list[Batch | Marker]] = {p: [] for p in (*TARGETS, *self.frontiers)}
        self.knows_topics = True
        self.ends = dict.fromkeys(self.log, 0)
        self.epochs = [1] * shards
        """Of each shard's producer."""
        self.writes_left = 10**6
        self.states = ["CompleteCommit"] * shards

    def append(
        self,
        place: Place,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        epoch: int,
        shard: int = 0,
    ) -> int:
        at = self.ends[place]
        record = Record(place.partition, at, 0, NOW_MS + at, key, value, headers)
        self.log[place].append(Batch(ProducerEpoch(MASTER + shard, epoch), True, at, [record]))
        self.ends[place] += 1
        return at

    def end(self, place: Place, epoch: int, *, is_commit: bool, shard: int = 0) -> None:
        marker = Marker(ProducerEpoch(MASTER + shard, epoch), is_commit, 0, self.ends[place])
        self.log[place].append(marker)
        self.ends[place] += 1

    def count_write(self) -> None:
        if not self.writes_left:
            raise KilledError
        self.writes_left -= 1

    def open_since(self, place: Place, shard: int) -> int | None:
        since: int | None = None
        for each in self.log[place]:
            if each.producer.id != MASTER + shard:
                continue
            if isinstance(each, Marker):
                since = None
            elif since is None:
                since = each.records[0].offset
        return since

    def hangs(self) -> bool:
        shards = range(len(self.epochs))
        return any(self.open_since(place, n) is not None for place in self.log for n in shards)

    def visible(self, place: Place) -> list[Record]:
        found: list[Record] = []
        runs: dict[int, list[Record]] = {}
        for each in self.log[place]:
            run = runs.setdefault(each.producer.id, [])
            if isinstance(each, Batch):
                run += each.records
                continue
            found += run if each.is_commit else []
            run.clear()
        return sorted(found, key=lambda record: record.offset)

    def ids_in(self, place: Place) -> set[int]:
        """The producers that have written to a partition, or may do."""
        own = {MASTER + n for n in range(len(self.epochs)) if place.topic != FRONTIER.topic}
        return own | {each.producer.id for each in self.log[place]}

    # The port RawLog

    def places(self, _: int) -> list[Place]:
        own = [Place(SETTINGS.buffer.name, 0), Place(SETTINGS.dead.name, 0)]
        return [*self.log, *(own if self.knows_topics else [])]

    def producers(self, places: Iterable[Place], _: int) -> Producers:
        active = {
            place: tuple(
                Active(
                    ProducerEpoch(number, self.epochs[number - MASTER]),
                    0,
                    -1,
                    self.open_since(place, number - MASTER),
                )
                for number in sorted(self.ids_in(place))
            )
            for place in places
            if place in self.log
        }
        return Producers(active, {})

    def transaction(self, name: str, _: int) -> TransactionState:
        shard = int(name.rpartition("-")[2])
        return TransactionState(
            self.states[shard], ProducerEpoch(MASTER + shard, self.epochs[shard])
        )

    def open_transactions(self, _producers: Iterable[int], _: int) -> dict[int, OpenTransaction]:
        return {}

    def features(self, _: int) -> dict[str, tuple[int, int]]:
        return {}

    def read(
        self, place: Place, start: int, end: int, producers: Container[int], _: int
    ) -> Iterator[Batch | Marker]:
        for each in self.log[place]:
            offset = each.offset if isinstance(each, Marker) else each.records[0].offset
            if start <= offset < end and each.producer.id in producers:
                yield each

    def write_marker(self, place: Place, marker: Marker, _: int) -> None:
        self.count_write()
        shard = marker.producer.id - MASTER
        self.end(place, marker.producer.epoch, is_commit=marker.is_commit, shard=shard)

    def start_offsets(self, topic: str, _: int) -> dict[int, int]:
        return {place.partition: 0 for place in self.log if place.topic == topic}

    def end_offsets(self, topic: str, _: int, *, committed: bool) -> dict[int, int]:
        return {place.partition: end for place, end in self.ends.items() if place.topic == topic}

    def offsets_since(self, topic: str, at_ms: int, _: int) -> dict[int, int]:
        assert at_ms >= 0, "Kafka has other meanings for negative times"
        return self.start_offsets(topic, 0)

    def close(self) -> None:
        pass

    # The bus: a producer that takes the id of a shard's masters

    def transactional_producer(self, name: str) -> "FakeProducer":
        return FakeProducer(self, int(name.rpartition("-")[2]))


class FakeProducer:
    """Its transaction is there as a whole when it commits: what is open, the fence aborts."""

    def __init__(self, kafka: FakeKafka, shard: int) -> None:
        self._kafka = kafka
        self._shard = shard
        self._sent: list[tuple[Place, bytes | None, bytes | None, Headers]] = []

    def init_transactions(self, _: int) -> None:
        self._kafka.epochs[self._shard] += 1

    def begin(self) -> None:
        self._sent = []

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int,
        on_ack: Callable[[Ack], None] | None = None,
    ) -> None:
        place = Place(topic, partition)
        self._sent.append((place, key, value, headers))
        if on_ack is not None:
            on_ack(Ack(partition, self._kafka.ends[place], NOW_MS))

    def flush(self, _: int) -> None:
        pass

    def commit(self, _: int) -> None:
        kafka, shard = self._kafka, self._shard
        kafka.count_write()
        epoch = kafka.epochs[shard]
        for each in self._sent:
            kafka.append(*each, epoch, shard)
        for place in {each[0] for each in self._sent}:
            kafka.end(place, epoch, is_commit=True, shard=shard)

    def close(self) -> None:
        pass


class FakeLooker(Looker):
    """Reads the last frontier from the made-up Kafka."""

    def __init__(self, kafka: FakeKafka, shard: int = 0, settings: Settings = SETTINGS) -> None:
        super().__init__(
            kafka,  # type: ignore[arg-type]
            kafka,
            settings,
            since_ms=None,
            timeout_ms=1,
            tell=lambda *_: None,
            shard=shard,
        )
        self._kafka = kafka

    def last(self) -> tuple[SeenFrontier, int]:
        visible = self._kafka.visible(self.frontier)
        if not visible:
            raise NotInitialisedError("nothing is visible")
        newest = visible[-1]
        record = decode(newest.value or b"", takes_moved=True)
        seen = SeenFrontier(record, newest.offset, newest.append_ms)
        return seen, self._kafka.ends[self.frontier]


def frontier(step: int, shard: int = 0, shards: int = 1) -> FrontierRecord:
    """The record of a step that has delivered to both targets."""
    partitions = max(PARTITIONS, shards)
    reached = replace(
        first_frontier(shard, partitions, LANES),
        step=step,
        offsets=tuple(step if p % shards == shard else 0 for p in range(partitions)),
        shards=shards,
    )
    digest = sum(crc32(source(place, step, shard).encode()) for place in TARGETS)
    counts = StepCounts(delivered=len(TARGETS))
    settings = replace(SETTINGS, shards=shards, partitions=partitions)
    return FrontierRecord(reached, "n/x", NOW_MS + step, counts, digest, settings)


def source(place: Place, step: int, shard: int = 0) -> str:
    return f"{shard}/{10 * step + TARGETS.index(place)}"
