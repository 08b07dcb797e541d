"""Whatever Kafka has made of a step's markers, and wherever the tool is killed, a step ends up
visible as a whole and once, or not at all; and its frontier says which.

A made-up Kafka of three partitions: two targets and the frontier. All 27 ways in which the markers
of the last step may have come out are played, with a kill before each write in turn.
Source: docs/design/lost-markers.md, "Killed half-way, run twice".
"""

import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from zlib import crc32

import pytest
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
from delayd.commands.recover.marker.looking import Facts, Looker
from delayd.commands.recover.marker.mending import Mended, at_work, mend
from delayd.errors import KafkaUnreachableError, RecoverError
from replication.frontier import begin_term, first_frontier
from replication.record import FrontierRecord, StepCounts, decode, encode, record_key

MASTER = 7
FRONTIER = Place(SETTINGS.frontier.name, 0)
TARGETS = (Place("a", 0), Place("b", 0))
NOW_MS = 1_000_000
COMMIT, ABORT, LOST = True, False, None


class KilledError(Exception):
    """The tool is killed here."""


class FakeKafka:
    """The raw log and the producers of one Kafka, whose writes may be the last ones."""

    def __init__(self) -> None:
        self.log: dict[Place, list[Batch | Marker]] = {p: [] for p in (*TARGETS, FRONTIER)}
        self.knows_topics = True
        self.ends = dict.fromkeys(self.log, 0)
        self.epoch = 1
        self.writes_left = 10**6
        self.state = "CompleteCommit"

    def append(
        self, place: Place, key: bytes | None, value: bytes | None, headers: Headers, epoch: int
    ) -> int:
        at = self.ends[place]
        record = Record(place.partition, at, 0, NOW_MS + at, key, value, headers)
        self.log[place].append(Batch(ProducerEpoch(MASTER, epoch), True, at, [record]))
        self.ends[place] += 1
        return at

    def end(self, place: Place, epoch: int, *, is_commit: bool) -> None:
        marker = Marker(ProducerEpoch(MASTER, epoch), is_commit, 0, self.ends[place])
        self.log[place].append(marker)
        self.ends[place] += 1

    def count_write(self) -> None:
        if not self.writes_left:
            raise KilledError
        self.writes_left -= 1

    def open_since(self, place: Place) -> int | None:
        since: int | None = None
        for each in self.log[place]:
            if isinstance(each, Marker):
                since = None
            elif since is None:
                since = each.records[0].offset
        return since

    def visible(self, place: Place) -> list[Record]:
        found: list[Record] = []
        run: list[Record] = []
        for each in self.log[place]:
            if isinstance(each, Batch):
                run += each.records
                continue
            found += run if each.is_commit else []
            run = []
        return found

    # The port RawLog

    def places(self, _: int) -> list[Place]:
        own = [Place(SETTINGS.buffer.name, 0), Place(SETTINGS.dead.name, 0)]
        return [*self.log, *(own if self.knows_topics else [])]

    def producers(self, places: Iterable[Place], _: int) -> Producers:
        active = {
            place: (Active(ProducerEpoch(MASTER, self.epoch), 0, -1, self.open_since(place)),)
            for place in places
            if place in self.log
        }
        return Producers(active, {})

    def transaction(self, _name: str, _: int) -> TransactionState:
        return TransactionState(self.state, ProducerEpoch(MASTER, self.epoch))

    def open_transactions(self, _producers: Iterable[int], _: int) -> dict[int, OpenTransaction]:
        return {}

    def features(self, _: int) -> dict[str, tuple[int, int]]:
        return {}

    def read(
        self, place: Place, start: int, end: int, _producers: Container[int], _: int
    ) -> Iterator[Batch | Marker]:
        for each in self.log[place]:
            offset = each.offset if isinstance(each, Marker) else each.records[0].offset
            if start <= offset < end:
                yield each

    def write_marker(self, place: Place, marker: Marker, _: int) -> None:
        self.count_write()
        self.end(place, marker.producer.epoch, is_commit=marker.is_commit)

    def start_offsets(self, _topic: str, _: int) -> dict[int, int]:
        return {0: 0}

    def end_offsets(self, topic: str, _: int, *, committed: bool) -> dict[int, int]:
        return {0: self.ends[Place(topic, 0)]}

    def offsets_since(self, _topic: str, at_ms: int, _: int) -> dict[int, int]:
        assert at_ms >= 0, "Kafka has other meanings for negative times"
        return {0: 0}

    def close(self) -> None:
        pass

    # The bus: a producer that takes the masters' id

    def transactional_producer(self, _: str) -> "FakeProducer":
        return FakeProducer(self)


