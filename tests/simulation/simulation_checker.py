"""What must hold of a run, judged from the committed records in Kafka alone.

It shares no code with what it judges: headers, frontier records, ranks and lanes are read here anew
from docs/design/frontier.md. Each check names the rule that it holds the run to.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Container
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from delayd.bus import Record
from delayd.bus.memory import MemoryKafka

BUFFER, FRONTIER, DEAD, RECEIPTS = (
    "delayd-buffer",
    "delayd-frontier",
    "delayd-dead",
    "delayd-receipts",
)
LANES = 64


@dataclass(frozen=True, slots=True)
class Request:
    """A committed record of the buffer."""

    partition: int
    offset: int
    op: str
    """"schedule", "cancel", "replace", "redrive" or "continue"."""
    id: str | None
    topic: str
    due_ms: int
    asked: str
    """The due time as it was written."""
    append_ms: int
    continues: int | None
    redrive: str | None
    """The source that it sends again."""
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


class Rules:
    """The rules for ids, message by message: what is stored, what is answered, who kills whom."""

    def __init__(self, requests: list[Request]) -> None:
        self.messages: list[Request] = []
        self.answers: list[Request] = []
        self.refusals: dict[str, str] = {}
        """By source: "duplicate" or "conflict"."""
        self.killed_by: dict[str, Request] = {}
        self.targets_of: dict[str, list[Request]] = {}
        """By source of a mark: what it kills."""
        self.continued_by: dict[str, Request] = {}
        """By source: the continuation that was accepted."""
        self.redriven: set[str] = set()
        self.origins: dict[str, str] = {}
        """By source of a continuation: the source of the user's own request."""
        self._live: dict[str, list[Request]] = {}
        self._log_ms: Counter[int] = Counter()
        for request in requests:
            self._log_ms[request.partition] = max(
                self._log_ms[request.partition], request.append_ms
            )
            self._take(request, self._log_ms[request.partition])

    def origin_of(self, source: str) -> str:
        """The source of the user's own request for a message."""
        return self.origins.get(source, source)

    def _take(self, request: Request, log_ms: int) -> None:
        live = self._live.setdefault(request.id or request.source, [])
        if request.op == "continue":
            continued = f"{request.partition}/{request.continues}"
            if continued in self.killed_by:
                return
            assert continued not in self.continued_by, f"{continued} was continued twice"
            self.continued_by[continued] = request
            self.origins[request.source] = self.origin_of(continued)
            live[:] = [m for m in live if m.source != continued]
        elif request.expects == "answer" and request.op in ("schedule", "redrive"):
            self.answers.append(request)
            return
        elif request.op == "redrive":
            assert request.redrive is not None
            self.answers.append(request)
            if request.redrive in self.redriven:
                self.refusals[request.source] = "duplicate"
                return
            self.redriven.add(request.redrive)
        elif request.op in ("cancel", "replace"):
            self.answers.append(request)
            self.targets_of[request.source] = list(live)
            self.killed_by |= {message.source: request for message in live}
            live.clear()
            if request.op == "cancel":
                return
        elif request.id is not None:
            taken = [m for m in live if m.due_ms > log_ms]
            if taken:
                same = any(
                    (m.topic, m.value, m.asked) == (request.topic, request.value, request.asked)
                    for m in taken
                )
                self.refusals[request.source] = "duplicate" if same else "conflict"
                self.answers.append(request)
                return
        live.append(request)
        self.messages.append(request)


