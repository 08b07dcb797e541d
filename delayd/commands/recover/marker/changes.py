"""Changes of all shards that Kafka has ended in part only: the first records of all shards, which
`delayd shards set` and `delayd topics create` write in one transaction of the first shard's
masters, and the last ones, by `delayd move`. They are no steps, and are ended before any step is
looked at.

    1. name what hangs in the frontier topic and was written by a producer of the first shard
    2. find the record of the same transaction in each partition of the topic
    3. decide for all of them at once, fence the first shard's masters, write the missing markers

Killed between two markers: the next run finds one of them, and decides the same.

Source: docs/design/lost-markers.md, "A change of all shards".
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from delayd.bus import Bus
from delayd.bus.raw import Place, ProducerEpoch, RawLog
from delayd.cluster.frontier_log import SeenFrontier
from delayd.cluster.topics import read_frontier, transactional_id
from delayd.commands.recover.marker.deciding import Fate, is_change, marker_for
from delayd.commands.recover.marker.pieces import Kind, Run, State, frontier_of, runs_of
from delayd.commands.recover.marker.survey import Survey
from delayd.errors import RecoverError
from replication.record import FrontierRecord
from replication.settings import Settings

SLACK_MS: Final = 60_000
"""Between the clocks of brokers, and the records of one transaction."""

Newest = Mapping[int, FrontierRecord]
"""The newest visible record of each partition of the frontier topic that has one."""


@dataclass(slots=True)
class Change:
    """A change of all shards that hangs somewhere."""

    producer: ProducerEpoch
    shards: int
    """How many there are by it."""
    runs: dict[int, Run]
    """Where its record lies, by partition of the frontier topic."""
    ends: Mapping[int, int]
    """Where these partitions ended then."""
    moved: str = ""
    """The realm to which it moves the cluster."""
    fate: Fate = Fate.LEFT
    problem: str = ""
    """Why it cannot be decided."""
    is_ended: bool = False
    """All markers are written."""

    @property
    def hanging(self) -> list[Run]:
        """Return what has no marker, in order of partitions."""
        return [run for _, run in sorted(self.runs.items()) if run.state is State.HANGING]

    def decide(self, newest: Newest) -> None:
        """Choose its fate. One outcome holds for all partitions; where no marker tells it, what is
        complete becomes visible, and what is not never was."""
        states = {run.state for run in self.runs.values()}
        is_mixed = any(len(run.records) > 1 for run in self.hanging)
        if is_mixed or {State.VISIBLE, State.ABORTED} <= states:
            self.problem = "other transactions lie behind it, whose markers are lost, too"
        elif State.ABORTED in states:
            self.fate = Fate.ABORTED
        elif State.VISIBLE in states or self._is_complete(newest):
            self.fate = Fate.COMMITTED
        elif self._has_nobody_gone_on(newest):
            self.fate = Fate.ABORTED
        else:
            self.problem = "of some shards its record is in no log, and shards are at work"

    def _is_complete(self, newest: Newest) -> bool:
        """Return whether its record is there of all shards, old and new. Those there were must be
        closed: else nobody knows how many there were."""
        before = _closed(newest)
        return before > 0 and self.runs.keys() == {*range(max(self.shards, before))}

    def _has_nobody_gone_on(self, newest: Newest) -> bool:
        """Return whether all shards there were are closed still, and no other has begun."""
        before = _closed(newest)
        return before > 0 and all(
            newest[shard].settings.shards != self.shards
            for shard in range(before, self.shards)
            if shard in newest
        )


def any_frontier(bus: Bus, topic: str, timeout_ms: int) -> SeenFrontier | None:
    """Return the newest visible record of the first shard that has one: shards may not agree on how
    many there are. None if there is no record, or no topic."""
    with closing(bus.cluster()) as kafka:
        states = kafka.describe([topic], timeout_ms)
    for shard in range(len(states[topic].partitions) if topic in states else 0):
        seen, _ = read_frontier(bus, topic, timeout_ms, shard, takes_moved=True)
        if seen is not None:
            return seen
    return None


def changes_of(
    bus: Bus, raw: RawLog, survey: Survey, settings: Settings, timeout_ms: int
) -> list[Change]:
    """Return the changes of all shards that hang, with their fates. Raises KafkaUnreachableError
    and FrontierError."""
    topic = settings.frontier.name
    ends = raw.end_offsets(topic, timeout_ms, committed=False)
    newest: dict[int, FrontierRecord] = {}
    found: dict[ProducerEpoch, tuple[int, int, str]] = {}
    for place, active in sorted(survey.open.items()):
        writers = {each.producer.id for each in active} & survey.producers[0]
        if place.topic != topic or not writers:
            continue
        newest = newest or _newest(bus, survey, timeout_ms)
        start = min(each.open_since or 0 for each in active)
        log = raw.read(place, start, ends[place.partition], writers, timeout_ms)
        for run in runs_of(place, Kind.FRONTIER, log):
            for epoch, each in run.records if run.state is State.HANGING else ():
                record = frontier_of(place, each, place.partition)
                if record is not None and is_change(record, newest.get(place.partition)):
                    found.setdefault(
                        ProducerEpoch(run.producer_id, epoch),
                        (record.settings.shards, each.append_ms, record.moved),
                    )
    changes = [
        Change(producer, shards, _runs(raw, survey, producer, at_ms, ends, timeout_ms), ends, moved)
        for producer, (shards, at_ms, moved) in sorted(found.items())
    ]
    for change in changes:
        change.decide(newest)
    return changes


def end_changes(
    bus: Bus,
    raw: RawLog,
    changes: Sequence[Change],
    survey: Survey,
    settings: Settings,
    timeout_ms: int,
) -> None:
    """Write the markers of these changes, which are decided. Raises RecoverError if somebody has
    written behind one meanwhile, and what the drivers raise."""
    topic = settings.frontier.name
    with closing(bus.transactional_producer(transactional_id(settings.realm, 0))) as producer:
        producer.init_transactions(timeout_ms)
        ends = raw.end_offsets(topic, timeout_ms, committed=False)
        for change in changes:
            for run in change.hanging:
                partition = run.place.partition
                if ends[partition] != change.ends[partition]:
                    raise RecoverError(
                        f"somebody writes to {run.place} meanwhile",
                        remedy="stop all nodes, and run this again: it goes on",
                    )
                active = survey.found.active.get(run.place, ())
                known = max((each.coordinator_epoch for each in active), default=-1)
                is_commit = change.fate is Fate.COMMITTED
                marker = marker_for(run, change.runs.values(), known, is_commit)
                raw.write_marker(run.place, marker, timeout_ms)
            change.is_ended = True


def _closed(newest: Newest) -> int:
    """Return how many shards there were, if all of them are closed; else 0."""
    before = newest[0].settings.shards if 0 in newest else 0
    are_closed = all(n in newest and newest[n].resharding > 0 for n in range(before))
    return before if are_closed else 0


def _newest(bus: Bus, survey: Survey, timeout_ms: int) -> dict[int, FrontierRecord]:
    seen = {
        shard: read_frontier(bus, survey.frontier, timeout_ms, shard, takes_moved=True)[0]
        for shard in sorted(survey.producers)
    }
    return {shard: each.record for shard, each in seen.items() if each is not None}


def _runs(
    raw: RawLog,
    survey: Survey,
    producer: ProducerEpoch,
    at_ms: int,
    ends: Mapping[int, int],
    timeout_ms: int,
) -> dict[int, Run]:
    """Return the runs in which a producer wrote with this epoch, by partition of the topic."""
    topic = survey.frontier
    since = raw.offsets_since(topic, max(0, at_ms - SLACK_MS), timeout_ms)
    found: dict[int, Run] = {}
    for partition, end in sorted(ends.items()):
        place = Place(topic, partition)
        start = since.get(partition, end)
        log = raw.read(place, start, end, {producer.id}, timeout_ms)
        for run in runs_of(place, Kind.FRONTIER, log):
            if any(epoch == producer.epoch for epoch, _ in run.records):
                found[partition] = run
    return found