class FakeProducer:
    """Its transaction is there as a whole when it commits: what is open, the fence aborts."""

    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka
        self._sent: list[tuple[Place, bytes | None, bytes | None, Headers]] = []

    def init_transactions(self, _: int) -> None:
        self._kafka.epoch += 1

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
        self._kafka.count_write()
        for each in self._sent:
            self._kafka.append(*each, self._kafka.epoch)
        for place in {each[0] for each in self._sent}:
            self._kafka.end(place, self._kafka.epoch, is_commit=True)

    def close(self) -> None:
        pass


class FakeLooker(Looker):
    """Reads the last frontier from the made-up Kafka."""

    def __init__(self, kafka: FakeKafka) -> None:
        super().__init__(
            kafka,  # type: ignore[arg-type]
            kafka,
            SETTINGS,
            since_ms=None,
            timeout_ms=1,
            tell=lambda *_: None,
        )
        self._kafka = kafka

    def last(self) -> tuple[SeenFrontier, int]:
        newest = self._kafka.visible(FRONTIER)[-1]
        seen = SeenFrontier(decode(newest.value or b""), newest.offset, newest.append_ms)
        return seen, self._kafka.ends[FRONTIER]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayd.commands.recover.marker.looking.AGAIN_S", 0)
    monkeypatch.setattr("delayd.commands.recover.marker.mending.WATCH_S", 0)


def frontier(step: int) -> FrontierRecord:
    reached = replace(
        first_frontier(0, PARTITIONS, LANES), step=step, offsets=(step, step), own_writes=(-1, -1)
    )
    digest = sum(crc32(source(place, step).encode()) for place in TARGETS)
    counts = StepCounts(delivered=len(TARGETS))
    return FrontierRecord(reached, "n/x", NOW_MS + step, counts, digest, SETTINGS)


def source(place: Place, step: int) -> str:
    return f"{TARGETS.index(place)}/{step}"


def played(markers: tuple[bool | None, ...]) -> FakeKafka:
    """Two steps, the second with these markers, in the targets and on the frontier."""
    kafka = FakeKafka()
    for step, ends in ((1, (COMMIT,) * 3), (2, markers)):
        for place, end in zip((*TARGETS, FRONTIER), ends, strict=True):
            if place == FRONTIER:
                kafka.append(place, record_key(0), encode(frontier(step)), [], kafka.epoch)
            else:
                headers: Headers = [
                    ("delayd-due", b"1"),
                    ("delayd-fired", b"%d" % (NOW_MS + step)),
                    ("delayd-source", source(place, step).encode()),
                ]
                kafka.append(place, None, b"%d" % step, headers, kafka.epoch)
            if end is not None:
                kafka.end(place, kafka.epoch, is_commit=end)
    return kafka


def run(kafka: FakeKafka) -> Mended:
    facts, mended = mend(kafka, kafka, FakeLooker(kafka), SETTINGS, 1)  # type: ignore[arg-type]
    assert facts.plan.is_empty and not facts.plan.problems
    return mended


