"""What must hold of a run, judged from the committed records in Kafka alone.

It shares no code with what it judges: headers, frontier records, ranks and lanes are read here anew
from docs/design/frontier.md. Each check names the rule that it holds the run to.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass
from itertools import pairwise
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
BORROWED_MS = 1_250
"""What a topic may be ahead of its rate, and behind it: docs/design/frontier.md, Smoothing."""
CLOCKS_APART_MS = 4_000
"""Steps back of clocks that a successor makes nothing of."""


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
    turn: str | None
    """Of a continuation: smoothing deferred it."""

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

    def __init__(
        self, requests: list[Request], id_memory_ms: int, *, ignores_repeats: bool = False
    ) -> None:
        """`ignores_repeats`: what continues a message a second time is none."""
        self._ignores_repeats = ignores_repeats
        self.id_memory_ms = id_memory_ms
        self.messages: list[Request] = []
        self.answers: list[Request] = []
        self.refusals: dict[str, str] = {}
        """By source: "duplicate" or "conflict"."""
        self.killed_by: dict[str, Request] = {}
        self.targets_of: dict[str, list[Request]] = {}
        """By source of a mark: what it kills."""
        self.log_ms_of: dict[str, int] = {}
        """By source of a mark: log time."""
        self.continued_by: dict[str, Request] = {}
        """By source: the continuation that was accepted."""
        self.redriven: set[str] = set()
        self.origins: dict[str, str] = {}
        """By source of a continuation: the source of the user's own request."""
        self.by_source: dict[str, Request] = {}
        self.live: dict[tuple[int, str], list[Request]] = {}
        """By partition and id: what a mark would kill."""
        self.last_killed: dict[tuple[int, str], list[Request]] = {}
        """By partition and id: what its marks killed last."""
        self.refused: set[str] = set()
        """Sources of killed messages whose continuation came after the mark."""
        self.log_ms: Counter[int] = Counter()
        for request in requests:
            self.by_source[request.source] = request
            self.log_ms[request.partition] = max(self.log_ms[request.partition], request.append_ms)
            self._take(request, self.log_ms[request.partition])

    def origin_of(self, source: str) -> str:
        """The source of the user's own request for a message."""
        return self.origins.get(source, source)

    def _place(self, request: Request) -> tuple[int, str]:
        assert request.id is not None, "only ids have a place"
        return request.partition, request.id

    def _take(self, request: Request, log_ms: int) -> None:
        # What has no id is live alone, and nothing finds it.
        live = [] if request.id is None else self.live.setdefault(self._place(request), [])
        if request.op == "continue":
            continued = f"{request.partition}/{request.continues}"
            if continued in self.killed_by:
                self.refused.add(continued)
                return
            if self._ignores_repeats and continued in self.continued_by:
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
            self.log_ms_of[request.source] = log_ms
            self.targets_of[request.source] = list(live)
            self.killed_by |= {message.source: request for message in live}
            if any(message.due_ms + self.id_memory_ms >= log_ms for message in live):
                self.last_killed[self._place(request)] = list(live)
            else:
                # Due long ago, so that others may not know of them: they displace nothing.
                self.last_killed.setdefault(self._place(request), []).extend(live)
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


def check_follows(before: Step, after: Step) -> None:
    """Step: forward only. Term: never back, and its first step moves nothing else."""
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


