"""Outcomes of a run's messages, counted from what clients of Kafka see. Pure.

Not here: Kafka (traffic.py). It uses no code of delayd, which it judges.

Each message has a number. It is delivered once, not early and unaltered; or the receipt of its
cancel reports `cancelled`, and it never comes. If the receipt reports `too-late`, the message does
come. Times are Unix ms.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

GAP_MS: Final = 300
"""Shorter pauses between deliveries are not reported."""

GAPS_SHOWN: Final = 20
EXAMPLES_SHOWN: Final = 10

FAULTS: Final = ("lost", "doubled", "early", "altered", "wrong_verdict", "unanswered", "unknown")


@dataclass(frozen=True, slots=True)
class Asked:
    """A message that was sent. `is_acknowledged` False: Kafka may have it or not."""

    due_ms: int
    value: bytes
    is_acknowledged: bool = True


@dataclass(slots=True)
class Tally:
    """One run. Ids are `<run>-<number>`."""

    run: str
    asked: dict[int, Asked] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    """Messages whose cancel was acknowledged."""
    deliveries: dict[int, list[int]] = field(default_factory=dict)
    """By number: the append time of each copy."""
    verdicts: dict[int, list[str]] = field(default_factory=dict)
    altered: set[int] = field(default_factory=set)
    unknown: int = 0

    def id_of(self, number: int) -> str:
        """Return the id and key of a message."""
        return f"{self.run}-{number}"

    def take_delivery(self, key: bytes | None, value: bytes | None, append_ms: int) -> None:
        """Count a record of the target; ignore those of other runs."""
        number = self._number_of(key)
        if number is None:
            return
        asked = self.asked.get(number)
        if asked is None:
            self.unknown += 1
            return
        self.deliveries.setdefault(number, []).append(append_ms)
        if value != asked.value:
            self.altered.add(number)

    def take_receipt(self, value: bytes | None) -> None:
        """Count a record of the receipts."""
        receipt: dict[str, Any] = json.loads(value or b"{}")
        number = self._number_of(str(receipt.get("id", "")).encode())
        if number is None or receipt.get("op") != "cancel":
            return
        self.verdicts.setdefault(number, []).append(str(receipt.get("verdict")))

    def is_over(self) -> bool:
        """Return whether every message that must have an outcome has one."""
        return not any(self._is_lost(n) or self._is_unanswered(n) for n in self.asked)

    def report(self) -> dict[str, Any]:
        """Return the verdict and the counts behind it."""
        found = Counter(fault for n in self.asked for fault in self._faults_of(n))
        found["unknown"] = self.unknown
        late = sorted(max(0, at[0] - self.asked[n].due_ms) for n, at in self.deliveries.items())
        answers = Counter(verdict for each in self.verdicts.values() for verdict in each)
        faults_of = ((n, ", ".join(self._faults_of(n))) for n in self.asked)
        examples = (f"{self.id_of(n)}: {faults}" for n, faults in faults_of if faults)
        return {
            "verdict": "failed" if any(found.values()) else "ok",
            "run": self.run,
            "sent": len(self.asked),
            "unsure": sum(not asked.is_acknowledged for asked in self.asked.values()),
            "delivered": len(self.deliveries),
            "cancels": len(self.cancelled),
            "answers": dict(sorted(answers.items())),
            **{fault: found[fault] for fault in FAULTS},
            "late_ms": {"p50": _rank(late, 500), "p99": _rank(late, 990), "max": _rank(late, 1000)},
            "gaps": list(gaps_of(at for times in self.deliveries.values() for at in times)),
            "examples": [line for line, _ in zip(examples, range(EXAMPLES_SHOWN), strict=False)],
        }

    def _number_of(self, key: bytes | None) -> int | None:
        run, _, number = (key or b"").decode(errors="replace").rpartition("-")
        return int(number) if run == self.run and number.isdigit() else None

    def _faults_of(self, number: int) -> Iterator[str]:
        times, verdicts = self.deliveries.get(number, []), self.verdicts.get(number, [])
        if self._is_lost(number):
            yield "lost"
        if len(times) > 1:
            yield "doubled"
        if any(at_ms < self.asked[number].due_ms for at_ms in times):
            yield "early"
        if number in self.altered:
            yield "altered"
        wrong = {"cancelled": bool(times), "too-late": not times}
        if len(verdicts) > 1 or any(wrong.get(verdict, True) for verdict in verdicts):
            yield "wrong_verdict"
        if self._is_unanswered(number):
            yield "unanswered"

    def _is_lost(self, number: int) -> bool:
        is_killed = "cancelled" in self.verdicts.get(number, ())
        is_there = self.asked[number].is_acknowledged
        return is_there and not is_killed and number not in self.deliveries

    def _is_unanswered(self, number: int) -> bool:
        return number in self.cancelled and number not in self.verdicts


def gaps_of(times: Iterable[int]) -> Iterator[dict[str, int]]:
    """Yield the longest pauses between deliveries, in order of time."""
    gaps = [(after - before, before) for before, after in pairwise(sorted(times))]
    longest = sorted(gap for gap in gaps if gap[0] >= GAP_MS)[-GAPS_SHOWN:]
    for for_ms, from_ms in sorted(longest, key=lambda gap: gap[1]):
        yield {"from_ms": from_ms, "for_ms": for_ms}


def _rank(values: list[int], per_mille: int) -> int | None:
    """Return the smallest value that so many of a thousand do not exceed; None of nothing."""
    return values[max(0, -(-len(values) * per_mille // 1000) - 1)] if values else None