def judge(kafka: FakeKafka, markers: tuple[bool | None, ...]) -> None:
    """All or nothing of the second step is visible, and nothing hangs."""
    expected = 1 if COMMIT in markers or {*markers} == {LOST} else 0
    for place in TARGETS:
        found = Counter(record.value for record in kafka.visible(place))
        assert found == Counter({b"1": 1} | ({b"2": 1} if expected else {})), place
    steps = [decode(record.value or b"") for record in kafka.visible(FRONTIER)]
    assert steps[-1].frontier.offsets == frontier(1 + expected).frontier.offsets
    owners = {(step.frontier.term, step.owner) for step in steps}
    assert len(owners) == len({term for term, _ in owners}), "a term has one owner"
    assert all(kafka.open_since(place) is None for place in kafka.log)


@pytest.mark.parametrize("markers", [*itertools.product((COMMIT, ABORT, LOST), repeat=3)])
def test_all_of_a_step_becomes_visible_or_nothing_wherever_the_tool_is_killed(
    markers: tuple[bool | None, ...],
) -> None:
    for writes in range(6):
        kafka = played(markers)
        kafka.writes_left = writes
        try:
            run(kafka)
            was_killed = False
        except KilledError:
            was_killed = True
        kafka.writes_left = 10**6
        run(kafka)
        judge(kafka, markers)
        ends = dict(kafka.ends)
        assert run(kafka) == Mended() and kafka.ends == ends, "a further run does nothing"
        if not was_killed:
            return
    raise AssertionError("it was always killed")


def test_a_term_that_began_meanwhile_is_followed() -> None:
    kafka = played((COMMIT, COMMIT, ABORT))
    term = replace(frontier(1), frontier=begin_term(frontier(1).frontier))
    kafka.epoch += 1
    kafka.append(FRONTIER, record_key(0), encode(term), [], kafka.epoch)
    kafka.end(FRONTIER, kafka.epoch, is_commit=True)
    run(kafka)
    judge(kafka, (COMMIT,))
    last = decode(kafka.visible(FRONTIER)[-1].value or b"").frontier
    assert (last.term, last.step) == (term.frontier.term + 1, term.frontier.step + 1)


def test_nothing_is_written_while_a_master_is_at_work() -> None:
    kafka = played((LOST, COMMIT, COMMIT))
    kafka.state = "Ongoing"
    ends = dict(kafka.ends)
    with pytest.raises(RecoverError, match="under way"):
        run(kafka)
    assert kafka.ends == ends and kafka.epoch == 1, "nobody was fenced"


def test_no_marker_is_written_once_a_master_has_taken_a_step() -> None:
    kafka = played((LOST, COMMIT, COMMIT))
    looker = FakeLooker(kafka)
    look = looker.look

    def look_late() -> Facts:
        facts = look()
        kafka.append(FRONTIER, record_key(0), encode(frontier(3)), [], 9)
        return facts

    looker.look = look_late  # type: ignore[method-assign]
    with pytest.raises(RecoverError, match="a node takes steps"):
        mend(kafka, kafka, looker, SETTINGS, 1)  # type: ignore[arg-type]
    assert kafka.open_since(TARGETS[0]) is not None


def test_a_broker_that_does_not_know_the_topics_yet_is_not_believed() -> None:
    kafka = played((LOST, COMMIT, COMMIT))
    kafka.knows_topics = False
    with pytest.raises(KafkaUnreachableError, match="does not know"):
        run(kafka)


def watched(kafka: FakeKafka) -> str:
    """What is seen at work, from the first look on."""
    looker = FakeLooker(kafka)
    return at_work(kafka, looker, looker.look(), SETTINGS, 1)


def test_a_master_that_etcd_does_not_know_is_seen_by_its_steps() -> None:
    kafka = played((LOST, COMMIT, COMMIT))
    assert watched(kafka) == "", "nothing moves"
    for state in ("Ongoing", "PrepareCommit"):
        kafka.state = state
        assert "under way" in watched(kafka)
    kafka.state = "CompleteCommit"
    looker = FakeLooker(kafka)
    facts = looker.look()
    kafka.append(FRONTIER, record_key(0), encode(frontier(3)), [], 1)
    kafka.end(FRONTIER, 1, is_commit=True)
    assert "grows" in at_work(kafka, looker, facts, SETTINGS, 1)
