"""Placement: which node should lead which shard, and when a leader hands over to it.

Pure: no clock, no I/O, no randomness. `preferred` follows from the members that count and the
number of shards alone, so all nodes that see the same members say the same. `Placement` is one
node's part: it is told at each look what the members tell of themselves, and says which of the
shards that this node leads it should hand over now. Not here: the election. A hand-over is a
resignation, and `Placement.turn` lets the preferred node campaign first. Kafka's fence makes a
wrong opinion cost a hand-over and nothing else.

**Preferred.** Each shard and member have a score, by a hash of both (rendezvous hashing). Pairs are
taken from the highest score down: a shard goes to a member unless it has gone to another one, or
the member has ceil(shards / members) already. So no member is preferred for more than its share,
rounded up, and one that comes or goes moves its own shards and few others: those that it pushes off
a full member, or no longer does.

**Handing over.** Three things keep nodes from taking turns:

1. A member counts once it has been eligible for READY_MS without a break; twice as long for each
   lapse, which is the end of having been eligible, within LAPSES_MS. It stops counting at once.
2. The leader has led the shard, and another one has been preferred for it, for STILL_MS.
3. A node hands over one shard in PAUSE_MS, and HAND_OVERS_MAX in WINDOW_MS.

One node alone decides all of it, by what it has seen. The cluster's bound follows from 2: no shard
is handed over twice within STILL_MS, and after that only if the members changed.

Invariants:
- No shard is handed over to a member that is not eligible at that look.
- A look that does not show the node itself, or shows no eligible member, orders nothing.
- A node's own standstill makes nobody ready: a look adds at most LOOK_MS to how long.

Source: docs/design/shards.md, "Placement".
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

READY_MS: Final = 30_000
"""How long a member must have been eligible to count."""

STILL_MS: Final = 10_000
"""How long a shard's leader must have led it, and another member have been preferred."""

LOOK_MS: Final = 10_000
"""What one look adds at most to how long something was so: the TTL of a member key."""

LAPSES_MS: Final = 600_000
"""How long a lapse of a member counts."""
LAPSES_MAX: Final = 4
"""How many of them count: a member that lapses again and again waits 8 minutes."""

PAUSE_MS: Final = 500
"""Between two hand-overs of a node, each of which takes 100 ms: a node that led all of 32 shards
until others came keeps four of them 14 s after these count."""
HAND_OVERS_MAX: Final = 40
"""Hand-overs of a node in WINDOW_MS."""
WINDOW_MS: Final = 60_000

SLOW_CHECKPOINT_MS: Final = 5_000
"""A node whose checkpoint takes longer is slow: `delayd doctor` calls its disk so, too."""

TURNS_MAX: Final = 2
"""For how many turns a node lets better placed ones campaign first. More would lengthen the
takeover when these are dead, too."""

