"""What must hold of series: docs/design/series.md.

All expressions of a run are of whole seconds (`simulated/users.py`), in zones that differ from UTC
by whole minutes: an occurrence is a multiple of some seconds, and its place is counted here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from log_rules import Request
    from simulation_checker import Checker

SERIES = ("cron", "zone", "until", "catchup")
SECOND_MS = 1_000


class SeriesChecker:
    """One finished run, as `read` has it."""

    def __init__(self, read: Checker) -> None:
        self._read = read
        self.seen: Counter[str] = Counter()
        """How many occurrences were delivered, were found late, and ended a series."""

    @property
    def sources(self) -> set[str]:
        """Sources of users' own requests for series."""
        own = (m for m in self._read.messages if m.series and m.op != "continue")
        return {message.source for message in own}

    @property
    def cut(self) -> set[str]:
        """Sources of occurrences that came out, while a cancel or replace came before the next."""
        read = self._read
        return {
            m.source
            for m in read.messages
            if m.goes_on and m.source in read.rules.refused and read.produced[m.source]
        }

    def check(self) -> None:
        """Raise AssertionError, with the source that breaks a rule."""
        read = self._read
        by_source = {message.source: message for message in read.messages}
        continuations: dict[str, list[Request]] = defaultdict(list)
        for request in read.rules.by_source.values():
            if request.op == "continue" and request.series:
                continuations[f"{request.partition}/{request.continues}"].append(request)
        for source, found in continuations.items():
            assert len(found) == 1, f"{source} is continued {len(found)} times"
            self._check_link(by_source[source], found[0])
        for message in read.messages:
            if not message.series:
                continue
            is_out = bool(read.produced[message.source])
            is_continued = message.source in continuations
            assert (
                is_out
                or is_continued
                or message.source not in read.step_of
                or (message.source in read.killed)
            ), f"{message.source} is nowhere"
            if is_out:
                assert is_continued == message.goes_on, f"{message.source} is out: {message}"
                self.seen["ended" if not is_continued else "delivered"] += 1

    def _check_link(self, before: Request, after: Request) -> None:
        """Check what stands in the buffer behind a record of a series."""
        read = self._read
        where = f"{after.source} after {before.source}"
        assert after.group == before.group, where
        if after.moved_by >= 0:
            _check_moved(before, after)
            return
        assert after.series.replace("|UTC|", "||") == before.series.replace("|UTC|", "||"), where
        assert before.goes_on or not after.follows, f"{where}, which was the last"
        assert after.follows == bool(read.produced[before.source]), f"{where}: {after}"
        now_ms: int = read.steps[read.step_of[before.source]].fields["now_ms"]
        from_ms = int(before.moved or before.asked or before.append_ms)
        if before.occurrence == 0:
            from_ms = int(before.asked or before.append_ms)
        own_ms = int(after.moved or after.asked)
        is_same = (after.moved, after.asked) == (before.moved, before.asked)
        is_same &= after.occurrence == before.occurrence
        if is_same and not after.follows and after.state == (before.state or "on"):
            return  # a retry, or deferred
        wanted = _wanted(before.series, from_ms, now_ms)
        if wanted is None:
            assert after.state == "over", f"{where}: {after} is beyond its end"
            return
        due_ms, is_last = wanted
        number = before.occurrence + (after.follows or before.occurrence == 0)
        if before.occurrence == 0 and before.moved:
            assert int(after.asked) == int(before.moved), f"{where}: {after} is not fired"
            due_ms = own_ms  # it went out before any could be missed
        assert (after.occurrence, own_ms) == (number, due_ms), f"{where}: {after}"
        assert after.state == ("last" if is_last else "on"), f"{where}: {after}"
        self.seen["late"] += due_ms <= now_ms


def _check_moved(before: Request, after: Request) -> None:
    """Check what a fire has written in place of an occurrence, or of the request."""
    where = f"{after.source} after {before.source}"
    same = ("occurrence", "state", "series") if before.op == "continue" else ("occurrence",)
    for name in same:
        assert getattr(after, name) == getattr(before, name), f"{where}: {after}"
    if before.occurrence and before.state != "over":
        assert after.moved == (before.moved or before.asked), f"{where}: {after}"


def _wanted(series: str, from_ms: int, now_ms: int) -> tuple[int, bool] | None:
    """Return when the next occurrence is due, and whether it is the last one."""
    cron, _, until, catchup = series.split("|")
    every_ms = int(cron.split()[0].replace("*/", "").replace("*", "1")) * SECOND_MS
    until_ms = int(until)
    due_ms = (from_ms // every_ms + 1) * every_ms
    if due_ms > until_ms:
        return None
    end_ms = min(now_ms, until_ms)
    if catchup != "all" and due_ms <= end_ms:
        due_ms = end_ms // every_ms * every_ms
    return due_ms, due_ms + every_ms > until_ms
