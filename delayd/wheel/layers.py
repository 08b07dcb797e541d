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

    def stored(self, first: bytes, stop: bytes, count_max: int) -> Iterator[tuple[bytes, bytes]]:
        """Lines of LevelDB from `first` up to `stop`, as they are now; those that were deleted
        since are left out, those that are only in memory too."""
        for key, value in self._catalogue.notes(first, stop, count_max):
            now = self._fresh.get(key, self._pending.get(key, value))
            if now is not None:
                yield key, now

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
