"""What a log of any requests comes to, message by message, and whether it did come to that.

The parser is the cluster's own; what follows from a request is told anew and naively, from the
committed records of the buffer in their order. Each request has exactly one outcome:

    a bad one    one dead letter with its reason
    a message    delivered once | dead once | killed by a mark whose receipt names it | pending
    taken ids    a receipt `duplicate`, or `conflict` with a dead letter
    a cancel     one receipt, whose verdict and whose killed messages are true

Source: docs/reference/requests.md; docs/design/frontier.md, "Ids" and "Verdicts".
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from outcomes_read import Found, OutcomesRead

from delayd.bus import Record
from delayd.request import Op, Reject, Request, RequestLimits, parse
from replication.ids import LIVE_MAX

FAULTS_SHOWN = 20


@dataclass(slots=True)
class Message:
    """A message under one of its sources: a retry is another one, with the same root."""

    source: str
    record: Record
    request: Request
    due_ms: int
    root: "Message | None" = None
    """None if this is the user's own request."""
    killed_by: str | None = None
    next: "Message | None" = None
    """What continues it."""

    @property
    def tip(self) -> "Message":
        """The newest of its continuations."""
        tip = self
        while tip.next is not None:
            tip = tip.next
        return tip


@dataclass(slots=True)
class Mark:
    """A cancel or replace, and what was live under its id."""

    request: Request
    live: list[Message]


