"""What must hold of reschedules: docs/design/rescheduling.md."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from log_rules import Request
    from simulation_checker import Checker

LATER = frozenset({"dead", "delivered", "expired", "ended"})

Settled = dict[tuple[int, str], tuple["Request", set[str], list["Request"]]]
"""By partition and id: the last marker that came to something, what it killed, what counted."""


class MovesChecker:
    """One finished run, as `read` has it."""

    def __init__(self, read: Checker) -> None:
        self._read = read
        self.moved = {
            source
            for source, by in read.rules.continued_by.items()
            if by.moved_by >= 0 and source in read.rules.killed_by
        }
        """Sources of messages that stand elsewhere now."""
        self.seen: Counter[str] = Counter()
        """By verdict; and how many retries were held, and reschedules overridden."""

    def check_verdict(self, marker: Request, settled: Settled) -> Settled:
        """Check what a reschedule was told; return what markers have come to."""
        read, rules = self._read, self._read.rules
        assert marker.id is not None, "a reschedule is about an id"
        given = [v for v in read.verdicts[marker.source] if v["verdict"] not in LATER]
        assert len(given) == 1, f"{marker.source}: {given}"
        [told] = given
        place = marker.partition, marker.id
        targets = rules.targets_of[marker.source]
        floor_ms = rules.as_of_ms[marker.source] - rules.id_memory_ms
        moving = [n for n, m in enumerate(targets) if self._goes_on(m, marker)]
        done = [m for n, m in enumerate(targets) if n not in moving and m.due_ms >= floor_ms]
        before = settled.get(place)
        if moving:
            expected = "rescheduled"
            due_ms = max(rules.dues_ms[marker.source][n] for n in moving)
            assert told["due_ms"] == due_ms or len(moving) > 1, f"{marker.source}: {told}"
        elif done or (
            before is not None and max(m.due_ms for m in before[2]) >= floor_ms and not before[1]
        ):
            expected = "too-late"
        else:
            expected = "not-found"
        assert (told["verdict"], told["op"]) == (expected, marker.op), f"{marker.source}: {told}"
        self.seen[expected] += 1
        for number in moving:
            self._check_continuation(marker, targets[number], rules.dues_ms[marker.source][number])
        return {**settled, place: (marker, set(), done)} if done else settled

    def _goes_on(self, message: Request, marker: Request) -> bool:
        """Return whether a message that a reschedule has killed did not come out before."""
        rules = self._read.rules
        source = message.source
        while source in rules.held_as:
            self.seen["held"] += 1
            source = rules.held_as[source]
        found = rules.continued_by.get(source)
        if found is not None and found.moved_by >= marker.offset:
            return True
        return source not in rules.escaped and not self._read.produced[source]

    def _check_continuation(self, marker: Request, message: Request, due_ms: int) -> None:
        """Check what stands in the buffer for a message that was moved, unless a later marker took
        it over."""
        rules = self._read.rules
        stages = [message.source]
        while stages[-1] in rules.held_as:
            stages.append(rules.held_as[stages[-1]])
        found = rules.continued_by.get(stages[-1])
        if found is None or found.moved_by != marker.offset:
            takers = (
                source
                for source, targets in rules.targets_of.items()
                if any(target.source in stages for target in targets)
            )
            is_taken = any(rules.by_source[each].offset > marker.offset for each in takers)
            assert is_taken, f"{marker.source} moved {message.source}, and it is lost: {found}"
            self.seen["overridden"] += 1
            return
        at_ms = int((found.moved and found.asked) or found.asked)
        is_first = found.series != "" and found.occurrence == 0
        assert at_ms == due_ms or is_first or found.state == "over", f"{found} is not at {due_ms}"
        assert not found.window, f"{found} has a window"
        assert found.group == message.group, f"{found} is of another group"
        self.seen["moved"] += 1
