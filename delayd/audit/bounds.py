"""The small values that a judgement needs besides the tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from replication.frontier import Frontier
from replication.rules import Barrier, Rules
from replication.settings import Settings
from replication.shards import shard_of


class LoggedOrder(NamedTuple):
    """An order about a target, and its place."""

    partition: int
    offset: int
    topic: str
    until_ms: int
    """0 of one to resume."""
    rate: int


class LoggedQuota(NamedTuple):
    """An order about the quota of a target, or a gate, and its place."""

    partition: int
    offset: int
    kind: str
    """limit, full, fast or open."""
    topic: str
    at_ms: int
    pending: int
    """What a gate's step has counted."""
    max_pending: int
    taken: int
    """What a gate's step has counted."""
    rate: int


class ShardCut(NamedTuple):
    """The newest frontier record of a shard: its history ends there."""

    offset: int
    append_ms: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """The cut, and how far the evidence reaches. Times are Unix ms."""

    settings: Settings
    frontier: Frontier
    """The cut, of all shards: what it covers must be over; what it does not must be in every node's
    export."""
    cuts: tuple[ShardCut, ...]
    """Where its parts stand, by shard."""
    buffer_starts: tuple[int, ...]
    """First offset of each buffer partition that Kafka still had."""
    buffer_ends: tuple[int, ...]
    """One past the last offset read of each; never before the cut's O."""
    buffer_latest: tuple[int, ...]
    """The ends after all else was read: what points between both is not judged, what points
    beyond is unknown."""
    trimmed_ms: Mapping[str, tuple[int, ...]]
    """Of topics (targets, receipts, dead letters, buffer) whose beginning Kafka has deleted, by
    partition: what was written there before this time may be missing; 0 where nothing is. Other
    topics are whole."""
    target_partitions: Mapping[str, int]
    """How many partitions each target topic has; one that does not exist is missing."""
    proofs_checked: bool
    """Was the cluster key given? Else a record that looks like the master's own is believed."""
    named_barriers: tuple[Barrier, ...] = ()
    """By the frontier at the cut: what has switched the rules."""
    logged_barriers: tuple[Barrier, ...] = ()
    """By the buffer: all records that may have."""
    orders: tuple[LoggedOrder, ...] = ()
    """By the buffer: all that pause a target, or resume it."""
    quotas: tuple[LoggedQuota, ...] = ()
    """By the buffer: all that limit a target, or say that it is full or open."""
    is_any_timed: bool = True
    """Is there perhaps a message with `delayd-late`?"""

    @property
    def rules(self) -> Rules:
        """Return which version rules which record, up to the cut."""
        return Rules(self.settings.rules_version, self.named_barriers)

    @property
    def shards(self) -> int:
        """Return how many there are."""
        return len(self.cuts)

    @property
    def newest_append_ms(self) -> int:
        """Return when the last step of any shard was made."""
        return max(cut.append_ms for cut in self.cuts)

    @property
    def barriers_problem(self) -> tuple[int, str] | None:
        """Return how frontier and buffer contradict each other about the rules, behind the shard
        whose frontier it is; None if they do not."""
        starts = self.buffer_starts
        trimmed = {b for b in self.named_barriers if b.offset < starts[b.partition]}
        logged = Rules(self.settings.rules_version, (*trimmed, *self.logged_barriers))
        wanted = set(logged.below(self.frontier.offsets))
        if not (wrong := wanted.symmetric_difference(self.named_barriers)):
            return None
        barrier = min(wrong)
        what = "does not name" if barrier in wanted else "names, and the buffer does not have,"
        return shard_of(barrier.partition, self.shards), (
            f"the frontier {what} the switch to rules version {barrier.version} at "
            f"{barrier.partition}/{barrier.offset}"
        )

    def trimmed_before_ms(self, topic: str) -> int:
        """Return the time before which records of any partition may be missing; 0 if none is."""
        return max(self.trimmed_ms.get(topic, ()), default=0)
