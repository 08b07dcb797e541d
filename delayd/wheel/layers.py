"""Changes to LevelDB that wait for a checkpoint, on top of what is there.

    fresh      changed since the last checkpoint was begun
    pending    in a checkpoint on its way to LevelDB
    stored     in LevelDB

A read looks through them in this order; a change to None is a deletion. Not thread safe, except
that LevelDB may take in `pending` meanwhile: whichever of the two answers, the value is the same.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterator
from typing import TypeAlias

from delayd.wheel.catalogue import Catalogue

Changes: TypeAlias = dict[bytes, bytes | None]
Lines: TypeAlias = list[tuple[bytes, bytes]]


class Layers:
    """Raw keys and values, read through the layers."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._fresh: Changes = {}
        self._pending: Changes = {}

    def get(self, key: bytes) -> bytes | None:
        """The value as of now."""
        if key in self._fresh:
            return self._fresh[key]
        if key in self._pending:
            return self._pending[key]
        return self._catalogue.note(key)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Change it; None deletes it. Durable with the next checkpoint."""
        self._fresh[key] = value

    def stored(self, first: bytes, stop: bytes, count_max: int) -> tuple[Lines, bytes]:
        """Lines of LevelDB from `first` up to `stop`, as they are now, and the key up to which
        these are all; those that were deleted since are left out, those that are only in memory
        too."""
        found = self._catalogue.notes(first, stop, count_max)
        lines = []
        for key, value in found:
            now = self._fresh.get(key, self._pending.get(key, value))
            if now is not None:
                lines.append((key, now))
        return lines, stop if len(found) < count_max else found[-1][0]

    def lines(self, kind: bytes, first: bytes) -> Generator[Lines, None, None]:
        """All lines of a kind, from `first` on, as they are now, in runs and by key.

        What is in memory is looked at here; LevelDB is read when the runs are taken, as it is now,
        whatever is written meanwhile: that needs no lock.
        """
        # LevelDB first or last makes no difference: `pending` answers as it does.
        changes = {
            key: value
            for layer in (self._pending, self._fresh)
            for key, value in layer.items()
            if key[:1] == kind and key >= first
        }
        return _changed(self._catalogue.lines(kind, first), changes)

    def capture(self) -> Changes:
        """Hand the changes to a checkpoint."""
        self._pending, self._fresh = self._fresh, {}
        return self._pending

    def settle(self) -> None:
        """The captured changes are in LevelDB."""
        self._pending = {}


class QueueFront:
    """Where the lines of a queue begin in LevelDB: what was deleted before that slows a scan for
    hours. Nothing is skipped: what is put goes before it if it must."""

    def __init__(self, first: bytes) -> None:
        self.first = first
        """No line of the queue that is in LevelDB lies before it."""
        self._fresh: bytes | None = None
        self._pending: bytes | None = None

    def put(self, key: bytes) -> None:
        """A line was put, and is not in LevelDB yet."""
        self._fresh = _lower(self._fresh, key)
        self.first = min(self.first, key)

    def move_to(self, key: bytes) -> None:
        """All lines in LevelDB before this key have been deleted."""
        waiting = _lower(self._fresh, self._pending)
        self.first = max(self.first, key if waiting is None else min(key, waiting))

    def capture(self) -> None:
        """What was put goes to a checkpoint."""
        self._pending, self._fresh = _lower(self._fresh, self._pending), None

    def settle(self) -> None:
        """What was captured is in LevelDB."""
        self._pending = None


def _lower(one: bytes | None, other: bytes | None) -> bytes | None:
    return min((key for key in (one, other) if key is not None), default=None)


def _changed(stored: Iterator[Lines], changes: Changes) -> Generator[Lines, None, None]:
    """Runs of lines with the changes made: both by key."""
    keys = sorted(changes)
    at = 0
    for run in stored:
        upto = bisect_right(keys, run[-1][0], lo=at)
        yield _merged(run, {key: changes[key] for key in keys[at:upto]})
        at = upto
    yield _merged([], {key: changes[key] for key in keys[at:]})


def _merged(run: Lines, changes: Changes) -> Lines:
    if not changes:
        return run
    merged: Changes = {**dict(run), **changes}
    return [(key, value) for key, value in sorted(merged.items()) if value is not None]
