"""What became of each request, and whether it may. Pure: records in, faults out.

It repeats the rules about ids over the buffer's committed records, naively, and compares: what was
written to the targets, the dead letters, the receipts. Each request has exactly one outcome:

    a message    delivered once | dead once | killed by the marks that say so | duplicate | conflict
    a mark       one receipt, and what it says is true
    a bad one    one dead letter, with its reason (workload.py); with an id one receipt

Nothing is early, altered, doubled, lost, or from nowhere: what an aborted transaction asked for is
not in the buffer, so its record in a target is from nowhere. Requests name absolute due times.

Not here: lateness, order.
Source: docs/reference/requests.md; docs/design/frontier.md, "Ids" and "Verdicts".
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.evidence import Logged
from chaos.workload import EXPECT

FAULTS_SHOWN: Final = 20

MARK_VERDICTS: Final = frozenset({"cancelled", "replaced", "scheduled", "too-late", "not-found"})

Receipt = dict[str, Any]


@dataclass(slots=True)
class _Message:
    """A request that is to be delivered, if nothing comes between."""

    request: Logged
    due_ms: int
    answer: str | None = None
    """`duplicate` or `conflict`, if the id was taken."""
    family: set[str] = field(default_factory=set)
    """Its source, and those of the records that continue it."""
    deliveries: list[Logged] = field(default_factory=list)
    letters: list[Logged] = field(default_factory=list)
    killers: set[str] = field(default_factory=set)
    """Sources of the marks whose receipts name it."""


@dataclass(slots=True)
class _Mark:
    """A cancel or replace, and what was live under its id."""

    request: Logged
    is_replace: bool
    live: list[_Message]


@dataclass(frozen=True, slots=True)
class Findings:
    """`faults` is what may not be; `waiting` what has no outcome yet: at the end that is lost."""

    faults: tuple[str, ...]
    waiting: tuple[str, ...]
    outcomes: Counter[str]
    """How many requests came to what; a replace counts as mark and as message."""

    @property
    def ok(self) -> bool:
        """All is over and right."""
        return not self.faults and not self.waiting

    def __str__(self) -> str:
        shown = (*self.faults[:FAULTS_SHOWN], *self.waiting[:FAULTS_SHOWN])
        told = f"{len(self.faults)} faults, {len(self.waiting)} without outcome"
        return "\n".join([told, *shown, str(dict(sorted(self.outcomes.items())))])


def judge(
    requests: Iterable[Logged],
    delivered: Iterable[Logged],
    dead: Iterable[Logged],
    receipts: Iterable[Logged],
    *,
    until_ms: int | None = None,
) -> Findings:
    """The findings over all committed records of the buffer, targets and delayd's other topics.
    What is due after `until_ms`, if given, may be pending."""
    return _Judge(until_ms).judge(requests, delivered, dead, receipts)


class _Judge:
    def __init__(self, until_ms: int | None) -> None:
        self.until_ms = until_ms
        self.faults: list[str] = []
        self.waiting: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.messages: dict[str, _Message] = {}
        self.marks: dict[str, _Mark] = {}
        self.bad: dict[str, Logged] = {}
        self.letters: dict[str, list[Logged]] = defaultdict(list)
        self.receipts: dict[str, list[Receipt]] = defaultdict(list)
        self.family_of: dict[str, _Message] = {}
        self.attempt_of: dict[str, str | None] = {}
        """By source of a record that continues a message: which try it is, if it is one."""

    def judge(
        self,
        requests: Iterable[Logged],
        delivered: Iterable[Logged],
        dead: Iterable[Logged],
        receipts: Iterable[Logged],
    ) -> Findings:
        self._replay(sorted(requests, key=lambda record: (record.partition, record.offset)))
        for record in delivered:
            self._take_delivery(record)
        for record in dead:
            self._take_letter(record)
        for record in receipts:
            self._take_receipt(record)
        for mark in self.marks.values():
            self._judge_mark(mark)
        for message in self.messages.values():
            self._judge_message(message)
        for source, request in self.bad.items():
            self._judge_bad(source, request)
        for source, told in self.receipts.items():
            self._fault(source, f"receipts that nobody asked for: {told}")
        for source, letters in self.letters.items():
            self._fault(source, f"dead letters of nothing that is wrong: {letters}")
        return Findings(tuple(self.faults), tuple(self.waiting), self.outcomes)

    def _fault(self, source: str, what: str) -> None:
        self.faults.append(f"{source}: {what}")

    # --- The rules about ids, naively

    def _replay(self, log: list[Logged]) -> None:
        live: dict[tuple[int, str], dict[str, int]] = defaultdict(dict)  # ranking due by source
        log_ms: Counter[int] = Counter()
        for record in log:
            partition, source = record.partition, record.place
            log_ms[partition] = max(log_ms[partition], record.append_ms)
            if record.header(EXPECT) is not None and record.header("delayd-origin") is None:
                self.bad[source] = record
                continue
            id = record.header("delayd-id")
            under_id = live[partition, id] if id is not None else {}
            if record.header("delayd-continues") is not None:
                self._replay_continuation(record, id, under_id)
                continue
            op = record.header("delayd-op") or "schedule"
            if op != "schedule":
                killed = [self.family_of[s] for s in under_id]
                self.marks[source] = _Mark(record, op == "replace", killed)
                under_id.clear()
            if op == "cancel":
                continue
            due_ms = int(record.header("delayd-due") or "")
            message = _Message(record, due_ms, family={source})
            self.messages[source] = self.family_of[source] = message
            pending = [s for s, due in under_id.items() if due > log_ms[partition]]
            if pending:
                same = any(_as_sent(self.family_of[s].request) == _as_sent(record) for s in pending)
                message.answer = "duplicate" if same else "conflict"
            else:
                under_id[source] = max(due_ms, record.append_ms)

    def _replay_continuation(
        self, record: Logged, id: str | None, under_id: dict[str, int]
    ) -> None:
        continued = f"{record.partition}/{record.header('delayd-continues')}"
        message = self.family_of.get(continued)
        if message is None or record.header("delayd-origin") != message.request.place:
            self._fault(record.place, f"continues {continued}, of which nothing is known")
            return
        message.family.add(record.place)
        attempt = record.header("delayd-attempt")
        self.attempt_of[record.place] = None if attempt == "0" else attempt
        self.family_of[record.place] = message
        # A mark came between if it is no longer live: then it is refused.
        if id is not None and under_id.pop(continued, None) is not None:
            under_id[record.place] = int(record.header("delayd-next-due") or "")

    # --- What came out

    def _take_delivery(self, record: Logged) -> None:
        source = record.header("delayd-source") or ""
        message = self.family_of.get(source)
        if message is None:
            self._fault(source, f"delivered to {record.topic}, but nobody asked for it")
            return
        message.deliveries.append(record)
        request, origin = message.request, message.request.place
        is_put_back = source != origin
        key = request.header("delayd-key")
        checks = {
            "topic": record.topic == request.header("delayd-topic"),
            "key": record.key == (request.key if key is None else key.encode()),
            "value": record.value == request.value,
            "headers": _own(record) == _own(request),
            "id": record.header("delayd-id") == request.header("delayd-id"),
            "due": record.header("delayd-due") == str(message.due_ms),
            "origin": record.header("delayd-origin") == (origin if is_put_back else None),
            "attempt": record.header("delayd-attempt") == self.attempt_of.get(source),
        }
        for what in [what for what, is_right in checks.items() if not is_right]:
            self._fault(origin, f"delivered with another {what}: {record}")
        fired_ms = int(record.header("delayd-fired") or "0")
        if min(record.append_ms, fired_ms) < message.due_ms:
            self._fault(origin, f"early: due at {message.due_ms}, delivered {record}")

    def _take_letter(self, record: Logged) -> None:
        if record.header("delayd-reason") != "dead":
            self.letters[record.header("delayd-source") or ""].append(record)
            return
        message = self.family_of.get(record.header("delayd-source") or "")
        if message is None or record.header("delayd-origin") != message.request.place:
            self._fault(record.place, f"a dead letter of nobody's: {record}")
            return
        message.letters.append(record)
        if record.value != message.request.value or int(record.header("delayd-attempt") or 0) < 1:
            self._fault(message.request.place, f"altered in its dead letter: {record}")

    def _take_receipt(self, record: Logged) -> None:
        told: Receipt = json.loads(record.value or b"")
        source = told["source"]
        if record.header("delayd-source") != source or record.key != told["id"].encode():
            self._fault(source, f"its receipt contradicts itself: {record}")
        self.receipts[source].append(told)
        if told["op"] in ("cancel", "replace"):
            for killed in told["killed"]:
                if (message := self.messages.get(killed)) is None:
                    self._fault(source, f"its receipt says that it killed {killed}, no request")
                else:
                    message.killers.add(source)

    # --- Whether it may

    def _judge_mark(self, mark: _Mark) -> None:
        source = mark.request.place
        told = self._answers(source, MARK_VERDICTS)
        if not told:
            self.waiting.append(f"{source}: a {_op(mark)} of {_id(mark)} without verdict")
            return
        if len(told) > 1:
            self._fault(source, f"{len(told)} verdicts: {told}")
        receipt = told[0]
        verdict, killed = receipt["verdict"], receipt["killed"]
        self.outcomes[f"{_op(mark)}: {verdict}"] += 1
        if receipt["op"] != _op(mark) or receipt["id"] != _id(mark):
            self._fault(source, f"the receipt is of something else: {receipt}")
        if mark.live:
            in_time = "replaced" if mark.is_replace else "cancelled"
            may_kill = {message.request.place for message in mark.live}
            is_true = bool(killed) and set(killed) <= may_kill if verdict == in_time else not killed
            if verdict not in (in_time, "too-late") or not is_true:
                self._fault(source, f"of {sorted(may_kill)}: {receipt}")
            if verdict == "too-late" and not any(_was_done(m, receipt["at_ms"]) for m in mark.live):
                self._fault(source, f"nothing was delivered or dead by then: {receipt}")
        elif mark.is_replace:
            if verdict != "scheduled" or killed:
                self._fault(source, f"nothing was pending: {receipt}")
        elif verdict == "cancelled":
            # Again: what it names must have been killed by an earlier mark of the id.
            for message in [self.family_of[k] for k in killed if k in self.family_of]:
                if not message.killers - {source}:
                    self._fault(source, f"nobody else cancelled it: {receipt}")
            if not killed:
                self._fault(source, f"cancelled nothing: {receipt}")
        elif verdict != "not-found" or killed:
            self._fault(source, f"nothing was pending: {receipt}")

    def _judge_message(self, message: _Message) -> None:
        source = message.request.place
        has_id = message.request.header("delayd-id") is not None
        outcomes = ["delivered"] * len(message.deliveries)
        outcomes += ["dead"] * len(message.letters)
        outcomes += ["killed"] * bool(message.killers)
        refused = self.letters.pop(source, [])
        answers = self._answers(source, {"duplicate", "conflict", "dead"})
        expected = ["dead"] * len(message.letters) if has_id else []
        if message.answer is not None:
            if not answers and not outcomes and not refused:
                self.waiting.append(f"{source}: a {message.answer} without receipt")
                return
            outcomes.append(message.answer)
            expected.append(message.answer)
        letters = ["conflict"] if message.answer == "conflict" else []
        if [letter.header("delayd-reason") for letter in refused] != letters:
            self._fault(source, f"expected dead letters {letters}: {refused}")
        if sorted(told["verdict"] for told in answers) != sorted(expected):
            self._fault(source, f"expected receipts {expected}: {answers}")
        if not outcomes and self.until_ms is not None and message.due_ms > self.until_ms:
            self.outcomes["message: pending"] += 1
            return
        if not outcomes:
            self.waiting.append(f"{source}: no outcome: {message.request}")
            return
        if len(outcomes) > 1:
            self._fault(source, f"{' and '.join(outcomes)}: {message}")
        retried = " after retries" if len(message.family) > 1 else ""
        self.outcomes[f"message: {outcomes[0]}{retried}"] += 1

    def _judge_bad(self, source: str, request: Logged) -> None:
        letters = self.letters.pop(source, [])
        told = self.receipts.pop(source, [])
        if not letters:
            self.waiting.append(f"{source}: a bad request without dead letter")
            return
        if [letter.header("delayd-reason") for letter in letters] != [request.header(EXPECT)]:
            self._fault(source, f"expected one {request.header(EXPECT)}: {letters}")
        if letters[0].value != request.value:
            self._fault(source, f"altered in its dead letter: {letters[0]}")
        verdicts = ["rejected"] if request.header("delayd-id") is not None else []
        if [receipt["verdict"] for receipt in told] != verdicts:
            self._fault(source, f"expected receipts {verdicts}: {told}")
        self.outcomes["bad: rejected"] += 1

    def _answers(self, source: str, verdicts: Set[str]) -> list[Receipt]:
        """Take the receipts of these verdicts from what was found for a request."""
        found = self.receipts.pop(source, [])
        if others := [told for told in found if told["verdict"] not in verdicts]:
            self.receipts[source] = others
        return [told for told in found if told["verdict"] in verdicts]


def _was_done(message: _Message, at_ms: int) -> bool:
    """Was it fired by then, by the master's clock? Dead letters do not say when they were."""
    fired_ms = [int(record.header("delayd-fired") or "0") for record in message.deliveries]
    return bool(message.letters) or any(fired <= at_ms for fired in fired_ms)


def _own(record: Logged) -> list[tuple[str, bytes | None]]:
    """The user's headers."""
    return [pair for pair in record.headers if not pair[0].startswith("delayd-")]


def _as_sent(record: Logged) -> tuple[object, ...]:
    """What makes two requests the same."""
    headers = sorted(pair for pair in record.headers if pair[0] != "delayd-op")
    return (record.key, record.value, headers)


def _op(mark: _Mark) -> str:
    return "replace" if mark.is_replace else "cancel"


def _id(mark: _Mark) -> str | None:
    return mark.request.header("delayd-id")
