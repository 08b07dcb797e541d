"""What must hold of quotas, judged from the records: docs/design/quotas.md read anew."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from simulation_checker import Checker

AGE_MS_MAX = 300_000
WINDOW_S = 10
ADDING = ("schedule", "replace", "debounce")


class Said(NamedTuple):
    """What a record says of a quota."""

    partition: int
    offset: int
    kind: str
    topic: str
    at_ms: int
    pending: int
    max_pending: int
    taken: int
    rate: int


class Asked(NamedTuple):
    """A request that adds a message and is not refused."""

    partition: int
    offset: int
    second: int
    """Of its append time."""


class QuotasInLog:
    """The orders and gates of the buffer, in the order of each partition."""

    def __init__(self, written: Mapping[tuple[int, int], bool]) -> None:
        """`written`: by people; an order, or what only looks like one."""
        self._written = written
        self.said: list[Said] = []
        self._full: set[tuple[int, str]] = set()
        self.over: set[str] = set()
        """Sources of the requests that are refused."""
        self.asked: defaultdict[str, list[Asked]] = defaultdict(list)
        """By target."""

    def read(
        self, partition: int, offset: int, append_ms: int, headers: Mapping[str, str]
    ) -> dict[str, str]:
        """Note what a record says of quotas; return the headers that say what becomes of it."""
        text = headers.get("delayd-quota")
        if text is None:
            return self._asked(partition, offset, append_ms, headers)
        kind, at_ms, *numbers, topic = text.split("/")
        is_true = self._written.get((partition, offset), kind != "limit")
        if not is_true or abs(append_ms - int(at_ms)) > AGE_MS_MAX:
            return {"delayd-op": "schedule", "expects": "answer"}
        counts = [*map(int, numbers)]
        if kind == "limit":
            counts = [0, counts[0], 0, counts[1]]
        self.said.append(Said(partition, offset, kind, topic, int(at_ms), *counts))
        if kind in ("full", "fast"):
            self._full.add((partition, topic))
        elif kind == "open":
            self._full.discard((partition, topic))
        return {"delayd-op": "quota"}

    def _asked(
        self, partition: int, offset: int, append_ms: int, headers: Mapping[str, str]
    ) -> dict[str, str]:
        place = partition, headers.get("delayd-topic", "")
        is_own = "delayd-continues" in headers or "delayd-settles" in headers
        is_adding = headers.get("delayd-op", "schedule") in ADDING and not is_own
        if not is_adding or headers.get("expects") == "answer":
            return {}
        if place not in self._full:
            self.asked[place[1]].append(Asked(partition, offset, append_ms // 1000))
            return {}
        self.over.add(f"{partition}/{offset}")
        return {"delayd-op": "schedule", "expects": "answer"}


class QuotasChecker:
    """Part of the checker of a run."""

    def __init__(self, judge: Checker, log: QuotasInLog) -> None:
        self._judge = judge
        self._log = log
        self.seen: Counter[str] = Counter()

    def check(self) -> None:
        """Check that each step has the quotas that were ordered, and that each gate is in all
        partitions, as the step that wrote it says, and true."""
        gates: defaultdict[tuple[str, int, str], dict[int, Said]] = defaultdict(dict)
        for said in self._log.said:
            if said.kind != "limit":
                group = gates[said.topic, said.at_ms, said.kind]
                assert said.partition not in group, said
                group[said.partition] = said
        quotas: dict[str, list[int]] = {}
        known_ms: dict[str, tuple[int, int]] = {}
        """By topic: the term that counts, and since when."""
        for index, step in enumerate(self._judge.steps):
            before = self._judge.steps[index - 1].offsets if index else [0] * len(step.offsets)
            was = quotas
            ordered = set()
            named = {topic: [quota[0], quota[5], quota[2]] for topic, quota in quotas.items()}
            for said in self._log.said:
                home = crc32(said.topic.encode()) % len(step.offsets)
                passed = before[said.partition] <= said.offset < step.offsets[said.partition]
                if said.kind == "limit" and passed:
                    assert said.partition == home
                    ordered.add(said.topic)
                    is_end = not said.max_pending and not said.rate
                    self.seen["cleared" if is_end else "set"] += 1
                    named[said.topic] = [said.max_pending, said.rate, said.offset]
                    if is_end:
                        del named[said.topic]
            quotas = step.fields.get("quotas", {})
            where = f"step {step.fields['step']}"
            last = self._judge.steps[max(0, index - 1)]
            # A step that stands still counts nothing: the first of a term, for one.
            counts = (step.cursors, step.offsets) != (last.cursors, last.offsets)
            assert {topic: [q[0], q[5], q[2]] for topic, q in quotas.items()} == named, where
            for topic in {*quotas, *was, *ordered}:
                now = quotas.get(topic)
                if not counts:
                    ordered.add(topic)
                changed = self._check_state(where, topic, was.get(topic), now, ordered)
                kind = kind_of(now)
                written = gates.pop((topic, step.fields["now_ms"], kind), {})
                if changed:
                    self.seen[changed] += 1
                    assert len(written) == len(step.offsets), f"{where}: {topic} {written}"
                if written:
                    self._check_gate(where, topic, index, written, now)
                if now is None or not now[5]:
                    known_ms.pop(topic, None)
                else:
                    # Another rate is counted by what was counted for the one before.
                    term, now_ms = step.fields["term"], step.fields["now_ms"]
                    if known_ms.get(topic, (term, 0))[0] != term:
                        del known_ms[topic]
                    since_ms = known_ms.setdefault(topic, (term, now_ms))[1]
                    self._check_taken(where, topic, index, written, now, since_ms, counts)
            if index and quotas:
                self.seen["handed on"] += (
                    step.fields["term"] != self._judge.steps[index - 1].fields["term"]
                )
        assert not gates, f"no step has written {gates}"
        self.seen["refused"] += len(self._log.over)

    def _check_state(
        self,
        where: str,
        topic: str,
        was: list[int] | None,
        now: list[int] | None,
        ordered: set[str],
    ) -> str:
        """Check what a step says of a topic; return how that has changed, empty if it has not."""
        if now is not None and topic not in ordered:
            most, pending, _, full_ms, _, rate, taken, over = now
            assert bool(over) is bool(full_ms), f"{where}: {topic} {now}"
            for bit, allowed, used in ((1, most, pending), (2, WINDOW_S * rate, taken)):
                free, is_over = max(1, allowed // 10), bool(over & bit)
                is_up = bool(allowed) and used >= allowed
                assert is_over or not is_up, f"{where}: {topic} is not full, {now}"
                is_free = not allowed or used <= allowed - free
                assert not (is_over and is_free), f"{where}: {topic} is full, {now}"
        is_kind, was_kind = kind_of(now), kind_of(was)
        if is_kind == was_kind:
            return ""
        return {"full": "filled", "fast": "too fast", "open": "opened"}[is_kind]

    def _check_gate(
        self,
        where: str,
        topic: str,
        index: int,
        written: Mapping[int, Said],
        now: list[int] | None,
    ) -> None:
        """Check that a gate says what its step does, and that as many messages were pending."""
        judge, step = self._judge, self._judge.steps[index]
        said = {each[2:] for each in written.values()}
        assert len(said) == 1, f"{where}: {said}"
        [(kind, _, _, pending, most, taken, rate)] = said
        assert kind == kind_of(now), f"{where}: {said}, {now}"
        if now is not None and (most or rate):  # else it ends what an order in that step began anew
            assert [pending, taken] == [now[1], now[6]], f"{where}: {said}, {now}"
        if now is None or not most:
            return
        cursors = step.cursors
        at_least = at_most = 0
        for message in judge.messages:
            gate = written[message.partition].offset
            since_ms = cursors[message.lane][0] // 1000 * 1000
            if message.topic != topic or message.offset > gate or message.due_ms < since_ms:
                continue
            marker = judge.rules.killed_by.get(message.source)
            killed_at = 1 << 62 if marker is None else marker.offset
            reached = step.offsets[message.partition]
            # Of what came out before it was killed, a node may have forgotten that it was killed.
            is_passed = message.due_ms <= cursors[message.lane][0]
            is_out = is_passed and bool(judge.produced[message.source])
            at_most += killed_at >= reached or is_out
            at_least += message.offset < reached and killed_at > gate
        assert at_least <= pending <= at_most, (
            f"{where}: {pending} pending for {topic}, by the log {at_least} to {at_most}"
        )
        self.seen["counted"] += 1

    def _check_taken(
        self,
        where: str,
        topic: str,
        index: int,
        written: Mapping[int, Said],
        now: list[int],
        known_ms: int,
        counts: bool,
    ) -> None:
        """Check that a step has counted all that it has passed, once its master has counted for so
        long, and nothing behind its gates."""
        step = self._judge.steps[index]
        since = step.fields["now_ms"] // 1000 - WINDOW_S + 1
        asked = [
            each for each in self._log.asked[topic] if since <= each.second <= since + WINDOW_S
        ]
        if counts and (since - 1) * 1000 >= known_ms:
            least = sum(each.offset < step.offsets[each.partition] for each in asked)
            assert now[6] >= least, f"{where}: {now[6]} taken for {topic}, and not {least}"
            self.seen["rated"] += least > 0
        if written:
            most = sum(each.offset < written[each.partition].offset for each in asked)
            assert now[6] <= most, f"{where}: {now[6]} taken for {topic}, and not {most}"
            self.seen["gates by rate"] += kind_of(now) == "fast"


def kind_of(quota: list[int] | None) -> str:
    """What a gate is called of a topic with this quota."""
    over = quota[7] if quota else 0
    return "full" if over & 1 else "fast" if over else "open"
