"""A made-up log of steps, for tests of what `delayd recover marker` makes of it.

Each step writes to two targets, to the buffer and the dead letters, and its frontier record.
Source: docs/design/lost-markers.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

from cluster_settings import LANES, PARTITIONS, SETTINGS

from delayd.bus import Headers, Record
from delayd.bus.raw import Batch, Marker, Place, ProducerEpoch
from delayd.commands.recover.marker.deciding import Plan, plan_of
from delayd.commands.recover.marker.pieces import Run, State, Steps, kind_of, runs_of
from replication.frontier import first_frontier
from replication.record import FrontierRecord, StepCounts, encode, record_key

MASTER = ProducerEpoch(7, 3)
A, B = Place("a", 0), Place("b", 0)
FRONTIER, BUFFER = Place("delayd-frontier", 0), Place("delayd-buffer", 1)
DEAD, RECEIPTS = Place("delayd-dead", 0), Place("delayd-receipts", 0)
COMMIT, ABORT, LOST = True, False, None
NOTHING: Mapping[str, int] = {}
EACH = 2
"""Messages of a step for each target."""


def record(place: Place, offset: int, headers: Headers, value: bytes, key: bytes = b"") -> Record:
    return Record(place.partition, offset, 0, 1_000 + offset, key, value, headers)


def frontier(
    step: int, *, delivered: Sequence[str] = (), own: int = -1, counts: Mapping[str, int] = NOTHING,
    **fields: object,
) -> FrontierRecord:  # fmt: skip
    """The record of a step; `own` is R of the buffer's partition."""
    reached = replace(
        first_frontier(0, PARTITIONS, LANES),
        step=step,
        offsets=(100 * step,) * 2,
        own_writes=(-1, own),
    )
    digest = sum(crc32(source.encode()) for source in delivered)
    found = StepCounts(delivered=len(delivered), **counts)
    made = FrontierRecord(reached, "n1/x", now_of(step), found, digest, SETTINGS)
    return replace(made, **fields)  # type: ignore[arg-type]


def now_of(step: int) -> int:
    return 1_000_000 + step


def sources(place: Place, step: int) -> list[str]:
    return [f"{0 if place == A else 1}/{100 * step + n}" for n in range(EACH)]


class Log:
    """Partitions, to which steps write."""

    def __init__(self) -> None:
        self.places: dict[Place, list[Batch | Marker]] = {}
        self.ends: dict[Place, int] = {}
        self.own = -1
        """R: the last offset that was written to the buffer, also if it is lost."""

    def write(
        self, place: Place, records: Iterable[tuple[Headers, bytes]], by: ProducerEpoch = MASTER
    ) -> None:
        key = record_key(0) if place == FRONTIER else b""
        at = self.ends.get(place, 0)
        made = [record(place, at + n, *each, key) for n, each in enumerate(records)]
        self.ends[place] = at + len(made)
        self.places.setdefault(place, []).append(Batch(by, True, at, made))
        if place == BUFFER:
            self.own = at + len(made) - 1

    def end(self, place: Place, how: bool | None, by: ProducerEpoch = MASTER) -> None:
        if how is not None:
            at = self.ends.get(place, 0)
            self.ends[place] = at + 1
            self.places.setdefault(place, []).append(Marker(by, how, 5, at))

    def target(
        self, place: Place, step: int, how: bool | None, by: ProducerEpoch = MASTER,
        now_ms: int | None = None,
    ) -> None:  # fmt: skip
        """The deliveries of a step."""
        self.write(place, [delivery(step, each, now_ms) for each in sources(place, step)], by)
        self.end(place, how, by)

    def step(
        self, number: int, a: bool | None, b: bool | None, frontier_: bool | None, *,
        by: ProducerEpoch = MASTER, now_ms: int | None = None, counts: Mapping[str, int] = NOTHING,
    ) -> None:  # fmt: skip
        """A whole step."""
        self.target(A, number, a, by, now_ms)
        self.target(B, number, b, by, now_ms)
        made = full(number, own=self.own, counts=counts)
        if now_ms is not None:
            made = replace(made, now_ms=now_ms)
        self.write(FRONTIER, [([], encode(made))], by)
        self.end(FRONTIER, frontier_, by)

    def bare(self, number: int, by: ProducerEpoch = MASTER) -> None:
        """A step that writes nothing but its frontier record."""
        self.write(FRONTIER, [([], encode(frontier(number)))], by)
        self.end(FRONTIER, COMMIT, by)

    def steps(self) -> Steps:
        runs: dict[Place, list[Run]] = {
            place: list(runs_of(place, kind_of(place.topic, SETTINGS), log))
            for place, log in self.places.items()
        }
        frontiers = runs.pop(FRONTIER, [])
        steps = Steps(frontiers, 0, 0, {MASTER.id})
        self.hung = [run for run in frontiers if run.state is State.HANGING]
        for of_place in runs.values():
            for run in of_place:
                steps.add(run)
                if run.state is State.HANGING:
                    self.hung.append(run)
        steps.compare_copies()
        return steps

    def plan(self, last: FrontierRecord, *, is_all_seen: bool = True) -> Plan:
        steps = self.steps()
        return plan_of(steps, self.hung, last, {}, is_all_seen=is_all_seen)


def delivery(step: int, source: str, now_ms: int | None = None) -> tuple[Headers, bytes]:
    return [
        ("delayd-due", b"1"),
        ("delayd-fired", b"%d" % (now_ms or now_of(step))),
        ("delayd-source", source.encode()),
    ], b"x"


def full(step: int, **fields: Any) -> FrontierRecord:
    return frontier(step, delivered=sources(A, step) + sources(B, step), **fields)


def endings(plan: Plan) -> dict[Place, bool]:
    return {run.place: marker.is_commit for run, marker in plan.endings}


def written_again(plan: Plan) -> set[Place]:
    return {dealt.piece.place for dealt in plan.again}