@dataclass(slots=True)
class Model:
    """Fed with the buffer's records, in order within a partition."""

    limits: RequestLimits
    far_ms: int
    """What is due later is not waited for."""
    rejects: dict[str, tuple[Record, Reject]] = field(default_factory=dict)
    messages: dict[str, Message] = field(default_factory=dict)
    """By source; the user's requests and what continues them."""
    marks: dict[str, Mark] = field(default_factory=dict)
    taken: dict[str, tuple[Record, Request, str]] = field(default_factory=dict)
    """Requests that were not stored: `duplicate` or `conflict`."""
    killed_under: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By id: the sources of all that any mark killed."""
    ends: dict[int, int] = field(default_factory=dict)
    """By partition: 1 + the last offset."""
    horizon_ms: int = 0
    """When the last message that is waited for is due."""
    faults: list[str] = field(default_factory=list)
    _log_ms: dict[int, int] = field(default_factory=dict)
    _live: dict[str, list[Message]] = field(default_factory=lambda: defaultdict(list))
    _redriven: set[str] = field(default_factory=set)

    def take(self, record: Record) -> None:
        """The next record of its partition."""
        partition = record.partition
        source = f"{partition}/{record.offset}"
        self.ends[partition] = record.offset + 1
        self._log_ms[partition] = max(self._log_ms.get(partition, 0), record.append_ms)
        request = parse(record, self.limits)
        if isinstance(request, Reject):
            self.rejects[source] = (record, request)
            return
        message = Message(source, record, request, max(request.due_ms, record.append_ms))
        match request.op:
            case Op.CONTINUE:
                self._continue(message)
            case Op.CANCEL:
                self._mark(source, request)
            case Op.REPLACE:
                self._mark(source, request)
                self._store(message)
            case Op.SCHEDULE:
                self._schedule(message)
            case Op.REDRIVE:
                assert request.redrive is not None
                if request.redrive in self._redriven:
                    self.taken[source] = (record, request, "duplicate")
                else:
                    self._redriven.add(request.redrive)
                    self._store(message)

    def _schedule(self, message: Message) -> None:
        request = message.request
        log_ms = self._log_ms[message.record.partition]
        if request.id is not None:
            pending = [m for m in self._live[request.id] if m.due_ms > log_ms]
            if pending:
                same = any(as_sent(m) == as_sent(message) for m in pending)
                verdict = "duplicate" if same else "conflict"
                self.taken[message.source] = (message.record, request, verdict)
                return
        self._store(message)

    def _mark(self, source: str, request: Request) -> None:
        assert request.id is not None, "the parser lets no other mark pass"
        live = self._live.pop(request.id, [])
        for message in live:
            message.killed_by = source
            self.killed_under[request.id].add((message.root or message).source)
        self.marks[source] = Mark(request, live)

    def _continue(self, message: Message) -> None:
        assert message.request.continues is not None
        before = self.messages.get(f"{message.record.partition}/{message.request.continues[1]}")
        if before is None:
            self.faults.append(f"{message.source} continues nothing")
            return
        if before.killed_by is not None:
            return
        if before.next is not None:
            self.faults.append(f"{message.source} continues what {before.next.source} continues")
        root = before.root or before
        message.root = root
        before.next = message
        if message.request.origin != root.source or content(message) != content(root):
            self.faults.append(f"{message.source} is not what {root.source} asked for")
        if message.request.id is not None:
            self._live[message.request.id].remove(before)
        self._store(message)

    def _store(self, message: Message) -> None:
        self.messages[message.source] = message
        if message.due_ms < self.far_ms:
            self.horizon_ms = max(self.horizon_ms, message.due_ms)
        if message.request.id is not None:
            live = self._live[message.request.id]
            live.append(message)
            assert len(live) <= LIVE_MAX, "more than an id can remember: use more ids"


def content(message: Message) -> tuple[object, ...]:
    """What is delivered."""
    asked = message.request
    return (asked.topic, asked.asked_due_ms, asked.key, asked.value, asked.headers, asked.partition)


def as_sent(message: Message) -> tuple[object, ...]:
    """What makes two requests the same; of a retry, what its user had sent."""
    record = (message.root or message).record
    said = {
        (name, value)
        for name, value in record.headers
        if name.startswith("delayd-") and name not in ("delayd-op", "delayd-key", "delayd-redrive")
    }
    asked = message.request
    # The text of a partition is read as a number before it is compared.
    said = {(name, value) for name, value in said if name != "delayd-partition"}
    return (said, asked.key, asked.partition, record.value, asked.headers)


class Judgement:
    """The model against what was found. `faults` is empty if all is right."""

    def __init__(self, model: Model, seen: OutcomesRead) -> None:
        self._model = model
        self._seen = seen
        self.faults = list(model.faults)
        self.outcomes: Counter[str] = Counter()
        self._wanted: dict[str, list[set[str]]] = defaultdict(list)
        """By source: the receipts that there must be, each one of several verdicts."""
        for source, (record, reject) in model.rejects.items():
            self._judge_reject(source, record, reject)
        for source, (record, request, verdict) in model.taken.items():
            self._judge_taken(source, record, request, verdict)
        for source, mark in model.marks.items():
            self._judge_mark(source, mark)
        for message in model.messages.values():
            if message.root is None:
                self._judge_message(message)
        self._judge_receipts()
        self._judge_strangers()

    def __str__(self) -> str:
        shown = "\n".join(self.faults[:FAULTS_SHOWN])
        return f"{len(self.faults)} faults\n{shown}\n{dict(self.outcomes)}"

    def _fault(self, source: str, what: str) -> None:
        self.faults.append(f"{source}: {what}")

    def _letter(self, source: str, reason: str) -> Found | None:
        """The one dead letter; nothing is delivered."""
        letters = self._seen.letters.get(source, [])
        if len(letters) != 1 or self._seen.delivered.get(source):
            self._fault(source, f"wanted one dead letter {reason}, found {self._found(source)}")
            return None
        if letters[0].header("delayd-reason") != reason:
            self._fault(source, f"wanted {reason}: {letters[0].headers}")
        return letters[0]

    def _found(self, source: str) -> str:
        delivered = [found.topic for found in self._seen.delivered.get(source, [])]
        reasons = [found.header("delayd-reason") for found in self._seen.letters.get(source, [])]
        return f"delivered to {delivered}, dead letters {reasons}"

    def _judge_reject(self, source: str, record: Record, reject: Reject) -> None:
        letter = self._letter(source, reject.reason.slug)
        self.outcomes[f"dead letter: {reject.reason.slug}"] += 1
        if reject.id is not None:
            self._wanted[source].append({"rejected"})
        if letter is None or reject.truncated:
            return
        count = len(record.headers)
        if (letter.key, letter.value) != (record.key, record.value):
            self._fault(source, "the dead letter has another key or value")
        if letter.headers[:count] != record.headers or len(letter.headers) != count + 3:
            self._fault(source, f"the dead letter has other headers: {letter.headers}")

    def _judge_taken(self, source: str, record: Record, request: Request, verdict: str) -> None:
        self.outcomes[f"{request.op.slug}: {verdict}"] += 1
        self._wanted[source].append({verdict})
        if verdict == "conflict":
            letter = self._letter(source, "conflict")
            if letter is not None and (letter.key, letter.value) != (record.key, record.value):
                self._fault(source, "the dead letter has another key or value")
        elif self._seen.delivered.get(source) or self._seen.letters.get(source):
            self._fault(source, f"a duplicate came to something: {self._found(source)}")

    def _judge_mark(self, source: str, mark: Mark) -> None:
        is_cancel = mark.request.op is Op.CANCEL
        own = {"cancelled", "too-late", "not-found"} if is_cancel else MARKED_BY_REPLACE
        self._wanted[source].append(own)
        told = [each for each in self._seen.receipts.get(source, []) if each["verdict"] in own]
        if len(told) != 1:
            self._fault(source, f"wanted one receipt of {sorted(own)}, found {told}")
            return
        [receipt] = told
        self.outcomes[f"{mark.request.op.slug}: {receipt['verdict']}"] += 1
        if is_cancel and (self._seen.delivered.get(source) or self._seen.letters.get(source)):
            self._fault(source, f"a cancel came to something: {self._found(source)}")
        named = set(receipt["killed"])
        live = {(message.root or message).source for message in mark.live}
        if live:
            wanted = ("cancelled" if is_cancel else "replaced") if named else "too-late"
            true = named <= live
        elif named:
            assert mark.request.id is not None
            wanted = "cancelled"
            earlier = self._model.killed_under[mark.request.id]
            true = is_cancel and all(each in earlier and self._is_killed(each) for each in named)
        else:
            wanted, true = ("not-found" if is_cancel else "scheduled"), True
        if receipt["verdict"] != wanted or not true:
            self._fault(source, f"{sorted(live)} were live: {receipt}")

    def _is_killed(self, source: str) -> bool:
        """Does the receipt of its own killer say so? The source is that of a user's own request."""
        killer = self._model.messages[source].tip.killed_by
        assert killer is not None, "only what is killed is asked for"
        return any(source in told["killed"] for told in self._seen.receipts.get(killer, []))

    def _judge_message(self, message: Message) -> None:
        source, tip, request = message.source, message.tip, message.request
        delivered = self._seen.delivered.get(source, [])
        letters = self._seen.letters.get(source, [])
        is_killed = tip.killed_by is not None and self._is_killed(source)
        if request.op is Op.REDRIVE:
            self._wanted[source].append({"scheduled"})
        if tip.due_ms >= self._model.far_ms and not is_killed:
            if delivered or letters or tip.killed_by is not None:
                self._fault(source, f"is not due: {self._found(source)}")
            self.outcomes["pending"] += 1
            return
        if len(delivered) + len(letters) + is_killed != 1:
            self._fault(source, f"killed: {is_killed}, {self._found(source)}")
        elif delivered:
            self.outcomes["delivered after a retry" if tip is not message else "delivered"] += 1
            self._judge_delivery(tip, delivered[0])
        elif letters:
            self.outcomes["dead letter: dead"] += 1
            if letters[0].header("delayd-reason") != "dead":
                self._fault(source, f"a good request is refused: {letters[0].headers}")
            if letters[0].header("delayd-source") != tip.source:
                self._fault(source, f"died before {tip.source}")
            if request.id is not None:
                self._wanted[source].append({"dead"})
        else:
            self.outcomes["killed"] += 1

    def _judge_delivery(self, tip: Message, found: Found) -> None:
        request = tip.request
        if (found.topic, found.key, found.value) != (request.topic, request.key, request.value):
            self._fault(tip.source, f"delivered as something else to {found.topic}")
        if request.partition is not None and found.partition != request.partition:
            self._fault(tip.source, f"delivered to partition {found.partition}")
        if found.headers[: len(request.headers)] != request.headers:
            self._fault(tip.source, f"delivered with {found.headers}")
        if (found.header("delayd-source"), found.header("delayd-due")) != (
            tip.source,
            str(request.asked_due_ms),
        ):
            self._fault(tip.source, f"delivered with {found.headers[-6:]}")
        if int(found.header("delayd-fired") or 0) < tip.due_ms:
            self._fault(tip.source, "early")

    def _judge_receipts(self) -> None:
        for source in {*self._wanted, *self._seen.receipts}:
            receipts: list[dict[str, Any]] = self._seen.receipts.get(source, [])
            told = [receipt["verdict"] for receipt in receipts]
            wanted = self._wanted.get(source, [])
            fits = len(told) == len(wanted) and all(
                any(verdict in choice for verdict in told) for choice in wanted
            )
            if not fits:
                self._fault(source, f"wanted the receipts {wanted}, found {told}")

    def _judge_strangers(self) -> None:
        model = self._model
        known = {*model.rejects, *model.taken, *model.marks}
        known |= {m.source for m in model.messages.values() if m.root is None}
        for found in (self._seen.delivered, self._seen.letters, self._seen.receipts):
            for source, records in found.items():
                if records and source not in known:
                    self._fault(source, "is no request")


MARKED_BY_REPLACE = {"replaced", "too-late", "scheduled"}
