"""What Kafka holds of the steps of one shard whose markers may be lost. Reads, and writes nothing.

    1. ask every leader for the transactions that have no marker, once for all shards (`survey.py`)
    2. those that stay, and whose records a step of the shard's masters may have written, hang
    3. read the shard's partition of the frontier topic from before the first of them on, committed
       or not
    4. read every other partition to which one of these producers has written since

Where nothing hangs, the last two minutes before the newest frontier are read, so that a run of this
program that was killed is found, or more with `--since`.

Source: docs/design/lost-markers.md.
"""

from collections.abc import Callable, Container, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from delayd.bus import Bus
from delayd.bus.raw import Batch, Marker, Place, RawLog
from delayd.cluster.frontier_log import FrontierLog, SeenFrontier
from delayd.commands.recover.marker.deciding import Plan, plan_of
from delayd.commands.recover.marker.pieces import (
    Kind,
    Run,
    State,
    Step,
    Steps,
    is_of_step,
    kind_of,
    runs_of,
)
from delayd.commands.recover.marker.survey import Survey, surveyed
from delayd.commands.recover.marker.wholeness import lacks_some
from delayd.errors import NotInitialisedError
from replication.record import FrontierRecord
from replication.settings import Settings

BEFORE_MS: Final = 120_000
"""How far before the newest frontier is read where nothing hangs."""
SLACK_MS: Final = 60_000
"""Between clocks of a master, a broker and a producer, and the length of a step."""
BEFORE_OFFSETS: Final = 64
"""Of the frontier's partition: the record before the first step of interest, and some."""

Tell = Callable[[str, int, int], None]


class Foreign(NamedTuple):
    """An open transaction of somebody else, which is left alone."""

    place: Place
    since: int
    producer_id: int


@dataclass(slots=True)
class Facts:
    """What was found of a shard, and what is to be done about it."""

    last: FrontierRecord
    """The newest visible frontier."""
    end: int
    """Of the frontier's partition, the high watermark."""
    steps: Steps
    plan: Plan
    ends: dict[Place, int] = field(default_factory=dict)
    """Up to where the partitions that hang were read."""
    foreign: list[Foreign] = field(default_factory=list)
    refused: dict[Place, str] = field(default_factory=dict)
    """Partitions that may not be looked at."""