class Checker:
    """One finished run."""

    def __init__(self, kafka: MemoryKafka, may_die: Container[str] = ()) -> None:
        """`may_die`: targets that refused records for a while, perhaps for all retries."""
        self._kafka = kafka
        self._may_die = may_die
        requests = [
            self._request(record)
            for log in kafka.topics[BUFFER].partitions
            for record in log.read(0, 10**9)[0]
        ]
        self.rules = Rules(requests)
        self.messages = self.rules.messages
        self.answers = self.rules.answers
        self.retries = {
            f"{request.partition}/{request.continues}": request
            for request in requests
            if request.op == "continue"
        }
        """By source: what continues it, refused or not."""
        self.steps = [self._step(record) for record in self._committed(FRONTIER)]
        self.step_of: dict[str, int] = {}
        """By source: the index of the step that made a message Done."""
        self.late: set[str] = set()
        self.produced = self._produced()
        self.verdicts = self._verdicts()
        self.killed = {
            source
            for source in self.rules.killed_by
            if not self.produced[source] and source not in self.rules.continued_by
        }

    def check(self) -> None:
        """AssertionError, with the source or step that breaks a rule."""
        self.check_frontiers()
        self.check_steps()
        self.check_produced()
        self.check_verdicts()
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
            # One whose continuation was refused later counts as retried here.
            retried = [m for m in done if m.source in self.retries]
            killed = [m for m in done if m.source in self.killed and m not in retried]
            delivered = [m for m in done if self._reached(m, m.topic)]
            dead = [m for m in done if self._reached(m, DEAD)]
            digest = sum(crc32(m.source.encode()) for m in delivered)
            for name, found in (
                ("delivered", delivered),
                ("killed", killed),
                ("retried", retried),
                ("dead", dead),
                ("answers", answered),
                ("late", late),
            ):
                assert counts[name] == len(found), f"{where}: {counts}, not {name} {found}"
            assert len(done) == sum(map(len, (delivered, killed, retried, dead))), where
            assert after.fields["digest"] == digest, f"{where}: digest of {delivered}"
            written = after.fields["own_writes"]
            assert all(written[m.partition] >= self.retries[m.source].offset for m in retried), (
                f"{where}: R is {written}"
            )
            self.late |= late
            self.step_of |= {message.source: index for message in done}

    def check_produced(self) -> None:
        """All that was asked for, exactly once, in the step that made it Done, never early."""
        by_source = {request.source: request for request in self.messages + self.answers}
        for topic in self._targets():
            for record in self._committed(topic):
                headers = dict(record.headers)
                source = (headers["delayd-source"] or b"").decode()
                request = by_source[source]
                assert record.value == request.value, f"{source} was altered"
                if topic == DEAD:
                    continue
                fired_ms = int(headers["delayd-fired"] or 0)
                assert fired_ms >= request.due_ms, f"{source} fired early: {fired_ms}"
                assert record.append_ms >= request.due_ms, f"{source} early by the broker"
                assert source in self.step_of, f"{source} was delivered, but is not Done"
                step = self.steps[self.step_of[source]].fields
                assert fired_ms == step["now_ms"], f"{source} belongs to step {step['step']}"
        for message in self.messages:
            times = sum(self.produced[message.source].values())
            if message.source in self.rules.continued_by or message.source in self.killed:
                expected: dict[str, int] = {}
            elif message.expects == "dead":
                expected = {DEAD: 1}
            else:
                expected = {message.topic: 1}
            found = dict(self.produced[message.source])
            if found == {DEAD: 1} and message.topic in self._may_die and expected:
                continue
            assert found == expected, f"{message.source}: {found} ({times}), not {expected}"
        for answer in self.answers:
            is_dead = answer.op in ("schedule", "redrive") and (
                self.rules.refusals.get(answer.source) != "duplicate"
            )
            found = {t: n for t, n in self.produced[answer.source].items() if t == DEAD}
            if answer not in self.messages:
                assert found == ({DEAD: 1} if is_dead else {}), f"{answer.source}: {found}"
        known = {request.source for request in self.messages + self.answers}
        assert set(self.produced) <= known, f"unasked: {set(self.produced) - known}"

    def check_verdicts(self) -> None:
        """Verdicts: true, exactly one for each mark, and nothing that is called killed arrives."""
        for source, given in self.verdicts.items():
            assert len(given) == 1 or source in {m.source for m in self.messages}, given
        for mark in self.answers:
            if mark.source in self.rules.refusals:
                assert [v["verdict"] for v in self.verdicts[mark.source]] == [
                    self.rules.refusals[mark.source]
                ]
            elif mark.op == "redrive":
                # Always one answer; what became of the message may follow it.
                first = [v for v in self.verdicts[mark.source] if v["verdict"] != "dead"]
                expected = "rejected" if mark.expects == "answer" else "scheduled"
                assert [(v["verdict"], v["op"]) for v in first] == [(expected, "redrive")], first
                assert {v["id"] for v in first} == {mark.id or mark.redrive}
            if mark.op not in ("cancel", "replace"):
                continue
            marked = [v for v in self.verdicts[mark.source] if v["verdict"] != "dead"]
            assert len(marked) == 1, f"{mark.source}: {marked}"
            verdict, killed = marked[0]["verdict"], set(marked[0]["killed"])
            targets = {m.source for m in self.rules.targets_of[mark.source]}
            truly = {self.rules.origin_of(source) for source in targets & self.killed}
            assert not any(
                self.produced[source]
                for source in self.rules.origins.keys() | killed
                if self.rules.origin_of(source) in killed
            ), f"{killed} arrived"
            if truly:
                expected = "cancelled" if mark.op == "cancel" else "replaced"
            elif targets:
                expected = "too-late"
            elif mark.op == "replace":
                expected = "scheduled"
            else:
                expected = "cancelled" if killed else "not-found"
            assert verdict == expected, f"{mark.source}: {marked}, kills {targets}"
            assert killed == truly or not targets, f"{mark.source}: {killed}, not {truly}"
            known = {self.rules.origin_of(source) for source in self.killed}
            assert killed <= known, f"{mark.source}: {killed} are not killed"

    def _reached(self, message: Request, topic: str) -> bool:
        return self.produced[message.source][topic] > 0

    def _targets(self) -> list[str]:
        return [*(t for t in self._kafka.topics if not t.startswith("delayd-")), DEAD]

    def _produced(self) -> dict[str, Counter[str]]:
        """By source: how often it arrived in which topic."""
        produced: dict[str, Counter[str]] = defaultdict(Counter)
        for topic in self._targets():
            for record in self._committed(topic):
                source = dict(record.headers)["delayd-source"] or b""
                produced[source.decode()][topic] += 1
        return produced

    def _verdicts(self) -> dict[str, list[dict[str, Any]]]:
        verdicts: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for record in self._committed(RECEIPTS):
            fields = json.loads(record.value or b"")
            verdicts[fields["source"]].append(fields)
        return verdicts

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
                # Continuations come back when they may, in no order with the rest.
                sources = [s for s in sources if by_source[s].op != "continue"]
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
        continues = headers.get("delayd-continues")
        redrive = headers.get("delayd-redrive")
        due = headers.get("delayd-next-due", headers.get("delayd-due", "0"))
        return Request(
            partition=record.partition,
            offset=record.offset,
            op="continue"
            if continues
            else "redrive"
            if redrive
            else headers.get("delayd-op", "schedule"),
            id=headers.get("delayd-id"),
            topic=headers.get("delayd-topic", ""),
            due_ms=max(int(due), record.append_ms),
            asked=headers.get("delayd-due", ""),
            append_ms=record.append_ms,
            continues=None if continues is None else int(continues),
            redrive=redrive,
            expects=headers["expects"],
            value=record.value,
        )

    def _step(self, record: Record) -> Step:
        fields = json.loads(record.value or b"")
        cursors = [tuple(fields["lanes"].get(str(n), fields["cursor"])) for n in range(LANES)]
        return Step(cursors, fields["offsets"], fields)