_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Member:
    """What a node tells of itself in its member key."""

    could_take_over: bool
    """Its wheel has reached the newest frontiers, and Kafka answers it."""
    has_room: bool
    """It takes new messages in."""
    checkpoint_took_ms: int = 0
    """Its last one."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """Resign as the leader of this shard, for this member."""

    shard: int
    to: str


def is_eligible(member: Member) -> bool:
    """Return whether a node may be given shards: it is neither behind, nor short of disk, nor
    slow."""
    return (
        member.could_take_over
        and member.has_room
        and member.checkpoint_took_ms <= SLOW_CHECKPOINT_MS
    )


def eligible_of(members: Mapping[str, Member]) -> frozenset[str]:
    """Return the names of those that may be given shards."""
    return frozenset(name for name, member in members.items() if is_eligible(member))


def preferred(shards: int, members: Collection[str]) -> tuple[str | None, ...]:
    """Return the member that should lead each shard; None for all if there is no member."""
    found: list[str | None] = [None] * shards
    if not members:
        return tuple(found)
    room = dict.fromkeys(sorted(members), -(-shards // len(set(members))))
    for _, name, shard in sorted(
        (-score(name, shard), name, shard) for name in room for shard in range(shards)
    ):
        if found[shard] is None and room[name]:
            found[shard] = name
            room[name] -= 1
    return tuple(found)


def score(name: str, shard: int) -> int:
    """Return how much a member is wanted for a shard: 64 bits that are as good as random."""
    return _mixed(_mixed(crc32(name.encode())) ^ shard)


def _mixed(number: int) -> int:
    """Return 64 bits of which each depends on all (splitmix64). CRCs alone are linear: two members
    would differ alike for all shards."""
    mixed = (number + 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


@dataclass(slots=True)
class _History:
    """What this node has seen of a member."""

    eligible_ms: int | None = None
    """For how long it has been eligible; None while it is not."""
    lapsed_ms: deque[int] = field(default_factory=lambda: deque[int](maxlen=LAPSES_MAX))
    """When it ceased to be, the last times."""

    def counts(self, now_ms: int) -> bool:
        """Return whether the member may be given shards."""
        if self.eligible_ms is None or self.eligible_ms < READY_MS:
            return False
        if not self.lapsed_ms:
            return True
        lapses = sum(at_ms > now_ms - LAPSES_MS for at_ms in self.lapsed_ms)
        return self.eligible_ms >= READY_MS << lapses


@dataclass(slots=True)
class _Wanted:
    """Who should lead a shard that this node leads, and for how long that has been so."""

    name: str | None
    still_ms: int = 0


class Placement:
    """One node's part in placing the shards, for one life of the node."""

    def __init__(self, own: str, shards: int) -> None:
        self._own = own
        self._shards = shards
        self._looked_ms: int | None = None
        self._members: dict[str, _History] = {}
        self._eligible: frozenset[str] = frozenset()
        self._counting: frozenset[str] = frozenset()
        self._best: tuple[str | None, ...] = preferred(shards, ())
        """Of `_counting`."""
        self._wanted: dict[int, _Wanted] = {}
        """By shard that this node leads."""
        self._handed_ms: deque[int] = deque(maxlen=HAND_OVERS_MAX)

    def look(
        self, now_ms: int, members: Mapping[str, Member], led: Collection[int]
    ) -> HandOver | None:
        """Take what the members tell now, and the shards that this node leads; return the one to be
        handed over now, if there is one.

        To be called every PAUSE_MS, with the members as they were read last. `now_ms` is monotonic.
        """
        passed_ms = 0 if self._looked_ms is None else min(now_ms - self._looked_ms, LOOK_MS)
        self._looked_ms = now_ms
        self._note_members(now_ms, passed_ms, eligible_of(members))
        self._note_wanted(passed_ms, led)
        if self._own not in members or not self._may_hand_over(now_ms):
            return None
        for shard in sorted(led):
            wanted = self._wanted[shard]
            if wanted.name not in (None, self._own) and wanted.still_ms >= STILL_MS:
                assert wanted.name is not None
                del self._wanted[shard]
                self._handed_ms.append(now_ms)
                return HandOver(shard, wanted.name)
        return None

    def turn(self, shard: int, gone: Iterable[str] = ()) -> int:
        """Return for how many turns this node lets others campaign for a shard without a leader, by
        the last look: none if it is preferred, TURNS_MAX if it should lead nothing.

        `gone`: nodes that will not lead it although their keys may be there still, such as the
        leader that died, resigned or handed over. It is left out only where it is preferred itself:
        a leader that hands over stays a member, and without it others would be preferred.
        """
        without = frozenset(gone)
        if not self._eligible - without:
            return 0
        if self._own not in self._eligible:
            return TURNS_MAX
        best = self._best[shard]
        if best is None or best in without:
            best = preferred(self._shards, self._counting - without or self._eligible - without)[
                shard
            ]
        return 0 if best == self._own else 1

    def _note_members(self, now_ms: int, passed_ms: int, eligible: frozenset[str]) -> None:
        """Note who is eligible and for how long, who ceased to be, and who counts."""
        self._eligible = eligible
        counting = set()
        for name in eligible:
            history = self._members.get(name)
            if history is None:
                history = self._members[name] = _History()
            before_ms = history.eligible_ms
            history.eligible_ms = 0 if before_ms is None else before_ms + passed_ms
            if history.counts(now_ms):
                counting.add(name)
        if len(self._members) > len(eligible):
            self._note_lapses(now_ms)
        if counting != self._counting:
            self._counting = frozenset(counting)
            self._best = preferred(self._shards, counting)

    def _note_lapses(self, now_ms: int) -> None:
        """Note who ceased to be eligible, and forget whose lapses do not count any more."""
        for name in [name for name in self._members if name not in self._eligible]:
            history = self._members[name]
            if history.eligible_ms is not None:
                history.eligible_ms = None
                history.lapsed_ms.append(now_ms)
            elif history.lapsed_ms[-1] <= now_ms - LAPSES_MS:
                del self._members[name]

    def _note_wanted(self, passed_ms: int, led: Collection[int]) -> None:
        """Note for how long each shard that this node leads has had its preferred member."""
        for shard in set(self._wanted) - set(led):
            del self._wanted[shard]
        for shard in led:
            wanted = self._wanted.get(shard)
            if wanted is None or wanted.name != self._best[shard]:
                self._wanted[shard] = _Wanted(self._best[shard])
            else:
                wanted.still_ms += passed_ms

    def _may_hand_over(self, now_ms: int) -> bool:
        """Return whether this node has handed over little enough of late."""
        handed = self._handed_ms
        if handed and now_ms < handed[-1] + PAUSE_MS:
            return False
        return len(handed) < HAND_OVERS_MAX or handed[0] <= now_ms - WINDOW_MS