class Looker:
    """Looks at one shard of a cluster, as often as it is asked."""

    def __init__(
        self,
        bus: Bus,
        raw: RawLog,
        settings: Settings,
        *,
        since_ms: int | None,
        timeout_ms: int,
        tell: Tell,
        shard: int = 0,
    ) -> None:
        self.shard = shard
        self._bus = bus
        self._raw = raw
        self._settings = settings
        self._since_ms = since_ms
        self._timeout_ms = timeout_ms
        self._tell = tell
        self._hang: set[tuple[Place, int, int]] = set()
        """The first records of the runs that hang."""

    def look(self, survey: Survey | None = None) -> Facts:
        """Return the facts as they are now, or were at a survey just taken. Raises
        KafkaUnreachableError, FrontierError, and TopicMismatchError for what brokers refuse."""
        seen, end = self.last()
        last = seen.record
        if survey is None:
            self._tell("asking the leaders of partitions", 0, 1)
            survey = surveyed(self._raw, self._settings, self._timeout_ms)
        found, ours = survey.found, survey.producers[self.shard]
        hanging, foreign = self._hanging(survey)
        moments = [_moment(run) for run in hanging]
        asked_ms = seen.append_ms - BEFORE_MS if self._since_ms is None else self._since_ms
        since_ms = min([asked_ms, *(each - SLACK_MS for each in moments)])
        self._hang = {_first_of(run) for run in hanging}
        begin = {run.place: run.records[0][1].offset for run in hanging}
        steps, hung = self._steps(survey, begin, survey.written_since(ours, since_ms), since_ms)
        if any(lacks_some(step, steps) and _is_hidden(step) for step in steps.by_name.values()):
            # Kafka has forgotten who wrote to a partition long ago.
            steps, hung = self._steps(survey, begin, {*found.active}, since_ms)
        known = {
            place: max((each.coordinator_epoch for each in active), default=-1)
            for place, active in found.active.items()
        }
        plan = plan_of(steps, hung, last, known, is_all_seen=not found.refused)
        plan.problems += survey.changes_hanging(self.shard)
        ends = {run.place: self._ends(run.place) for run in hung}
        return Facts(last, end, steps, plan, ends, foreign, dict(found.refused))

    def last(self) -> tuple[SeenFrontier, int]:
        """Return the newest visible frontier, and the high watermark of its partition."""
        topic = self._settings.frontier.name
        with closing(FrontierLog(self._bus, topic, self.shard, takes_moved=True)) as log:
            seen = log.open(self._timeout_ms)
            if seen is None:
                raise NotInitialisedError(f"{self.frontier} holds no frontier")
            return seen, log.high_watermark(self._timeout_ms)

    def still_hangs(self, run: Run, facts: Facts) -> bool:
        """Return whether nothing has come behind what was read of a partition, and no master has
        taken a step."""
        is_still = self.frontier_end() == facts.end
        return is_still and self._ends(run.place) == facts.ends[run.place]

    def frontier_end(self) -> int:
        """Return where the frontier's partition ends now."""
        return self._ends(self.frontier)

    @property
    def frontier(self) -> Place:
        """The shard's partition of the frontier topic."""
        return Place(self._settings.frontier.name, self.shard)

    def _hanging(self, survey: Survey) -> tuple[list[Run], list[Foreign]]:
        """Return what hangs and may be of a step of the shard, and other open transactions in the
        cluster's own topics and among its targets, which are of no shard."""
        hanging, foreign = [], []
        ours = survey.producers[self.shard]
        for place, active in sorted(survey.open.items()):
            kind = kind_of(place.topic, self._settings)
            if kind is Kind.FRONTIER and place != self.frontier:
                continue  # of another shard
            for each in sorted(active):
                assert each.open_since is not None, "only open ones are asked for"
                if each.producer.id not in ours and survey.is_known(each.producer.id):
                    continue
                end = self._ends(place)
                log = self._read(place, each.open_since, end, {each.producer.id})
                runs = list(runs_of(place, kind, log))
                run = runs[-1] if runs and runs[-1].state is State.HANGING else None
                if run is None or not run.records:
                    continue
                written = all(is_of_step(kind, record) for _, record in run.records)
                if each.producer.id in ours and written:
                    hanging.append(run)
                elif kind is not Kind.TARGET or each.producer.id in ours:
                    foreign.append(Foreign(place, each.open_since, each.producer.id))
        return hanging, foreign

    def _frontiers(self, survey: Survey, since_ms: int) -> list[Run]:
        place = self.frontier
        first = self._raw.start_offsets(place.topic, self._timeout_ms)[self.shard]
        since = self._since(place.topic, since_ms)
        end = self._ends(place)
        start = max(first, since.get(self.shard, end) - BEFORE_OFFSETS)
        # Also what the first shard's producers wrote: the records that began other shards.
        writers = survey.producers[self.shard] | survey.producers[0]
        runs = runs_of(place, Kind.FRONTIER, self._read(place, start, end, writers))
        return [run for run in runs if self._is_over_or_hangs(run)]

    def _steps(
        self, survey: Survey, begin: dict[Place, int], places: set[Place], since_ms: int
    ) -> tuple[Steps, list[Run]]:
        """Return what steps wrote to these partitions, and the runs that hang: those from `begin`
        on, at least."""
        ours = survey.producers[self.shard]
        frontiers = self._frontiers(survey, since_ms)
        steps = Steps(frontiers, self.shard, since_ms, ours)
        hung = [run for run in frontiers if run.state is State.HANGING]
        wanted = sorted(
            place for place in {*places, *begin} if place.topic != self._settings.frontier.name
        )
        for number, place in enumerate(wanted):
            self._tell("reading what steps wrote", number, len(wanted))
            end = self._ends(place)
            since = self._since(place.topic, since_ms)
            start = min(since.get(place.partition, end), begin.get(place, end))
            kind = kind_of(place.topic, self._settings)
            for run in runs_of(place, kind, self._read(place, start, end, ours)):
                if not self._is_over_or_hangs(run):
                    continue
                steps.add(run)
                if run.state is State.HANGING:
                    hung.append(run)
        steps.compare_copies()
        return steps, hung

    def _is_over_or_hangs(self, run: Run) -> bool:
        """Return whether a run is not of a step that a node is taking now."""
        return run.state is not State.HANGING or _first_of(run) in self._hang

    def _read(
        self, place: Place, start: int, end: int, producers: Container[int]
    ) -> Iterator[Batch | Marker]:
        return self._raw.read(place, start, end, producers, self._timeout_ms)

    def _since(self, topic: str, since_ms: int) -> dict[int, int]:
        """Return from where on a topic may hold what steps wrote since then, by partition."""
        at_ms = max(0, since_ms - SLACK_MS)  # Kafka has other meanings for negative ones
        return self._raw.offsets_since(topic, at_ms, self._timeout_ms)

    def _ends(self, place: Place) -> int:
        ends = self._raw.end_offsets(place.topic, self._timeout_ms, committed=False)
        return ends[place.partition]


def _is_hidden(step: Step) -> bool:
    """Return whether a part of a step is not visible."""
    return any(piece.state is State.HANGING for piece in step.pieces) or (
        any(piece.state is State.ABORTED for piece in step.pieces)
        and any(piece.state is State.VISIBLE for piece in step.pieces)
    )


def _first_of(run: Run) -> tuple[Place, int, int]:
    """Return place, producer and offset of a run's first record; offset -1 if it has none."""
    offset = run.records[0][1].offset if run.records else -1
    return run.place, run.producer_id, offset


def _moment(run: Run) -> int:
    """Return the earliest time of a run's records, Unix ms."""
    return min(record.append_ms for _, record in run.records)
