"""What a node has found: messages that nodes hold differently, as people see them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from delayd.node.comparing.judging import By, Holding, Judgement
from delayd.node.comparing.looking import Differing
from delayd.node.comparing.side import KILL
from delayd.request import source_of
from delayd.wheel import FrameKind

SHOWN_MAX: Final = 20
"""Messages in /status; a log line has half as many."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A message that nodes hold differently, seen twice."""

    differing: Differing
    holdings: Mapping[str, Holding]
    judgement: Judgement

    def shown(self) -> dict[str, Any]:
        """Return it for people."""
        kind, partition, offset = self.differing.source
        is_kill = kind == KILL
        return {
            "source": source_of(partition, offset),
            "what": "killed" if is_kill else FrameKind(kind).name.lower().replace("_", " "),
            "id": self.differing.id,
            "due_ms": self.differing.due_ms,
            "holds": {
                node: [
                    f"by {source_of(partition, value.crc)}"
                    if is_kill
                    else f"{value.due_ms}/{value.crc:08x}"
                    for value in held
                ]
                for node, held in sorted(self.holdings.items())
            },
            "wrong": sorted(self.judgement.wrong),
            "by": self.judgement.by.value,
        }


@dataclass(slots=True)
class ComparerView:
    """What others see of it. Written by one thread, read by any."""

    rounds: int = 0
    failed: int = 0
    problem: str | None = None
    """Why the last round was not finished."""
    round_ended_ms: int | None = None
    """Monotonic time."""
    findings: Sequence[Finding] = ()
    """Differences as of the last look at them."""
    counts: Counter[str] = field(default_factory=Counter)
    """`confirmed`: seen twice; `passed`: delivered before the second look; `transient`: the second
    look did not see it."""

    @property
    def differs(self) -> int:
        """Return how many messages not all nodes hold alike."""
        return len(self.findings)


def unjudged(differing: Differing) -> Finding:
    """Return what was seen once only."""
    nobody: frozenset[str] = frozenset()
    judgement = Judgement(By.NOBODY, nobody, nobody)
    return Finding(differing, differing.of(differing.holdings), judgement)


def named(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the fields of a log line."""
    shown = [finding.shown() for finding in findings[: SHOWN_MAX // 2]]
    return {
        "messages": len(findings),
        "named": [
            f"{each['source']} ({each['what']}, id {each['id']}, due {each['due_ms']}, wrong on "
            f"{' '.join(each['wrong']) or 'unknown'} by {each['by']})"
            for each in shown
        ],
    }
