"""The report of a finished demo, for people and scripts: all figures, and what is wrong.

Not here: the conclusions of the witness (verdict.py), the display (drawing.py).
"""

from dataclasses import asdict, dataclass
from typing import Any

from delayd.dev.demo_audit import Proof
from delayd.dev.verdict import Verdict


@dataclass(frozen=True, slots=True)
class DemoReport:
    """All figures of a demo that went to its end. Times in ms."""

    orders: int
    payments: int
    schedule_ms: int
    scheduled_late: int
    """Orders that the broker got after they were due: this machine was too slow for its lead."""
    killed: str
    successor: str
    rejoin_ms: int
    """From the start of the killed node's new process until it was ready."""
    masters: tuple[str, ...]
    """The nodes that delivered, one after the other; more than two were not planned."""
    wall_ms: int
    verdict: Verdict
    proof: Proof

    @property
    def problems(self) -> list[str]:
        """Return what is not as it should be; nothing if all is right."""
        problems = [f"{count} {name}" for name, count in self.verdict.faults.items() if count]
        if not self.verdict.complete:
            problems.append("the topics could not be read to their ends")
        if any(failover.counts and failover.gap_ms is None for failover in self.verdict.failovers):
            problems.append("nothing was delivered after the kill")
        return [*problems, *self.proof.problems, *self._disagreements]

    @property
    def _disagreements(self) -> list[str]:
        """Return where the counts of the witness and of the audit differ."""
        counts, counted = self.verdict.counts, self.proof.report
        pairs = {
            "orders": (self.orders, counted["accepted"]),
            "delivered": (counts.delivered, counted["delivered"]),
            "cancelled": (counts.cancelled, counted["cancelled"]),
            "too late": (counts.too_late, counted["marks"].get("too-late", 0)),
        }
        return [
            f"{name}: {seen} by the witness, {judged} by the audit"
            for name, (seen, judged) in pairs.items()
            if seen != judged
        ]

    @property
    def told(self) -> str:
        """Return the problems in one line, with examples."""
        examples = "; ".join(self.verdict.examples)
        return f"{', '.join(self.problems)}{f' ({examples})' if examples else ''}"

    def to_json(self) -> dict[str, Any]:
        """Return one flat object, with lateness as `delayd audit` has it."""
        verdict = asdict(self.verdict)
        own = {name: value for name, value in asdict(self).items() if name != "proof"}
        counts = verdict.pop("counts")
        return {
            "verdict": "failed" if self.problems else "ok",
            "problems": self.problems,
            **{name: value for name, value in own.items() if name != "verdict"},
            **counts,
            **{name: value for name, value in verdict.items() if name != "planned"},
            "audit": self.proof.report,
            "page": str(self.proof.page),
        }

    def story(self) -> list[tuple[str, str]]:
        """Return what happened, for people."""
        told = [("scheduled in", f"{self.schedule_ms / 1000:.1f} s")]
        if self.scheduled_late:
            told.append(("scheduled after they were due", f"{self.scheduled_late:,}"))
        for failover in self.verdict.failovers:
            told.append((f"{self.killed} killed", f"{self.successor} took over"))
            if failover.counts and failover.gap_ms is not None:
                told.append(("  first delivery after", f"{failover.gap_ms / 1000:.2f} s"))
            if failover.counts and failover.caught_up_ms is not None:
                told.append(("  caught up after", f"{failover.caught_up_ms / 1000:.2f} s"))
        told.append((f"{self.killed} ready again in", f"{self.rejoin_ms / 1000:.1f} s"))
        nodes = self.proof.report["nodes"]
        agree = (
            "agrees" if not self.proof.problems and not self._disagreements else "does not agree"
        )
        told.append(("the audit", f"{agree}: every message, {len(nodes)} replicas"))
        told.append(("in all", f"{self.wall_ms / 1000:.0f} s"))
        return told
