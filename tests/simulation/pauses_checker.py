"""What must hold of pauses, judged from the records: docs/design/pauses.md read anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from log_rules import Request, Step

if TYPE_CHECKING:
    from simulation_checker import Checker

AGE_MS_MAX = 300_000
HOLD_MS_MAX = 86_400_000


def is_good(text: str, append_ms: int) -> bool:
    """Return whether an order with a true proof is obeyed, as far as its times say."""
    kind, *fields = text.split("/")
    at_ms = int(fields[0])
    is_young = abs(append_ms - at_ms) <= AGE_MS_MAX
    return is_young and (kind == "resume" or 0 < int(fields[1]) - at_ms <= HOLD_MS_MAX)


class PausesChecker:
    """Part of the checker of a run."""

    def __init__(self, judge: Checker) -> None:
        self._judge = judge
        self.seen: Counter[str] = Counter()
        self.topics = {_topic(order) for order in judge.rules.orders}

    def check(self) -> None:
        """Check that each step has the holds that orders made, and delivers to none of them."""
        judge = self._judge
        held = self.check_holds(judge.steps)
        for message in judge.messages:
            arrived = judge.step_of.get(message.source)
            if arrived is not None and judge.produced[message.source][message.topic]:
                assert message.topic not in held[arrived], (
                    f"{message.source} came to {message.topic} while that was paused"
                )

    def check_holds(self, steps: Sequence[Step]) -> list[set[str]]:
        """Check that each step has the holds that orders made, and that none is left; return what
        each holds."""
        held: list[set[str]] = []
        holds: dict[str, list[int]] = {}
        for index, step in enumerate(steps):
            before = steps[index - 1].offsets if index else [0] * len(step.offsets)
            now_ms, where = step.fields["now_ms"], f"step {step.fields['step']}"
            for order in self._judge.rules.orders:
                if before[order.partition] <= order.offset < step.offsets[order.partition]:
                    self._obey(holds, order, now_ms)
            said = step.fields.get("holds", {})
            for topic, hold in said.items():
                assert holds.get(topic) == hold, f"{where}: {topic} {hold}, not {holds}"
            for topic in holds.keys() - said.keys():
                assert holds[topic][1] <= now_ms, f"{where} has dropped {topic}"
                self.seen["ended"] += 1
                del holds[topic]
            held.append({topic for topic, hold in said.items() if hold[1] > now_ms})
            if index and holds:
                self.seen["handed on"] += step.fields["term"] != steps[index - 1].fields["term"]
        assert not holds, f"{holds} never ended"
        return held

    def _obey(self, holds: dict[str, list[int]], order: Request, now_ms: int) -> None:
        kind, *fields = order.order.split("/")
        topic, rate = fields[-1], int(fields[-2])
        known = holds.get(topic)
        rate = rate or (1_000 if known is None else known[2])
        if kind == "resume":
            if known is not None:
                holds[topic] = [known[0], min(known[1], now_ms), rate, order.offset]
                self.seen["resumed"] += 1
            return
        until_ms = int(fields[1])
        if known is None and until_ms <= now_ms:
            self.seen["over before"] += 1
            return
        goes_on = known is not None and known[1] > now_ms
        since_ms = known[0] if known is not None and goes_on else now_ms
        self.seen["renewed" if known else "paused"] += 1
        holds[topic] = [since_ms, until_ms, rate, order.offset]


def _topic(order: Request) -> str:
    return order.order.rpartition("/")[2]
