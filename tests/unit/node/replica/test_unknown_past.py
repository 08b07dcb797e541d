"""A replica that was rebuilt from a log without its beginning decides like one that read all of it.

Random logs, in which ids, cancels, redrives and continuations meet across the cut.
Source: docs/design/trimmed.md.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cluster_settings import LANES, PARTITIONS
from exporting_node import PROOF_KEY, SETTINGS, cancel, continued, cut, schedule
from one_node import open_replica

from delayd.bus import Headers, Position, Record
from delayd.bus.murmur2 import partition_of
from delayd.errors import BufferPositionError
from delayd.node.replica.cancel_marks import cancel_marker_of
from delayd.node.replica.ingest_batch import IngestBatch
from delayd.node.replica.unknown_past import past_of
from delayd.request import Request, RequestLimits, continuation, message_body, parse
from delayd.wheel import Frame, FrameKind
from delayd.wheel.id_memory import NO_TOPICS, First, Remembered, id_name
from delayd.wheel.kills import Kill
from replication.frontier import Frontier
from replication.ids import NOTHING, WAITS, IdState, Reservation
from replication.ingest import LogState, PendingReply, first_of_id
from replication.rank import Rank
from replication.rules import Barrier, Rules
from replication.settings import (
    AT_LEAST_ONCE,
    DEBOUNCE_RULES,
    RESCHEDULE_RULES,
    RULES_VERSION,
    SMOOTHING_RULES,
)
from replication.trimmed import UNTRIMMED, Beginning, horizon_of, missing
from replication.verdict import judge

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
DAY_MS = 24 * HOUR_MS
T0_MS = 1_000 * DAY_MS
LIMITS = RequestLimits.of(SETTINGS, PROOF_KEY)
RULES = Rules(RULES_VERSION)
IDS = [name for name in map(str, range(20)) if partition_of(name.encode(), PARTITIONS) == 0][:2]
LOGS = 1_000
GAPS_MS = (1_000, 20 * MINUTE_MS, 3 * HOUR_MS, 20 * HOUR_MS)
DELAYS_MS = (0, MINUTE_MS, HOUR_MS, 20 * HOUR_MS, DAY_MS)


class Ids:
    """A memory of ids that forgets nothing."""

    def __init__(self) -> None:
        self.states: dict[tuple[int, bytes], Remembered] = {}
        self.kills: dict[Rank, Kill] = {}

    def recall(self, partition: int, name: bytes) -> Remembered:
        return self.states.get((partition, name), Remembered(NOTHING, {}))

    def remember(
        self,
        partition: int,
        name: bytes,
        state: IdState,
        keep_ms: int,
        topics: Mapping[int, str] = NO_TOPICS,
        before_ms: int = -1,
    ) -> None:
        self.states[partition, name] = Remembered(state, dict(topics))

    def remember_firsts(self, firsts: Mapping[tuple[int, bytes], First], keep_ms: int) -> None:
        for (partition, name), first in firsts.items():
            self.remember(partition, name, first_of_id(*first[:4]), keep_ms)

    def kill(self, rank: Rank) -> Kill | None:
        return self.kills.get(rank)

    def note_kills(self, kills: Mapping[Rank, Kill]) -> None:
        self.kills.update(kills)


class Ingest:
    """One replica's ingest of partition 0."""

    def __init__(
        self, covered: Frontier | None = None, begins: tuple[Beginning, ...] | None = None
    ) -> None:
        self.ids = Ids()
        self._covered = covered
        self._past = past_of(SETTINGS, begins or ())
        self._states = [LogState(0, 0)] * PARTITIONS
        self.stored: list[Frame] = []

    def take(self, record: Record) -> None:
        memory = cast(Any, self.ids)
        batch = IngestBatch(memory, SETTINGS, self._states, self._covered, RULES, self._past)
        batch.add(record, parse(record, LIMITS))
        batch.apply()
        self._states = batch.states
        self.stored += cast(list[Frame], batch.frames)

    def holds(self, frontier: Frontier) -> dict[tuple[int, int], Any]:
        """What is not done and what is not answered, each verdict as a master would give it."""
        held: dict[tuple[int, int], Any] = {}
        for frame in self.stored:
            if frame.kind == FrameKind.MESSAGE:
                if not frontier.covers(frame.lane, Rank(*frame[:3])):
                    held[frame.offset, frame.kind] = frame
            elif frame.offset >= frontier.offsets[0]:
                is_marker = frame.kind == FrameKind.CANCEL_MARKER
                held[frame.offset, frame.kind] = (
                    self._judged(frame, frontier) if is_marker else frame
                )
        return held

    def _judged(self, frame: Frame, frontier: Frontier) -> Any:
        marker, id, _ = cancel_marker_of(frame)
        refused = {rank.offset for rank, kill in self.ids.kills.items() if kill.is_refused}
        settled = self.ids.recall(0, id_name(id)).state.settled
        judged = judge(marker, frontier, refused, SETTINGS.id_memory_ms, settled)
        since_ms = marker.as_of_ms - SETTINGS.id_memory_ms
        done = [m for m in judged.done if m.due_ms >= since_ms]
        if not any(m in marker.killed or m.due_ms >= since_ms for m in judged.killed):
            # What an earlier marker had killed, so long ago that a node may have forgotten it.
            return "nothing" if not done else judged.outcome, (), done
        return judged.outcome, judged.killed, done