class Checker:
    """One finished run."""

    def __init__(
        self,
        kafka: MemoryKafka,
        may_die: Container[str] = (),
        *,
        brokers_stepped_back_ms: int = 0,
        nodes_stepped_back_ms: int = 0,
        id_memory_ms: int = 3_600_000,
        due_by_ms: int = 10**15,
        ignores_repeats: bool = False,
        rates: Mapping[str, int] | None = None,
    ) -> None:
        """`may_die`: targets that refused records for a while, perhaps for all retries. `rates`:
        records a second at most, by target.

        `..._stepped_back_ms`: by how much clocks were set back, all in all: so much earlier may a
        record be stamped, by whose clock it is, than the master believed it was. `due_by_ms`: what
        was due by then and was not delivered is lost.
        """
        self.kafka = kafka
        self.may_die = may_die
        self._brokers_stepped_back_ms = brokers_stepped_back_ms
        self._nodes_stepped_back_ms = nodes_stepped_back_ms
        self._id_memory_ms = id_memory_ms
        self.due_by_ms = due_by_ms
        self.rates = rates or {}
        self.smoothed = 0
        """Messages that smoothing deferred, and whose order was judged."""
        requests = [
            self._request(record)
            for log in kafka.topics[BUFFER].partitions
            for record in log.read(0, 10**9)[0]
        ]
        self.rules = Rules(requests, id_memory_ms, ignores_repeats=ignores_repeats)
        self.messages = self.rules.messages
        self.answers = self.rules.answers
        self.retries = {
            f"{request.partition}/{request.continues}": request
            for request in requests
            if request.op == "continue"
        }
        """By source: what continues it, refused or not."""
        self.steps = [self._step(record) for record in self.committed(FRONTIER)]
        self.step_times = [record.append_ms for record in self.committed(FRONTIER)]
        """By step: when it was written, by the broker's clock."""
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
        self.check_now()
        self.check_steps()
        self.check_produced()
        self.check_verdicts()
        self.check_order()
        self.check_rates()
        self.check_smoothed_order()

    def check_frontiers(self) -> None:
        """Step: forward only. Term: never back, and its first step moves nothing else."""
        for before, after in zip(self.steps, self.steps[1:], strict=False):
            check_follows(before, after)

    def check_now(self) -> None:
        """Now: whatever a step took for the time was so by the broker's clock, to the ms."""
        for record, step in zip(self.committed(FRONTIER), self.steps, strict=True):
            now_ms, where = step.fields["now_ms"], f"step {step.fields['step']}"
            assert self._latest_ms(FRONTIER, record) >= now_ms, (
                f"{where} took it for {now_ms}, and it was {record.append_ms}"
            )

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
        for topic in self.targets():
            for record in self.committed(topic):
                headers = dict(record.headers)
                source = (headers["delayd-source"] or b"").decode()
                request = by_source[source]
                assert record.value == request.value, f"{source} was altered"
                if topic == DEAD:
                    continue
                fired_ms = self.check_not_early(topic, record, request)
                assert source in self.step_of, f"{source} was delivered, but is not Done"
                step = self.steps[self.step_of[source]].fields
                assert fired_ms == step["now_ms"], f"{source} belongs to step {step['step']}"
        for message in self.messages:
            times = sum(self.produced[message.source].values())
            if message.source in self.rules.continued_by or message.source in self.killed:
                expected: dict[str, int] = {}
            elif message.due_ms > self.due_by_ms and not self.steps[-1].is_done(message):
                expected = {}
            elif message.expects == "dead":
                expected = {DEAD: 1}
            else:
                expected = {message.topic: 1}
            found = dict(self.produced[message.source])
            if found == {DEAD: 1} and message.topic in self.may_die and expected:
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

    def check_not_early(self, topic: str, record: Record, request: Request) -> int:
        """By the deliverer's clock and by the broker's; when it was delivered by the former."""
        source = request.source
        fired_ms = int(dict(record.headers)["delayd-fired"] or 0)
        assert fired_ms >= request.due_ms, f"{source} fired early: {fired_ms}"
        # Stronger than what is promised of the due time, which is not after `fired_ms`.
        assert self._latest_ms(topic, record) >= fired_ms, (
            f"{source} early by the clock of its topic: {fired_ms} at {record.append_ms}"
        )
        return fired_ms

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
            # Of what is Done, a node may have dropped what was due long before.
            floor_ms = self.rules.log_ms_of[mark.source] - self._id_memory_ms
            recent = {
                m.source
                for m in self.rules.targets_of[mark.source]
                if m.source not in self.killed and m.due_ms >= floor_ms
            }
            if truly:
                expected = "cancelled" if mark.op == "cancel" else "replaced"
            elif recent:
                expected = "too-late"
            elif mark.op == "replace":
                expected = "scheduled"
            else:
                expected = "cancelled" if killed else "not-found"
            assert verdict == expected, f"{mark.source}: {marked}, kills {targets}"
            assert killed == truly or not (truly or recent), f"{mark.source}: {killed} not {truly}"
            known = {self.rules.origin_of(source) for source in self.killed}
            assert killed <= known, f"{mark.source}: {killed} are not killed"

    def _latest_ms(self, topic: str, record: Record) -> int:
        """What the clock that stamped a record may have shown at most before it was set back."""
        if self.kafka.topics[topic].setting("message.timestamp.type") == "CreateTime":
            return record.append_ms + self._nodes_stepped_back_ms
        return record.append_ms + self._brokers_stepped_back_ms

    def _reached(self, message: Request, topic: str) -> bool:
        return self.produced[message.source][topic] > 0

    def targets(self) -> list[str]:
        return [*(t for t in self.kafka.topics if not t.startswith("delayd-")), DEAD]

    def _produced(self) -> dict[str, Counter[str]]:
        """By source: how often it arrived in which topic."""
        produced: dict[str, Counter[str]] = defaultdict(Counter)
        for topic in self.targets():
            for record in self.committed(topic):
                source = dict(record.headers)["delayd-source"] or b""
                produced[source.decode()][topic] += 1
        return produced

    def _verdicts(self) -> dict[str, list[dict[str, Any]]]:
        verdicts: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for record in self.committed(RECEIPTS):
            fields = json.loads(record.value or b"")
            verdicts[fields["source"]].append(fields)
        return verdicts

    def check_order(self) -> None:
        """Order: rank order per target partition, but for late arrivals, which follow at once."""
        by_source = {request.source: request for request in self.messages}
        for topic in self.kafka.topics:
            if topic.startswith("delayd-"):
                continue
            for log in self.kafka.topics[topic].partitions:
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

    def check_rates(self) -> None:
        """Smoothing: by the times of their steps not more go out than the rate allows."""
        if self._nodes_stepped_back_ms + self._brokers_stepped_back_ms > CLOCKS_APART_MS:
            return
        for topic, rate in self.rates.items():
            fired_ms = sorted(
                int(dict(r.headers)["delayd-fired"] or 0) for r in self.committed(topic)
            )
            for first, from_ms in enumerate(fired_ms):
                for last in range(first, len(fired_ms)):
                    allowed = rate * (fired_ms[last] - from_ms + BORROWED_MS) / 1_000
                    assert last - first <= allowed, f"{topic}: {last - first + 1} from {from_ms} on"

    def check_smoothed_order(self) -> None:
        """Smoothing: only where there is a rate, and those that came back in time keep their
        order."""
        smoothed = {m.topic for m in self.messages if m.turn is not None}
        assert smoothed <= set(self.rates), f"{smoothed} have no rate"
        families: dict[str, list[Request]] = defaultdict(list)
        for message in self.messages:
            families[self.rules.origin_of(message.source)].append(message)
        for topic in self.rates:
            for log in self.kafka.topics[topic].partitions:
                ranks = []
                for record in log.read(0, 10**9)[0]:
                    source = (dict(record.headers)["delayd-source"] or b"").decode()
                    origin, *others = families[self.rules.origin_of(source)]
                    is_smoothed = all(m.turn is not None for m in others)
                    if is_smoothed and not {m.source for m in (origin, *others)} & self.late:
                        ranks.append(origin.rank)
                        self.smoothed += bool(others)
                for one, other in pairwise(ranks):
                    assert one <= other, f"{topic}: {other} came after {one}"

    def committed(self, topic: str) -> list[Record]:
        return [
            record
            for log in self.kafka.topics[topic].partitions
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
            turn=headers.get("delayd-turn"),
        )

    def _step(self, record: Record) -> Step:
        return step_of_fields(json.loads(record.value or b""))


def step_of_fields(fields: dict[str, Any]) -> Step:
    """A frontier record, read."""
    cursors = [tuple(fields["lanes"].get(str(n), fields["cursor"])) for n in range(LANES)]
    return Step(cursors, fields["offsets"], fields)
