"""What must hold of messages with wishes, and of those without: docs/design/wishes.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from replication.settings import FORECAST_RULES

if TYPE_CHECKING:
    from log_rules import Request
    from simulation_checker import Checker

DEAD = "delayd-dead"
LATER = frozenset({"dead", "delivered", "expired", "ended"})
"""Verdicts on what became of a message; all others are on its request."""


class WishesChecker:
    """One finished run, as `read` has it."""

    def __init__(self, read: Checker) -> None:
        self._read = read
        self.granted: Counter[str] = Counter()
        """Of messages: how many were told, and have expired."""

    def check(self) -> None:
        """Raise AssertionError, with the source that breaks a rule."""
        self.check_told()
        self.check_forecasts()
        self.check_expired()
        self.check_planned()

    def has_expired(self, message: Request) -> bool:
        """Return whether the step that made it Done came later than it was worth delivering."""
        step_of, steps = self._read.step_of, self._read.steps
        if message.source not in step_of or message.state == "over":
            return False
        now_ms: int = steps[step_of[message.source]].fields["now_ms"]
        return now_ms > message.worth_until_ms

    def outcome_of(self, message: Request) -> str:
        """Return `dead` of what was given up by the step that made it Done, else nothing."""
        return "dead" if message.state == "over" or self.has_expired(message) else ""

    def check_told(self) -> None:
        """Check that whoever asked for all receipts has them, and nobody else."""
        read = self._read
        came_to: dict[str, list[str]] = defaultdict(list)
        reasons = self._reasons()
        for message in read.messages:
            for topic in read.produced[message.source]:
                outcome = reasons[message.source] if topic == DEAD else "delivered"
                outcome = "dead" if outcome == "no-occurrence" else outcome
                outcomes = came_to[read.rules.origin_of(message.source)]
                outcomes.append(outcome)
                if message.state == "last":
                    outcomes.append("ended")
        for message in read.messages:
            if message.op == "continue":
                continue
            expected = came_to[message.source]
            if not message.is_told:
                failures = [each for each in expected if each != "delivered"]
                expected = failures if message.id is not None else []
            elif message.op == "schedule":
                expected = ["scheduled", *expected]
            is_answered = message.op in ("replace", "redrive", "debounce")
            asked = LATER if is_answered else {*LATER, "scheduled"}
            given = [v for v in read.verdicts[message.source] if v["verdict"] in asked]
            where = f"{message.source}: {given}, not {expected}"
            assert sorted(v["verdict"] for v in given) == sorted(expected), where
            assert {v["id"] for v in given} <= {message.id or message.source}, where
            self.granted["told"] += message.is_told

    def check_expired(self) -> None:
        """Check that a step has let expire what was not worth delivering by its own time, and
        nothing else."""
        read = self._read
        reasons = self._reasons()
        for message in read.messages:
            if message.source not in read.step_of or not read.produced[message.source]:
                continue
            is_expired = reasons.get(message.source) == "expired"
            assert is_expired == self.has_expired(message), f"{message.source}: {reasons}"
            self.granted["expired"] += is_expired

    def check_planned(self) -> None:
        """Check that a delivery says when it was planned, if it has a window, and its group."""
        read = self._read
        by_source = {message.source: message for message in read.messages}
        for topic in read.targets():
            for record in read.committed(topic) if topic != DEAD else ():
                said = {name: (content or b"").decode() for name, content in record.headers}
                message = by_source[said["delayd-source"]]
                planned = str(message.planned_ms) if message.window else None
                assert said.get("delayd-planned") == planned, f"{message.source}: {said}"
                own = read.rules.by_source[read.rules.origin_of(message.source)]
                assert said.get("delayd-group", "") == own.group, f"{message.source}: {said}"
                self.granted["grouped"] += own.group != ""
                asked = message.asked if message.op != "debounce" else str(message.planned_ms)
                assert said["delayd-due"] == asked, f"{message.source}: {said}"
                self.granted["planned"] += planned is not None

    def check_forecasts(self) -> None:
        """Check that a receipt has a forecast if its message is for later than the step, of no
        series and at no local time, by rules that know forecasts; no other receipt has one."""
        read = self._read
        messages = {message.source: message for message in read.messages}
        for source, given in read.verdicts.items():
            message = messages.get(source)
            for said in given:
                named = [name for name in said if name.startswith("forecast_")]
                is_expected = (
                    message is not None
                    and said["verdict"] == "scheduled"
                    and message.op in ("schedule", "redrive")
                    and not (message.series or message.local)
                    and message.due_ms > max(message.append_ms, said["at_ms"])
                    and self._knows_forecasts(message)
                )
                assert bool(named) == is_expected, f"{source}: {said}, of {message}"
                self.granted["forecast"] += bool(named)
                if named:
                    assert said["forecast_messages"] >= 0, f"{source}: {said}"
                    assert said["forecast_span_ms"] in (1_000, 3_600_000), f"{source}: {said}"

    def _knows_forecasts(self, message: Request) -> bool:
        """Return whether version 7, the last one, rules the place of a request."""
        return self._read.rules_version >= FORECAST_RULES or any(
            message.partition == partition and offset < message.offset
            for partition, offset in self._read.rules.barriers
        )

    def _reasons(self) -> dict[str, str]:
        """Return the reasons of dead letters, by source."""
        letters = [dict(record.headers) for record in self._read.committed(DEAD)]
        return {
            (each["delayd-source"] or b"").decode(): (each["delayd-reason"] or b"").decode()
            for each in letters
        }
