"""What must hold of a run, judged from the committed records in Kafka alone.

It shares no code with what it judges: headers, frontier records, ranks and lanes are read here anew
from docs/design/frontier.md. Each check names the rule that it holds the run to.
"""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from delayd.bus import Record
from delayd.bus.memory import MemoryKafka

BUFFER, FRONTIER, DEAD = "delayd-buffer", "delayd-frontier", "delayd-dead"
LANES = 64


@dataclass(frozen=True, slots=True)
class Request:
    """A committed record of the buffer."""

    partition: int
    offset: int
    topic: str
    due_ms: int
    expects: str
    """"delivered", "dead" or "answer"."""
    value: bytes | None

    @property
    def source(self) -> str:
        return f"{self.partition}/{self.offset}"

    @property
    def rank(self) -> tuple[int, int, int]:
        return (self.due_ms, self.partition, self.offset)

    @property
    def lane(self) -> int:
        return crc32(self.topic.encode()) % LANES


@dataclass(frozen=True, slots=True)
class Step:
    """A committed frontier record."""

    cursors: list[tuple[int, int, int]]
    offsets: list[int]
    fields: dict[str, Any]

    def is_done(self, request: Request) -> bool:
        return (
            request.rank < self.cursors[request.lane]
            and request.offset < self.offsets[request.partition]
        )


class Checker:
    """One finished run."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._kafka = kafka
        requests = [
            self._request(record)
            for log in kafka.topics[BUFFER].partitions
            for record in log.read(0, 10**9)[0]
        ]
        self.messages = [request for request in requests if request.expects != "answer"]
        self.answers = [request for request in requests if request.expects == "answer"]
        self.steps = [self._step(record) for record in self._committed(FRONTIER)]
        self.step_of: dict[str, int] = {}
        """By source: the index of the step that made a message Done."""
        self.late: set[str] = set()

    def check(self) -> None:
        """AssertionError, with the source or step that breaks a rule."""
        self.check_frontiers()
        self.check_steps()
        self.check_produced()
        self.check_order()

    def check_frontiers(self) -> None:
        """Step: forward only. Term: never back, and its first step moves nothing else."""
        for before, after in zip(self.steps, self.steps[1:], strict=False):
            old, new = before.fields, after.fields
            where = f"step {new['step']} of {new['owner']}"
            assert new["step"] == old["step"] + 1, f"{where} follows step {old['step']}"
            assert all(a <= b for a, b in zip(before.cursors, after.cursors, strict=True)), where
            assert all(a <= b for a, b in zip(before.offsets, after.offsets, strict=True)), where
            if new["term"] == old["term"]:
                assert new["owner"] == old["owner"], f"{where} shares a term"
            else:
                assert new["term"] == old["term"] + 1, f"{where}: term after {old['term']}"
                assert (after.cursors, after.offsets) == (before.cursors, before.offsets), where

    def check_steps(self) -> None:
        """Step: each delivers Done(K', O') - Done(K, O) and answers [O, O'), and says so."""
        for index, (before, after) in enumerate(zip(self.steps, self.steps[1:], strict=False), 1):
            counts, where = after.fields["counts"], f"step {after.fields['step']}"
            done = [m for m in self.messages if after.is_done(m) and not before.is_done(m)]
            answered = [
                a
                for a in self.answers
                if before.offsets[a.partition] <= a.offset < after.offsets[a.partition]
            ]
            late = {m.source for m in done if m.rank < before.cursors[m.lane]}
            delivered = [m for m in done if m.expects == "delivered"]
            digest = sum(crc32(m.source.encode()) for m in delivered)
            assert counts["delivered"] == len(delivered), f"{where}: {counts}, not {delivered}"
            assert counts["dead"] == len(done) - len(delivered), f"{where}: {counts}, {done}"
            assert counts["answers"] == len(answered), f"{where}: {counts}, not {answered}"
            assert counts["late"] == len(late), f"{where}: {counts}, not {late}"
            assert after.fields["digest"] == digest, f"{where}: digest of {delivered}"
            self.late |= late
            self.step_of |= {message.source: index for message in done}

    def check_produced(self) -> None:
        """All that was asked for, exactly once, in the step that made it Done, never early."""
        produced: Counter[tuple[str, str]] = Counter()
        by_source = {request.source: request for request in self.messages + self.answers}
        targets = [topic for topic in self._kafka.topics if not topic.startswith("delayd-")]
        for topic in [*targets, DEAD]:
            by_broker = self._kafka.topics[topic].setting("message.timestamp.type")
            for record in self._committed(topic):
                headers = dict(record.headers)
                source = (headers["delayd-source"] or b"").decode()
                request = by_source[source]
                produced[source, topic] += 1
                assert record.value == request.value, f"{source} was altered"
                if topic == DEAD:
                    continue
                fired_ms = int(headers["delayd-fired"] or 0)
                assert fired_ms >= request.due_ms, f"{source} fired early: {fired_ms}"
                assert record.append_ms >= request.due_ms, f"{source} early by {by_broker}"
                assert source in self.step_of, f"{source} was delivered, but is not Done"
                step = self.steps[self.step_of[source]].fields
                assert fired_ms == step["now_ms"], f"{source} belongs to step {step['step']}"
        expected = Counter(
            (r.source, r.topic if r.expects == "delivered" else DEAD)
            for r in self.messages + self.answers
        )
        lost, more = expected - produced, produced - expected
        assert not lost, f"lost: {sorted(lost)}"
        assert not more, f"doubled or unasked: {sorted(more)}"

    def check_order(self) -> None:
        """Order: rank order per target partition, but for late arrivals, which follow at once."""
        by_source = {request.source: request for request in self.messages}
        for topic in self._kafka.topics:
            if topic.startswith("delayd-"):
                continue
            for log in self._kafka.topics[topic].partitions:
                sources = [
                    (dict(record.headers)["delayd-source"] or b"").decode()
                    for record in log.read(0, 10**9)[0]
                ]
                in_time = [by_source[s].rank for s in sources if s not in self.late]
                assert in_time == sorted(in_time), f"{topic}: out of order"
                by_step = [(self.step_of[s], by_source[s].rank) for s in sources]
                assert by_step == sorted(by_step), f"{topic}: a step is out of order"

    def _committed(self, topic: str) -> list[Record]:
        return [
            record
            for log in self._kafka.topics[topic].partitions
            for record in log.read(0, 10**9)[0]
        ]

    def _request(self, record: Record) -> Request:
        headers = {name: (content or b"").decode() for name, content in record.headers}
        return Request(
            partition=record.partition,
            offset=record.offset,
            topic=headers["delayd-topic"],
            due_ms=max(int(headers["delayd-due"]), record.append_ms),
            expects=headers["expects"],
            value=record.value,
        )

    def _step(self, record: Record) -> Step:
        fields = json.loads(record.value or b"")
        cursors = [tuple(fields["lanes"].get(str(n), fields["cursor"])) for n in range(LANES)]
        return Step(cursors, fields["offsets"], fields)
