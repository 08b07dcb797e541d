"""Which version of the ingest rules a record is ruled by: a function of its place alone. Pure.

A cluster is made with a version (`Settings.rules_version`). A *barrier* switches one partition of
the buffer to a higher one: a record there, with a proof under the cluster key. It is ruled by the
version before, and what is behind it in its partition by its own.

    offset        100  101  barrier 102  103  104
    version         3    3            3    4    4

Invariant: the version of a record never changes, whoever asks and whatever is learnt later, and
never falls within a partition. A barrier that is no higher than the version at its place is none.
So a switch may be repeated, and two may be written side by side.

Source: docs/design/frontier.md, "Rules switch".
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from replication.settings import (
    LOCAL_TIME_RULES,
    PAUSE_RULES,
    QUOTA_RULES,
    RESCHEDULE_RULES,
    SERIES_RULES,
    STEADY_RULES,
    WISHES_RULES,
)


class Barrier(NamedTuple):
    """The record that switched a partition, and the version to which it did."""

    partition: int
    offset: int
    version: int


@dataclass(frozen=True, slots=True)
class Rules:
    """All that is known of the versions that rule a buffer."""

    first: int
    """The version that the cluster was made with."""
    barriers: tuple[Barrier, ...] = ()
    """By partition and offset; each higher than the one before it in its partition."""
    _by_partition: Mapping[int, Sequence[Barrier]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found: defaultdict[int, list[Barrier]] = defaultdict(list)
        for barrier in sorted(self.barriers):
            before = found[barrier.partition]
            if barrier.version > (before[-1].version if before else self.first):
                before.append(barrier)
        kept = tuple(barrier for partition in sorted(found) for barrier in found[partition])
        object.__setattr__(self, "barriers", kept)
        object.__setattr__(self, "_by_partition", dict(found))

    def version_at(self, partition: int, offset: int) -> int:
        """Return the version that rules the record at this place."""
        version = self.first
        for barrier in self._by_partition.get(partition, ()):
            if barrier.offset < offset:
                version = barrier.version
        return version

    def ruled_from(self, partition: int, version: int) -> int | None:
        """Return the first offset of a partition that is ruled by `version` or a later one, so far
        as is known; None if there is none."""
        if self.first >= version:
            return 0
        barriers = self._by_partition.get(partition, ())
        return next((b.offset + 1 for b in barriers if b.version >= version), None)

    def with_barriers(self, barriers: Iterable[Barrier]) -> "Rules":
        """Return what is known with these barriers; those that switch nothing change nothing."""
        more = set(barriers).difference(self.barriers)
        return Rules(self.first, (*self.barriers, *more)) if more else self

    def below(self, offsets: Sequence[int]) -> tuple[Barrier, ...]:
        """Return the barriers that a frontier names which has passed these offsets (O)."""
        return tuple(b for b in self.barriers if b.offset < offsets[b.partition])

    def lowest(self, partitions: int) -> int:
        """Return the version that rules the next record of whichever partition has the lowest."""
        return min(map(self.last, range(partitions)))

    def last(self, partition: int) -> int:
        """Return the version that rules what comes next in a partition, so far as is known."""
        barriers = self._by_partition.get(partition)
        return barriers[-1].version if barriers else self.first


def is_steady(version: int) -> bool:
    """Return whether a version is 4 or later (`STEADY_RULES`)."""
    return version >= STEADY_RULES


def knows_wishes(version: int) -> bool:
    """Return whether a version is 5 or later (`WISHES_RULES`)."""
    return version >= WISHES_RULES


def knows_series(version: int) -> bool:
    """Return whether a version is 6 or later (`SERIES_RULES`)."""
    return version >= SERIES_RULES


def knows_reschedule(version: int) -> bool:
    """Return whether a version is 7 or later (`RESCHEDULE_RULES`)."""
    return version >= RESCHEDULE_RULES


def knows_local_times(version: int) -> bool:
    """Return whether a version is 7 or later (`LOCAL_TIME_RULES`)."""
    return version >= LOCAL_TIME_RULES


def knows_pauses(version: int) -> bool:
    """Return whether a version is 7 or later (`PAUSE_RULES`)."""
    return version >= PAUSE_RULES


def knows_quotas(version: int) -> bool:
    """Return whether a version is 7 or later (`QUOTA_RULES`)."""
    return version >= QUOTA_RULES