class Log:
    """A partition, made beside the replica that reads all of it."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(f"past: {seed}")
        self.has_redrives = self.chance.random() < 0.3
        self.debounces = seed % 2 == 1
        self.records: list[Record] = []
        self.lived = Ingest()
        self._continued: set[int] = set()
        at_ms = T0_MS
        for offset in range(self.chance.randint(12, 45)):
            gaps = (*GAPS_MS, 14 * DAY_MS) if self.has_redrives else GAPS_MS
            at_ms += self.chance.randrange(self.chance.choice(gaps))
            record = self._record(offset, at_ms)._replace(append_ms=at_ms, partition=0)
            self.records.append(record)
            self.lived.take(record)

    def _record(self, offset: int, at_ms: int) -> Record:
        chance, id, kind = self.chance, self.chance.choice(IDS), self.chance.random()
        due_ms = at_ms + chance.choice(DELAYS_MS)
        if kind < 0.2:
            return cancel(offset, id)
        if kind < 0.3:
            return schedule(offset, due_ms, id=id, op="replace")
        if kind < 0.45 and self.has_redrives:
            more: Headers = [("delayd-redrive", b"0/%d" % chance.randrange(2))]
            return schedule(offset, due_ms, id=chance.choice([None, id]), more=more)
        if kind < 0.65 and (retried := self._retried(at_ms)) is not None:
            self._continued.add(retried.offset)
            return continued(retried, offset, at_ms + chance.choice([10_000, 30_000]))
        if kind < 0.75 and self.debounces:
            return debounce(offset, id, chance.choice(DELAYS_MS), chance.choice(DELAYS_MS))
        # Now and then the very same request again.
        due_ms = due_ms // HOUR_MS * HOUR_MS if chance.random() < 0.3 else due_ms
        return schedule(offset, due_ms, id=id, value=chance.choice([b"v", b"%d" % offset]))

    def _retried(self, at_ms: int) -> Record | None:
        """A request that a master may requeue: nobody had cancelled it when it was due."""
        for frame in reversed(self.lived.stored):
            record: Record = self.records[frame.offset]
            kill = self.lived.ids.kill(Rank(*frame[:3]))
            if (
                frame.kind == FrameKind.MESSAGE
                and not {"delayd-continues", "delayd-max-wait"} & dict(record.headers).keys()
                and frame.offset not in self._continued
                and at_ms - 2 * HOUR_MS < frame.due_ms <= at_ms
                and (kill is None or self.records[kill.marker_offset].append_ms >= frame.due_ms)
            ):
                return record
        return None


def debounce(offset: int, id: str, delay_ms: int, more_ms: int) -> Record:
    asked = schedule(offset, 0, id=id, op="debounce", value=b"%d" % offset)
    headers: Headers = [each for each in asked.headers if each[0] != "delayd-due"]
    headers.append(("delayd-delay", b"%dms" % delay_ms))
    headers.append(("delayd-max-wait", b"%dms" % (delay_ms + more_ms)))
    return asked._replace(headers=headers)


def rebuilt(log: Log, first: int, reached: int) -> tuple[Frontier, Ingest] | str:
    """Rebuild from `first` on, at a frontier that has come to `reached`; or why it cannot be."""
    records, append_ms = log.records, log.records[first].append_ms
    before_ms = records[reached - 1].append_ms
    cursor_ms = before_ms + log.chance.randrange(records[reached].append_ms - before_ms + 1)
    cursors = (Rank(cursor_ms, 0, 0),) * LANES
    frontier = Frontier(0, cursors, (reached, 0), (reached - 1, -1), 1, 1)
    begins = Beginning(first, append_ms, len(records), log.has_redrives)
    due_ms = horizon_of(begins, SETTINGS).due_ms
    sure = (record.offset for record in records if record.append_ms > due_ms)
    begins = begins._replace(sure_offset=next(sure, len(records)))
    if missing(0, first, begins, frontier, RULES, SETTINGS):
        return "too early"
    ingest = Ingest(frontier, (begins, UNTRIMMED))
    try:
        for record in records[first:]:
            ingest.take(record)
    except BufferPositionError:
        return "unknown"
    return frontier, ingest


def test_a_rebuilt_replica_holds_and_answers_what_one_does_that_read_everything() -> None:
    """docs/design/trimmed.md, Why nothing else is needed; What decides later.

    Rules: trimmed-unknown
    """
    became: Counter[str] = Counter()
    for seed in range(LOGS):
        log = Log(seed)
        count = len(log.records)
        first, reached = log.chance.randrange(1, count // 2), log.chance.randrange(2, 8)
        found = rebuilt(log, first, count - reached)
        if isinstance(found, str):
            became[found] += 1
            continue
        frontier, ingest = found
        became["redrives" if log.has_redrives else "rebuilt"] += 1
        is_run = any("delayd-max-wait" in dict(each.headers) for each in log.records[first:])
        became["debounces"] += is_run
        became["may be live"] += any(
            m.digest == b"?" for r in ingest.ids.states.values() for m in r.state.live
        )
        assert ingest.holds(frontier) == log.lived.holds(frontier), f"log {seed}"
    assert min(became.values()) > 20 and len(became) == 6, became


@pytest.mark.parametrize("what", ["cancel", "continuation"])
def test_what_a_trimmed_record_decides_and_no_step_has_passed_stops_the_node(what: str) -> None:
    """docs/design/trimmed.md, What decides later.

    Rules: trimmed-unknown
    """
    due_ms = T0_MS + DAY_MS
    trimmed = schedule(0, due_ms, id=IDS[0], append_ms=T0_MS)
    asked_ms = due_ms + (30 * MINUTE_MS if what == "cancel" else 1_000)
    records = [
        schedule(1, T0_MS, id=IDS[1], append_ms=T0_MS),
        cancel(2, IDS[0], append_ms=asked_ms),
        continued(trimmed, 3, asked_ms + 10_000)._replace(append_ms=asked_ms + 500),
    ]
    reached = 2 if what == "cancel" else 3
    cursors = (Rank(due_ms + 6 * HOUR_MS, 0, 0),) * LANES
    frontier = Frontier(0, cursors, (reached, 0), (-1, -1), 1, 1)
    begins = Beginning(1, T0_MS, 4, has_letters=False)
    assert missing(0, 1, begins, frontier, RULES, SETTINGS) is None
    ingest = Ingest(frontier, (begins, UNTRIMMED))
    for record in records[: reached - 1]:
        ingest.take(record)
    with pytest.raises(BufferPositionError, match=f"what becomes of 0/{reached}"):
        ingest.take(records[reached - 1])


@pytest.mark.parametrize("lack", ["record", "offset", "time", "rules", "guarantee"])
def test_a_log_is_not_enough_while_a_part_of_the_proof_is_missing(lack: str) -> None:
    """docs/design/trimmed.md, When it starts.

    Rules: trimmed-proved
    """
    begins = Beginning(10, T0_MS, 10, has_letters=True)
    horizon = horizon_of(begins, SETTINGS)
    until_ms = max(horizon.ids_ms, horizon.redrives_ms)
    cursor_ms = until_ms if lack == "time" else until_ms + 1
    cursors = (Rank(cursor_ms, 0, 0),) * LANES
    offsets = (9 if lack == "offset" else 10, 0)
    frontier = Frontier(0, cursors, offsets, (-1, -1), 1, 1)
    guarantee = AT_LEAST_ONCE if lack == "guarantee" else SETTINGS.guarantee
    settings = replace(SETTINGS, guarantee=guarantee)
    rules = Rules(3) if lack == "rules" else RULES
    known = None if lack == "record" else begins
    found = missing(0, 10, known, frontier, rules, settings)
    assert found is not None
    assert found.until_ms == (until_ms if lack == "time" else None)


def test_a_log_is_enough_once_nothing_is_missing() -> None:
    """docs/design/trimmed.md, When it starts."""
    begins = Beginning(10, T0_MS, 10, has_letters=False)
    cursors = (Rank(horizon_of(begins, SETTINGS).ids_ms + 1, 0, 0),) * LANES
    frontier = Frontier(0, cursors, (10, 0), (-1, -1), 1, 1)
    assert missing(0, 10, begins, frontier, RULES, SETTINGS) is None


def test_a_replica_begins_where_a_trimmed_log_does_and_remembers_it(tmp_path: Path) -> None:
    """docs/design/trimmed.md, Why nothing else is needed; Afterwards."""
    settings = replace(SETTINGS, rules_version=SMOOTHING_RULES)
    replica = open_replica(tmp_path, settings)
    begins = (Beginning(10, T0_MS, 12, has_letters=True), UNTRIMMED)
    barrier = Barrier(0, 4, RULES_VERSION)
    replica.begin_at(begins, [barrier])
    seen = cut(5, offsets=(10, 0), settings=settings)
    replica.observe(seen._replace(record=replace(seen.record, barriers=(barrier,))))
    assert replica.ingested == (10, 0)
    assert replica.positions == {0: Position(10, -1), 1: Position(0, -1)}
    replica.take([schedule(10, T0_MS, append_ms=T0_MS)])
    replica.checkpoint()
    replica.close()
    replica = open_replica(tmp_path, settings)
    assert (replica.began, replica.ingested) == (begins, (11, 0))
    with pytest.raises(BufferPositionError, match=r"what becomes of 0/11"):
        replica.take([schedule(11, T0_MS, id=IDS[0], append_ms=T0_MS)])
    replica.close()


def test_a_debounce_behind_a_reschedule_of_what_was_trimmed_needs_a_wheel() -> None:
    """It would take over what nobody here knows: its continuation is refused everywhere else."""
    past = past_of(SETTINGS, (Beginning(10, T0_MS, 10**7, False), UNTRIMMED))
    record = schedule(21, T0_MS, id="3")._replace(append_ms=T0_MS, partition=0)
    after = LogState(21, T0_MS)
    decision = cast(Any, SimpleNamespace(state=after, reply=PendingReply.NONE))
    settled = Frontier(0, (Rank(10**15, 0, 0),) * LANES, (10**6, 0), (0, 0), 1, 1)
    before = IdState(reserved=Reservation(20, (), is_whole=False))
    with pytest.raises(BufferPositionError, match="0/21"):
        past.hides_debounce(record, T0_MS, decision, before, settled)
    whole = before._replace(reserved=Reservation(20, ()))
    assert past.hides_debounce(record, T0_MS, decision, whole, settled)


@pytest.mark.parametrize("version", [RESCHEDULE_RULES - 1, DEBOUNCE_RULES])
def test_what_is_stored_of_a_deferral_by_older_rules_is_read_by_older_releases(
    version: int,
) -> None:
    """They know no debounces; a node may be put back to one of them."""
    ids, states = Ids(), [LogState(0, 0)] * PARTITIONS
    first = schedule(0, T0_MS, id=IDS[0])._replace(append_ms=T0_MS, partition=0)
    request = parse(first, LIMITS)
    assert isinstance(request, Request)
    written = continuation(
        message_body(request),
        partition=0,
        offset=0,
        rank_due_ms=T0_MS,
        next_due_ms=T0_MS + HOUR_MS,
        limits=LIMITS,
        is_retry=False,
    )
    deferred = Record(0, 1, 0, T0_MS, written.key, written.value, written.headers)
    rules = Rules(version)
    for record in (first, deferred):
        batch = IngestBatch(cast(Any, ids), SETTINGS, states, None, rules, past_of(SETTINGS, ()))
        batch.add(record, parse(record, replace(LIMITS, rules=rules)))
        batch.apply()
        states = batch.states
    [remembered] = ids.states.values()
    [live] = remembered.state.live
    assert live.offset == 1 and live.since_ms == (WAITS if version >= DEBOUNCE_RULES else 0)
