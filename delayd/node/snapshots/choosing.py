"""Choosing: whether a node that could replay the buffer copies another node's wheel instead.

It copies if a replay takes longer than `replay_max_s`, and CLEARLY times as long as a copy. Both
are estimates, made once at the start of the node, from what Kafka and the members say. A copy that
turns out to be slower than the replay is given up. Nothing hangs on the choice but time: either
way the node has the same messages in the end. While wheels differ the log decides: it replays.

Pure. Source: docs/design/storage.md, "Copy or replay".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

REPLAY_RECORDS_PER_S: Final = 100_000
"""What a node ingests at least, by the benchmark `ingest`: a slower one gains more by a copy."""
COPY_BYTES_PER_S_MAX: Final = 40_000_000
"""What a copy and its verification come to where the donor's rate is no limit, measured."""
CLEARLY: Final = 2
TRIAL_MS: Final = 30_000
"""After so long the rate of a copy says more than the estimate."""


class Offer(NamedTuple):
    """What a copy of one node would be, by its /status."""

    bytes: int
    bytes_per_s: int
    """What it gives to one more node."""
    ingested: tuple[int, ...]
    """Where it has got to, by partition of the buffer; a replay goes on from there."""

    @classmethod
    def of(cls, status: Mapping[str, Any], partitions: int) -> "Offer | None":
        """Return the offer of a node that is ready, and whose wheel is like the others'; None if
        it makes none."""
        try:
            rate = int(status["snapshot_bytes_per_s"]) // (1 + len(status["snapshots"]))
            ingested = tuple(int(offset) for offset in status["ingested"])
            offer = cls(int(status["wheel"]["bytes"]), rate, ingested)
            is_sound = status["ready"] and not status["compared"]["differs"]
        except (KeyError, TypeError, ValueError):
            return None  # Of another release, or it fetches itself.
        return offer if is_sound and len(ingested) == partitions else None


@dataclass(frozen=True, slots=True)
class Choice:
    """What a node does that has records to replay, and why."""

    behind: int
    """How many offsets of the buffer it has not read; some are no records."""
    replay_s: float
    copy_s: Mapping[str, float]
    """By node, how long a copy takes with the replay that is left then; only those by which it is
    clearly faster. Empty: it replays."""
    why: str
    is_short: bool = False
    """Whether the replay is too short to ask others."""

    @property
    def shown(self) -> dict[str, Any]:
        """Return both estimates, for people."""
        return {
            "behind": self.behind,
            "replay_s": round(self.replay_s, 1),
            "copy_s": {node: round(took_s, 1) for node, took_s in self.copy_s.items()},
        }

    def is_slower(self, took_ms: int, done_bytes: int, left_bytes: int) -> bool:
        """Return whether what is left of a copy, at its rate so far, takes longer than all of the
        replay."""
        left_s = left_bytes * took_ms / 1000 / max(1, done_bytes)
        return took_ms >= TRIAL_MS and left_s > max(self.replay_s, TRIAL_MS / 1000)


def replay_s_of(behind: int) -> float:
    """Return how long it takes to read so many records of the buffer."""
    return behind / REPLAY_RECORDS_PER_S


def behind_of(reached: Sequence[int], ends: Mapping[int, int]) -> int:
    """Return how many offsets lie between what was read and the ends of the buffer."""
    return sum(max(0, end - reached[partition]) for partition, end in ends.items())


def choice_of(
    reached: Sequence[int],
    ends: Mapping[int, int],
    offers: Mapping[str, Offer],
    replay_max_s: float,
) -> Choice:
    """Return what a node does that has read the buffer up to `reached`, which goes up to `ends`.

    `replay_max_s`: 0 for a node that always replays.
    """
    behind = behind_of(reached, ends)
    replay_s = replay_s_of(behind)
    if replay_max_s == 0 or replay_s <= replay_max_s:
        return Choice(behind, replay_s, {}, "a replay is short enough", is_short=True)
    all_s = {
        node: offer.bytes / max(1, min(offer.bytes_per_s, COPY_BYTES_PER_S_MAX))
        + replay_s_of(behind_of(offer.ingested, ends))
        for node, offer in sorted(offers.items())
    }
    copy_s = {node: took_s for node, took_s in all_s.items() if CLEARLY * took_s < replay_s}
    told = ", ".join(f"a copy of {node} {took_s:.0f} s" for node, took_s in all_s.items())
    replay = f"a replay of {behind} records takes about {replay_s:.0f} s"
    return Choice(behind, replay_s, copy_s, f"{replay}, {told or 'no node can give its wheel'}")
