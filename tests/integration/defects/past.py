"""What a cluster at rest has left in its topics, sorted by what it is, to choose victims from.

Every victim is handed out once, so that many defects can be planted at once without touching each
other. What became of a request is what cross_check.py says.
"""

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from chaos.cross_check import fate_of, replay
from chaos.evidence import read_all
from chaos.records import Logged
from chaos.reference_model import Message

Receipt = dict[str, Any]

IDLE_AROUND: Final = 3
"""A step without work that is changed has so many such steps before and after it."""

STEPS_APART: Final = 5
"""Between two steps in which something is planted."""


class Told(NamedTuple):
    """A receipt: its record and what it says."""

    row: Logged
    says: Receipt


@dataclass(frozen=True, slots=True)
class Victim:
    """A message with all that there is about it."""

    message: Message
    fate: str
    receipts: tuple[Told, ...]
    """With its own source."""
    letters: tuple[Logged, ...]
    is_named: bool
    """Is any receipt about its id, or names it? Its own are not counted."""

    @property
    def source(self) -> str:
        """Of the user's own request."""
        return f"{self.message.record.partition}/{self.message.record.offset}"

    @property
    def id(self) -> str | None:
        """As asked."""
        return self.message.record.fields.get("id")

    @property
    def delivery(self) -> Logged:
        """Its only one."""
        [row] = self.message.deliveries
        return row

    @property
    def was_retried(self) -> bool:
        """Was it delivered or given up as a continuation?"""
        rows = (*self.message.deliveries, *self.letters)
        return any("origin" in row.fields for row in rows)


class Step(NamedTuple):
    """A frontier record."""

    row: Logged
    says: dict[str, Any]

    @property
    def is_idle(self) -> bool:
        """Did it do nothing?"""
        counts: dict[str, int] = self.says["counts"]
        return not any(counts.values())


