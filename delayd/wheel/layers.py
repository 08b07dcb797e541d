"""Changes to LevelDB that wait for a checkpoint, as layers above it.

    fresh      changed since the last checkpoint was begun
    captured   in a checkpoint on its way to LevelDB
    stored     in LevelDB

A read looks through the layers in this order; a change to None is a deletion. Not thread safe,
except that LevelDB may take in `captured` meanwhile: both give the same value.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TypeAlias

from delayd.wheel.catalogue import Catalogue

Changes: TypeAlias = dict[bytes, bytes | None]
Lines: TypeAlias = list[tuple[bytes, bytes]]


class Layers:
    """Raw keys and values, read through the layers."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._fresh: Changes = {}
        self._captured: Changes = {}

    def get(self, key: bytes) -> bytes | None:
        """Return the value as of now."""
        if key in self._fresh:
            return self._fresh[key]
        if key in self._captured:
            return self._captured[key]
        return self._catalogue.note(key)

    def get_each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of these keys as of now, in their order."""
        fresh, captured = self._fresh, self._captured
        if fresh.keys().isdisjoint(keys) and captured.keys().isdisjoint(keys):
            ordered = sorted(keys)
            found = self._catalogue.each_note(ordered)
            if found.count(None) < len(found):
                by_key = dict(zip(ordered, found, strict=True))
                found = [by_key[key] for key in keys]
            return found
        values = [fresh[key] if key in fresh else captured.get(key) for key in keys]
        # Sorted, so that keys of one table are read one after the other.
        below = sorted(
            (key, place)
            for place, key in enumerate(keys)
            if values[place] is None and key not in fresh and key not in captured
        )
        found = self._catalogue.each_note(key for key, _ in below)
        for (_, place), value in zip(below, found, strict=True):
            values[place] = value
        return values

    def known_in(self, keys: Sequence[bytes]) -> list[int]:
        """Return the places of those of these keys that have a value as of now, or were there
        before in them."""
        values = self.get_each(keys)
        if values.count(None) == len(values) and len(set(keys)) == len(keys):
            return []
        known, before = list[int](), set[bytes]()
        for place, (key, value) in enumerate(zip(keys, values, strict=True)):
            if value is not None or key in before:
                known.append(place)
            before.add(key)
        return known

    def put_all(self, changes: Iterable[tuple[bytes, bytes]]) -> None:
        """Change values; see `put`."""
        self._fresh.update(changes)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Change a value; None deletes it. Durable with the next checkpoint."""
        self._fresh[key] = value

    def stored(self, first: bytes, stop: bytes, count_max: int) -> tuple[Lines, bytes]:
        """Return lines of LevelDB from `first` up to `stop`, and the key up to which these are all.

        Lines that were deleted since are left out, and lines that are only in memory."""
        found = self._catalogue.notes(first, stop, count_max)
        lines = []
        for key, value in found:
            now = self._fresh.get(key, self._captured.get(key, value))
            if now is not None:
                lines.append((key, now))
        return lines, stop if len(found) < count_max else found[-1][0]

    def lines(self, kind: bytes, first: bytes) -> Generator[Lines, None, None]:
        """Yield all lines of a kind from `first` on, as they are now, in runs and by key.

        This call reads the layers in memory. LevelDB is read while the caller takes the runs, as
        of now, whatever is written meanwhile: that needs no lock.
        """
        # Before or after the write makes no difference: `captured` has the same values.
        changes = {
            key: value
            for layer in (self._captured, self._fresh)
            for key, value in layer.items()
            if key[:1] == kind and key >= first
        }
        return _changed(self._catalogue.lines(kind, first), changes)

    def capture(self) -> Changes:
        """Hand the changes to a checkpoint."""
        self._captured, self._fresh = self._fresh, {}
        return self._captured

    def settle(self) -> None:
        """Note that the captured changes are in LevelDB."""
        self._captured = {}


class QueueFront:
    """The key where the lines of a queue begin in LevelDB: deleted lines before it would slow a
    scan for hours. A line that is put before it moves it back, so no line is skipped."""

    def __init__(self, first: bytes) -> None:
        self.first = first
        """No line of the queue in LevelDB lies before it."""
        self._fresh: bytes | None = None
        self._captured: bytes | None = None

    def put(self, key: bytes) -> None:
        """Note a line that was put, and is not in LevelDB yet."""
        if self._fresh is None or key < self._fresh:
            self._fresh = key
        if key < self.first:
            self.first = key

    def move_to(self, key: bytes) -> None:
        """Note that all lines in LevelDB before this key were deleted."""
        waiting = _lower(self._fresh, self._captured)
        self.first = max(self.first, key if waiting is None else min(key, waiting))

    def capture(self) -> None:
        """Note that a checkpoint takes the lines that were put."""
        self._captured, self._fresh = _lower(self._fresh, self._captured), None

    def settle(self) -> None:
        """Note that the captured lines are in LevelDB."""
        self._captured = None


def _lower(one: bytes | None, other: bytes | None) -> bytes | None:
    return min((key for key in (one, other) if key is not None), default=None)


def _changed(stored: Iterator[Lines], changes: Changes) -> Generator[Lines, None, None]:
    """Yield runs of lines with the changes applied, by key."""
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
