"""What must hold of quotas, judged from the records: docs/design/quotas.md read anew."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from log_rules import Step

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
        self.refused: set[tuple[int, str, int, str]] = set()
        """Partition, topic, time and kind of what is refused, because a broker's clock is wrong, or
        because it is forged."""
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
            self.refused.add((partition, topic, int(at_ms), kind))
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
        self._gates: defaultdict[tuple[str, int, str], dict[int, list[Said]]] = defaultdict(dict)
        """By topic, time and kind, by partition: those that no step was found for yet."""
        self._behind: defaultdict[int, dict[str, str]] = defaultdict(dict)
        """By partition and topic: the last gate that a step has written."""
        self._unknown: set[tuple[int, str]] = set()
        """Partitions and topics whose last gate was refused because of a broker's clock."""
        self._is_refused = False
        self._known_ms: dict[tuple[str, int], int] = {}
        """By topic and shard: since when the present master has counted."""
        self.seen: Counter[str] = Counter()

    def check(self) -> None:
        """Check that each step has the quotas that were ordered, and that each gate is in all
        partitions, as the step that wrote it says, and true."""
        for said in self._log.said:
            if said.kind == "limit":
                self._check_home(said)
            else:
                group = self._gates[said.topic, said.at_ms, said.kind]
                group.setdefault(said.partition, []).append(said)
        latest: dict[int, Step] = {}
        before: dict[int, Step] = {}
        for step in self._judge.every_step:
            shard = step.fields["shard"]
            last = latest.get(shard)
            is_given_back = last is not None and (
                "resharding" in last.fields and "resharding" not in step.fields
            )
            if is_given_back or any(step.shards != other.shards for other in latest.values()):
                before, latest = latest, {}
            if shard >= step.shards:  # Of a partition that has no shard any more.
                continue
            if shard in latest:
                self._check_step(latest[shard], step)
            elif before:
                self._check_first(before, step)
            latest[shard] = step
        left = [said for group in self._gates.values() for each in group.values() for said in each]
        assert not left, f"no step has written {left}"
        self._check_last(latest)
        self.seen["refused"] += len(self._log.over)

    def _check_home(self, order: Said) -> None:
        partitions = len(self._judge.steps[0].offsets)
        homes = {
            shards: crc32(order.topic.encode()) % (partitions // shards)
            for shards in (1, 2, 4)
            if partitions % shards == 0
        }
        assert any(order.partition // shards == home for shards, home in homes.items()), order

    def _check_first(self, before: Mapping[int, Step], step: Step) -> None:
        """Check that a new shard has the quotas of those that it goes on from: the limits of the
        newest order, and full if one of them was. It has not said so yet."""
        shard, where = step.fields["shard"], f"step {step.fields['step']}"
        partitions = range(shard, len(step.offsets), step.shards)
        parts = [before[n] for n in sorted({p % len(before) for p in partitions})]
        sources = [part.fields.get("quotas", {}) for part in parts]
        quotas = step.fields.get("quotas", {})
        assert quotas.keys() == {topic for source in sources for topic in source}, where
        for topic, quota in quotas.items():
            known = [source[topic] for source in sources if topic in source]
            if len(before) == step.shards:
                assert [quota] == known, f"{where}: {topic} {quota} {known}"
                continue
            newest = max(known, key=order_ms)
            limits = [newest[0], newest[5], order_ms(newest) if step.shards > 1 else 0]
            told = [quota[0], quota[5], order_ms(quota)]
            assert told == limits, f"{where}: {topic} {quota} {known}"
            over = reduce(or_, (each[7] for each in known))
            assert (quota[7], bool(quota[3])) == (over, over > 0), f"{where}: {topic} {quota}"
            assert (quota[2], quota[4]) == (-1, 0), f"{where}: {topic} {quota}"
            self.seen["resharded"] += 1
            self.seen["resharded apart"] += len({kind_of(each) for each in known}) > 1

    def _check_step(self, last: Step, step: Step) -> None:
        where = f"step {step.fields['step']} of shard {step.fields['shard']}"
        quotas, was = step.fields.get("quotas", {}), last.fields.get("quotas", {})
        ordered = self._check_orders(where, last, step)
        # A step that stands still counts nothing: the first of a term, for one.
        counts = (step.cursors, step.offsets) != (last.cursors, last.offsets)
        is_new_term = step.fields["term"] != last.fields["term"]
        for topic in {*quotas, *was, *ordered}:
            now = quotas.get(topic)
            if not counts:
                ordered.add(topic)
            changed = self._check_state(where, topic, was.get(topic), now, ordered)
            written = self._written(topic, step, now)
            if changed:
                self.seen[changed] += 1
                assert written or self._is_refused, (
                    f"{where}: {topic} is {now} after {was.get(topic)}, and no gate says so"
                )
            if written:
                self._check_gate(where, topic, step, written, now)
            self._check_behind(where, topic, step, now, counts and topic not in ordered)
            if is_new_term or now is None or not now[5]:
                # The first record of a term has its predecessor's clock.
                self._known_ms.pop((topic, step.fields["shard"]), None)
            else:
                self._check_taken(where, topic, step, written, now, counts)
        self.seen["handed on"] += bool(quotas) and is_new_term

    def _check_orders(self, where: str, last: Step, step: Step) -> set[str]:
        """Check that a step has the quotas of the step before, and what the orders that it has
        passed make of them; return the topics of these."""
        was, quotas = last.fields.get("quotas", {}), step.fields.get("quotas", {})
        named = {topic: limits_of(quota) for topic, quota in was.items()}
        lasts: defaultdict[str, dict[int, list[int] | None]] = defaultdict(dict)
        for said in self._log.said:
            passed = last.offsets[said.partition] <= said.offset < step.offsets[said.partition]
            if said.kind == "limit" and passed:
                is_end = not said.max_pending and not said.rate
                self.seen["cleared" if is_end else "set"] += 1
                at_ms = said.at_ms if step.shards > 1 else 0
                limits = [said.max_pending, said.rate, said.offset, at_ms]
                lasts[said.topic][said.partition] = None if is_end else limits
        for topic, by_partition in lasts.items():
            # Of fewer shards, or more, a topic had another home: of two either may come last.
            found = limits_of(quotas[topic]) if topic in quotas else None
            assert found in by_partition.values(), f"{where}: {topic} {found}, {by_partition}"
            named.pop(topic, None)
            if found is not None:
                named[topic] = found
        found_all = {topic: limits_of(quota) for topic, quota in quotas.items()}
        assert found_all == named, f"{where}: {found_all}, and not {named}"
        return {*lasts}

    def _written(self, topic: str, step: Step, now: list[int] | None) -> dict[int, Said]:
        """Take the gates that a step has written in the partitions of its shard. Others may have
        the same time, while masters rest: they lie beyond R."""
        group = self._gates.get((topic, step.fields["now_ms"], kind_of(now)), {})
        own = range(step.fields["shard"], len(step.offsets), step.shards)
        written = step.fields["own_writes"]
        heads = {partition: group[partition][0] for partition in own if group.get(partition)}
        found = {p: said for p, said in heads.items() if said.offset <= written[p]}
        said = topic, step.fields["now_ms"], kind_of(now)
        refused = {partition for partition in own if (partition, *said) in self._log.refused}
        for partition in refused - found.keys():
            self._behind[partition].pop(topic, None)
            self._unknown.add((partition, topic))
        is_whole = {*found} | refused >= {*own}
        assert not found or is_whole, f"{topic}: gates of {step.fields} in {found}"
        self._is_refused = bool(refused)
        for partition in found:
            self._unknown.discard((partition, topic))
            self._behind[partition][topic] = group[partition].pop(0).kind
        return found

    def _check_behind(
        self, where: str, topic: str, step: Step, now: list[int] | None, counts: bool
    ) -> None:
        """Check that behind its gates a topic is what a step says that has counted."""
        own = range(step.fields["shard"], len(step.offsets), step.shards)
        known = [partition for partition in own if (partition, topic) not in self._unknown]
        found = {self._behind[partition].get(topic, "open") for partition in known}
        if counts or now is None:
            assert found <= {kind_of(now)}, f"{where}: {topic} is {found} in {[*own]}, {now}"

    def _check_last(self, latest: Mapping[int, Step]) -> None:
        """Check that at rest all masters have counted alike: what is far away, in all shards."""
        judge = self._judge
        for shard, step in latest.items():
            for topic, quota in step.fields.get("quotas", {}).items():
                far = [
                    m.source
                    for m in judge.messages
                    if m.topic == topic
                    and not judge.steps[-1].is_done(m)
                    and m.source not in judge.rules.killed_by
                ]
                assert quota[1] == len(far), f"shard {shard} has counted {quota} of {topic}: {far}"
                self.seen["alike"] += len(latest) > 1
                self.seen["alike and some"] += len(latest) > 1 and bool(far)

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
            most, pending, _, full_ms, _, rate, taken, over, *_ = now
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
        step: Step,
        written: Mapping[int, Said],
        now: list[int] | None,
    ) -> None:
        """Check that a gate says what its step does, and that as many messages were pending."""
        judge = self._judge
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
            if message.topic != topic:
                continue
            since_ms = cursors[message.lane][0] // 1000 * 1000
            if message.partition not in written:  # What of other shards it knew is not in the log.
                at_most += 1
                continue
            gate = written[message.partition].offset
            if message.offset > gate:
                continue
            if message.due_ms < since_ms:  # Others may stand before that.
                at_most += step.shards > 1
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
        step: Step,
        written: Mapping[int, Said],
        now: list[int],
        counts: bool,
    ) -> None:
        """Check that a step has counted all that it has passed, once its master has counted for so
        long, and nothing behind its gates."""
        # Another rate is counted by what was counted for the one before.
        shard, now_ms = step.fields["shard"], step.fields["now_ms"]
        known_ms = self._known_ms.setdefault((topic, shard), now_ms)
        since = step.fields["now_ms"] // 1000 - WINDOW_S + 1
        asked = [
            each for each in self._log.asked[topic] if since <= each.second <= since + WINDOW_S
        ]
        if counts and (since - 1) * 1000 >= known_ms:
            least = sum(each.offset < step.offsets[each.partition] for each in asked)
            assert now[6] >= least, f"{where}: {now[6]} taken for {topic}, and not {least}"
            self.seen["rated"] += least > 0
        if written:
            most = sum(
                each.partition not in written or each.offset < written[each.partition].offset
                for each in asked
            )
            assert now[6] <= most, f"{where}: {now[6]} taken for {topic}, and not {most}"
            self.seen["gates by rate"] += kind_of(now) == "fast"


def order_ms(quota: Sequence[int]) -> int:
    """When its order was given; 0 of one shard, which does not say it."""
    return quota[8] if len(quota) > 8 else 0


def limits_of(quota: list[int]) -> list[int]:
    """What an order says of a quota, and which one."""
    return [quota[0], quota[5], quota[2], order_ms(quota)]


def kind_of(quota: list[int] | None) -> str:
    """What a gate is called of a topic with this quota."""
    over = quota[7] if quota else 0
    return "full" if over & 1 else "fast" if over else "open"