class Past:
    """Everything that was read, once; of the frontier what comes before the cut, and the cut."""

    def __init__(
        self, bootstrap: str, prefix: str, targets: tuple[str, ...], cut_offset: int
    ) -> None:
        self.prefix = prefix
        self.targets = targets
        self.steps = [
            Step(row, json.loads(row.value or b""))
            for row in read_all(bootstrap, [f"{prefix}frontier"])
            if row.offset <= cut_offset
        ]
        self.settings: dict[str, Any] = self.steps[-1].says["settings"]
        self.buffer = read_all(bootstrap, [f"{prefix}buffer"])
        model = replay(self.buffer, self.settings)
        family, messages = model.family_of, model.messages.values()
        for row in read_all(bootstrap, targets):
            family[row.fields["source"]].deliveries.append(row)
        letters: dict[str, list[Logged]] = defaultdict(list)
        for row in read_all(bootstrap, [f"{prefix}dead"]):
            message = family[row.fields["source"]]
            message.letters.append(row)
            letters[source_of(message.record)].append(row)
        self.receipts = [
            Told(row, json.loads(row.value or b""))
            for row in read_all(bootstrap, [f"{prefix}receipts"])
        ]
        told: dict[str, list[Told]] = defaultdict(list)
        about: dict[str, set[str]] = defaultdict(set)
        for receipt in self.receipts:
            told[receipt.says["source"]].append(receipt)
            about[receipt.says["id"]].add(receipt.says["source"])
        self.victims = [
            Victim(
                message,
                fate_of(message, [self.steps[-1].says]),
                tuple(told[source]),
                tuple(letters[source]),
                bool(about[message.record.fields.get("id", "")] - {source}),
            )
            for message in messages
            for source in [source_of(message.record)]
        ]
        self.of_source = {victim.source: victim for victim in self.victims}
        self.of_id: dict[str, list[Victim]] = defaultdict(list)
        for victim in self.victims:
            self.of_id[victim.id or ""].append(victim)
        self._used: set[str] = set()
        self.release()

    def release(self) -> None:
        """Everything may be taken again."""
        self._used.clear()
        self._idle = self._idle_steps()

    def take(self, fate: str, condition: Callable[[Victim], bool] = lambda _: True) -> Victim:
        """A message of this fate that was not taken before."""
        for victim in self.victims:
            if victim.fate == fate and victim.source not in self._used and condition(victim):
                self._used.add(victim.source)
                return victim
        raise AssertionError(f"the past has no {fate} message left of the kind that is asked for")

    def take_mark(self, verdict: str, condition: Callable[[Told], bool] = lambda _: True) -> Told:
        """The only receipt of a cancel or replace, whose id no other defect is about."""
        for told in self.receipts:
            says = told.says
            whose = {says["source"], *(victim.source for victim in self.of_id[says["id"]])}
            if (
                says["verdict"] == verdict
                and says["op"] in ("cancel", "replace")
                and not whose & self._used
                and condition(told)
            ):
                self._used |= whose
                return told
        raise AssertionError(f"the past has no {verdict} receipt left of the kind asked for")

    def has_free_step(self, told: Told) -> bool:
        """Is nothing planted in the step that gave this receipt, or near it? What a wrong frontier
        tells of the time that was reached is not believed."""
        return all(not _around(at) & self._used for at in self._steps_at(told.says["at_ms"]))

    def keep_step(self, told: Told) -> None:
        """Nothing more is planted near the step that gave this receipt."""
        self._used |= {f"step {at}" for at in self._steps_at(told.says["at_ms"])}

    def _steps_at(self, now_ms: int) -> list[int]:
        return [at for at, step in enumerate(self.steps) if step.says["now_ms"] == now_ms]

    def take_pair(self) -> tuple[Victim, Victim]:
        """Two neighbours in a target partition that one step delivered in order. Nothing is planted
        in that step or near it: what a wrong frontier tells of lateness is not believed."""
        placed = sorted(
            (row.topic, row.partition, row.offset, victim.source)
            for victim in self.victims
            if victim.fate == "delivered" and not victim.was_retried
            for row in victim.message.deliveries
        )
        for (*_, one), (*_, two) in itertools.pairwise(placed):
            first, second = self.of_source[one], self.of_source[two]
            ours, theirs = first.delivery, second.delivery
            at = self._step_of(ours)
            if (
                not {one, two, *_around(at)} & self._used
                and (ours.topic, ours.partition) == (theirs.topic, theirs.partition)
                and ours.fields["fired"] == theirs.fields["fired"]
                and first.message.newest.rank < second.message.newest.rank
                and all(self._came_in_time(victim) for victim in (first, second))
            ):
                self._used |= {one, two, f"step {at}"}
                return first, second
        raise AssertionError("no two neighbours of one step")

    def take_idle_step(self) -> Step:
        """A step without work among others without work."""
        return next(self._idle)

    def take_working_step(self) -> Step:
        """A step that delivered something, between others of its term; not the one before."""
        for at, step in enumerate(self.steps):
            if (
                step.says["counts"]["delivered"] > 1
                and self.steps[at - 1].says["term"] == self.steps[at + 1].says["term"]
                and not _around(at) & self._used
            ):
                self._used.add(f"step {at}")
                return step
        raise AssertionError("no step left that delivered something")

    def _came_in_time(self, victim: Victim) -> bool:
        """Was the master past its request before anything as late was due? Then it is no late
        arrival: a busy machine reads the buffer seconds after it was written."""
        row = victim.message.record
        says = next(s.says for s in self.steps if s.says["offsets"][row.partition] > row.offset)
        cursors: list[list[int]] = [says["cursor"], *says["lanes"].values()]
        return max(due_ms for due_ms, *_ in cursors) < victim.message.due_ms

    def _step_of(self, delivery: Logged) -> int:
        """The step that delivered it: both have its `now`."""
        fired_ms = int(delivery.fields["fired"])
        return next(at for at, step in enumerate(self.steps) if step.says["now_ms"] == fired_ms)

    def previous(self, step: Step) -> Step:
        """The step before."""
        return self.steps[self.steps.index(step) - 1]

    def _idle_steps(self) -> Iterator[Step]:
        around = range(-IDLE_AROUND, IDLE_AROUND + 1)
        at = IDLE_AROUND
        last = len(self.steps) - IDLE_AROUND
        while at < last:
            near = [self.steps[at + n] for n in around]
            terms = {step.says["term"] for step in near}
            if all(step.is_idle for step in near) and len(terms) == 1 and 0 not in terms:
                yield self.steps[at]
                at += IDLE_AROUND
            at += 1
        raise AssertionError("no step without work left")


def _around(at: int) -> set[str]:
    """The names of a step and of those near it."""
    return {f"step {n}" for n in range(at - STEPS_APART, at + STEPS_APART + 1)}


def source_of(row: Logged) -> str:
    """`partition/offset`."""
    return f"{row.partition}/{row.offset}"
