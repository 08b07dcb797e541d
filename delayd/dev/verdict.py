"""The findings of a witness: so far (Progress) and at last (Verdict). Plain values.

Not here: how they are found (ledger.py).
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Lateness:
    """Receipt minus due, over messages (first copies). Nearest rank, ms."""

    p50: int
    p99: int
    p999: int
    max: int


@dataclass(frozen=True, slots=True)
class Failover:
    """The effect of one kill. Both times are from the kill; None: nothing yet. A kill that does
    not count has a gap too if anything was delivered after it, but says nothing about the
    takeover."""

    killed_ms: int
    counts: bool
    gap_ms: int | None
    """To the first record that a successor delivered."""
    caught_up_ms: int | None
    """To the first such record that came at most `ledger.CAUGHT_UP_MS` after its due time."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A time without any receipt, between the first and the last."""

    from_ms: int
    for_ms: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Messages by outcome so far; a message may be in several. `unknown` counts records that are
    not of the batch; `cancelled` and `too_late` count the verdicts on payments."""

    delivered: int = 0
    doubled: int = 0
    early: int = 0
    altered: int = 0
    unknown: int = 0
    cancelled: int = 0
    too_late: int = 0

    @property
    def over(self) -> int:
        """Return how many messages were delivered or will never be."""
        return self.delivered + self.cancelled

    @property
    def answered(self) -> int:
        """Return how many payments got a verdict."""
        return self.cancelled + self.too_late


@dataclass(frozen=True, slots=True)
class Verdict:
    """The witness's last word. `complete`: everything that was visible at the end was read."""

    planned: int
    lost: int
    wrong_verdicts: int
    """Payments whose verdict is not what happened."""
    unanswered: int
    """Payments without a verdict."""
    counts: Counts
    complete: bool
    lateness_ms: Lateness | None
    steady_lateness_ms: Lateness | None
    """Without messages received after the kill and due before a successor had caught up."""
    failovers: tuple[Failover, ...]
    stalls: tuple[Stall, ...]
    examples: tuple[str, ...]
    """Some of the messages that are wrong, each with the reason."""

    @property
    def ok(self) -> bool:
        """Return whether each message came exactly once, as it was sent and not early, or was
        cancelled, and nothing else came."""
        return self.complete and not any(self.faults.values())

    @property
    def faults(self) -> dict[str, int]:
        """Return how many messages are wrong in each way, zeros too."""
        counts = self.counts
        return {
            "lost": self.lost,
            "doubled": counts.doubled,
            "early": counts.early,
            "altered": counts.altered,
            "unknown": counts.unknown,
            "wrong verdicts": self.wrong_verdicts,
            "unanswered": self.unanswered,
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """What the witness has seen so far."""

    counts: Counts = field(default_factory=Counts)
    recent_p50_ms: int | None = None
    """Median lateness of the last quarter second; None if nothing came."""
    failovers: tuple[Failover, ...] = ()
