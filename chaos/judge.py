"""What became of each request, and whether it may. Pure: records in, faults out.

The reference model says what the log makes of each request; this compares it with what was written
to the targets, the dead letters and the receipts. Each request has exactly one outcome:

    a message    delivered once | dead once | killed by markers that say so | duplicate | conflict
    a marker     one receipt, and what it says is true
    a bad one    one dead letter, with its reason; with an id one receipt

Nothing is early, altered, doubled, lost, or from nowhere: what an aborted transaction asked for is
not in the buffer, so its record in a target is from nowhere.

Not here: lateness, order.
Source: docs/reference/requests.md; docs/design/frontier.md, "Ids" and "Verdicts".
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any, Final

from chaos.asked import Asked, Op, read_asked, read_continuation, span_ms
from chaos.gates import Gates
from chaos.records import Logged
from chaos.reference_model import Marker, Message, Model, model_of
from chaos.workload import EXPECT

FAULTS_SHOWN: Final = 20
MARKER_VERDICTS: Final = frozenset(
    {"cancelled", "replaced", "rescheduled", "scheduled", "too-late", "not-found"}
)
OF_MESSAGES: Final = ("dead", "expired", "no-occurrence")
"""Reasons of dead letters of what had been accepted."""
DEAD: Final = {"no-occurrence": "dead"}
"""What a receipt calls them, where that is another word."""
LETTER_HEADERS: Final = ("delayd-reason", "delayd-detail", "delayd-source")
"""What is added to a refused request, in this order."""

Receipt = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Findings:
    """`faults` is what may not be; `waiting` what has no outcome yet: at the end that is lost."""

    faults: tuple[str, ...]
    waiting: tuple[str, ...]
    outcomes: Counter[str]
    """How many requests came to what; a replace counts as marker and as message."""

    @property
    def ok(self) -> bool:
        """All is over and right."""
        return not self.faults and not self.waiting

    def __str__(self) -> str:
        shown = (*self.faults[:FAULTS_SHOWN], *self.waiting[:FAULTS_SHOWN])
        counts = f"{len(self.faults)} faults, {len(self.waiting)} without outcome"
        return "\n".join([counts, *shown, str(dict(sorted(self.outcomes.items())))])


def judge(
    requests: Iterable[Logged],
    delivered: Iterable[Logged],
    dead: Iterable[Logged],
    receipts: Iterable[Logged],
    *,
    until_ms: int | None = None,
) -> Findings:
    """Return the findings over all committed records of the buffer, targets and delayd's other
    topics. The requests are the workload's: they name absolute due times, and those that must be
    refused say why (workload.py). What is due after `until_ms`, if given, may be pending."""
    requests = sorted(requests, key=lambda record: (record.partition, record.offset))
    model, gates = model_of(requests), Gates()
    for record in requests:
        model.take(_read(record, gates.refuses(record)))
    return judge_outcomes(model, delivered, dead, receipts, until_ms=until_ms)


def judge_outcomes(
    model: Model,
    delivered: Iterable[Logged],
    dead: Iterable[Logged],
    receipts: Iterable[Logged],
    *,
    until_ms: int | None = None,
) -> Findings:
    """Return the findings over a model that has taken all requests, of whatever kind. It keeps the
    deliveries and dead letters: give it to no other judge."""
    return _Judge(model, until_ms).judge(delivered, dead, receipts)


def _read(record: Logged, is_over_quota: bool) -> Asked:
    fields = record.fields
    reason = record.header(EXPECT) or ("over-quota" if is_over_quota else None)
    if reason is not None and "origin" not in fields:
        return read_asked(record, None, reason)
    if "continues" in fields:
        return read_continuation(record)
    if "cron" in fields or "zone" in fields:
        return read_asked(record, record.append_ms)
    if fields.get("op") == "debounce":
        return read_asked(record, record.append_ms + span_ms(fields["delay"]))
    has_no_due = (
        fields.get("op") in ("cancel", "reschedule", "fire")
        or record.is_settlement
        or record.is_barrier
        or record.is_order
    )
    return read_asked(record, 0 if has_no_due else int(fields.get("due", "")))


class _Judge:
    def __init__(self, model: Model, until_ms: int | None) -> None:
        self.model = model
        self.until_ms = until_ms
        self.faults = list(model.faults)
        self.waiting: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.letters: dict[str, list[Logged]] = defaultdict(list)
        """Of what was refused, by source."""
        self.receipts: dict[str, list[Receipt]] = defaultdict(list)
        self.told: dict[str, Receipt] = {}
        """By source of a marker: the first verdict on it."""
        self.killers: dict[str, set[str]] = defaultdict(set)
        """By source: those of the markers whose receipts name the message as killed."""

    def judge(
        self, delivered: Iterable[Logged], dead: Iterable[Logged], receipts: Iterable[Logged]
    ) -> Findings:
        for record in delivered:
            self._take_delivery(record)
        for record in dead:
            self._take_letter(record)
        for record in receipts:
            self._take_receipt(record)
        for marker in self.model.markers.values():
            self._judge_marker(marker)
        for message in self.model.messages.values():
            if message.refused == "rejected":
                self._judge_rejected(message)
            else:
                self._judge_message(message)
        for source, found in self.receipts.items():
            self._fault(source, f"receipts that nobody asked for: {found}")
        for source, letters in self.letters.items():
            self._fault(source, f"dead letters of nothing that is wrong: {letters}")
        return Findings(tuple(self.faults), tuple(self.waiting), self.outcomes)

    def _fault(self, source: str, what: str) -> None:
        self.faults.append(f"{source}: {what}")

    # --- What came out

    def _take_delivery(self, record: Logged) -> None:
        source = record.fields.get("source", "")
        message = self.model.family_of.get(source)
        if message is None:
            self._fault(source, f"delivered to {record.topic}, but nobody asked for it")
            return
        message.deliveries.append(record)
        for what in message.differences(record):
            self._fault(message.source, f"delivered with another {what}: {record}")
        if source != message.newest.source:
            self._fault(message.source, f"delivered as {source}, not {message.newest.source}")
        fired = record.fields.get("fired", "")
        if fired.isdigit() and int(fired) > message.worth_until_ms:
            self._fault(message.source, f"stale: worth until {message.worth_until_ms}: {record}")
        if message.is_early(record):
            self._fault(message.source, f"early: due at {message.due_ms}, delivered {record}")

    def _take_letter(self, record: Logged) -> None:
        fields = record.fields
        if fields.get("reason") not in OF_MESSAGES:
            self.letters[fields.get("source", "")].append(record)
            return
        message = self.model.family_of.get(fields.get("source", ""))
        if message is None or fields.get("origin") != message.origin:
            self._fault(record.place, f"a dead letter of nobody's: {record}")
            return
        message.letters.append(record)
        is_expired = fields["reason"] == "expired"
        is_tried = fields["reason"] != "dead" or int(fields.get("attempt", "0")) >= 1
        if (fields["reason"] == "no-occurrence") != (message.newest.state == "over"):
            self._fault(message.source, f"a letter of what is not over: {record}")
        if record.value != message.record.value or not is_tried:
            self._fault(message.source, f"altered in its dead letter: {record}")
        if is_expired and record.append_ms <= message.worth_until_ms:
            self._fault(message.source, f"expired in time: {record}")
        if fields["source"] != message.newest.source:
            self._fault(message.source, f"dead as {fields['source']}, not {message.newest.source}")

    def _take_receipt(self, record: Logged) -> None:
        receipt: Receipt = json.loads(record.value or b"")
        source = receipt["source"]
        if record.header("delayd-source") != source or record.key != receipt["id"].encode():
            self._fault(source, f"its receipt contradicts itself: {record}")
        self.receipts[source].append(receipt)
        if receipt["op"] in ("cancel", "replace", "debounce"):
            for killed in receipt["killed"]:
                self.killers[killed].add(source)
                if killed not in self.model.messages:
                    self._fault(source, f"its receipt says that it killed {killed}, no request")

    # --- Whether it may

    def _judge_marker(self, marker: Marker) -> None:
        source, op, id = marker.asked.source, marker.asked.op.value, marker.asked.id
        answers = self._answers(source, MARKER_VERDICTS)
        if not answers:
            self.waiting.append(f"{source}: a {op} of {id} without verdict")
            return
        if len(answers) > 1:
            self._fault(source, f"{len(answers)} verdicts: {answers}")
        receipt = answers[0]
        self.told[source] = receipt
        verdict, killed = receipt["verdict"], set(receipt["killed"])
        self.outcomes[f"{op}: {verdict}"] += 1
        if receipt["op"] != op or receipt["id"] != id:
            self._fault(source, f"the receipt is of something else: {receipt}")
        live = {message.origin for message in marker.live}
        if marker.asked.op in (Op.RESCHEDULE, Op.FIRE):
            self._judge_move(marker, receipt)
        elif marker.repeats is not None:
            told = self.told.get(marker.repeats.asked.source, receipt)
            if (verdict, killed) != (told["verdict"], set(told["killed"])):
                self._fault(source, f"the same request was told {told}: {receipt}")
        elif live:
            is_true = bool(killed) and killed <= live if verdict == marker.word else not killed
            if verdict not in (marker.word, "too-late") or not is_true:
                self._fault(source, f"of {sorted(live)}: {receipt}")
            is_done = any(_was_done(each, receipt["at_ms"]) for each in marker.live)
            if verdict == "too-late" and any(each.newest.goes_on for each in marker.live):
                self._fault(source, f"a series went on: {receipt}")
            if verdict == "too-late" and not is_done:
                self._fault(source, f"nothing was delivered or dead by then: {receipt}")
        elif self._is_unsettled(marker) and verdict == "cancelled":
            # Again, by older rules: each that it names was killed by an earlier marker of the id.
            earlier = {m.source for m in self.model.messages.values() if _is_killed_under(m, id)}
            if not killed or not killed & self.model.messages.keys() <= earlier:
                self._fault(source, f"nobody else cancelled it: {receipt}")
        elif marker.settles and marker.asked.op is Op.CANCEL and marker.earlier is not None:
            # Asked again: what the earlier marker was told, in the word of a cancel.
            if earlier_told := self.told.get(marker.earlier.asked.source):
                was = earlier_told["verdict"]
                word = was if was == "too-late" else "cancelled"
                if (verdict, killed) != (word, set(earlier_told["killed"])):
                    self._fault(source, f"an earlier request was told {earlier_told}: {receipt}")
        elif killed <= self.model.messages.keys() and (
            verdict != ("not-found" if marker.asked.op is Op.CANCEL else "scheduled") or killed
        ):
            self._fault(source, f"nothing was pending: {receipt}")

    def _judge_move(self, marker: Marker, receipt: Receipt) -> None:
        """Judge what a reschedule was told."""
        source, verdict, at_ms = marker.asked.source, receipt["verdict"], receipt["at_ms"]
        if receipt["killed"]:
            self._fault(source, f"it kills nothing: {receipt}")
        dues_ms = [each.moved_to[source] for each in marker.live]
        if verdict == "rescheduled" and receipt["due_ms"] not in dues_ms:
            self._fault(source, f"it asks for {dues_ms}: {receipt}")
        is_done = not marker.live or any(_was_done(each, at_ms) for each in marker.live)
        if verdict == "too-late" and not is_done:
            self._fault(source, f"nothing was delivered or dead by then: {receipt}")
        if verdict == "not-found" and marker.live:
            self._fault(source, f"{len(marker.live)} were live: {receipt}")

    def _is_unsettled(self, marker: Marker) -> bool:
        """Return whether a cancel, or what it may repeat, is ruled by a version before 4."""
        may_repeat = not marker.settles or (not self.model.settles and marker.earlier is None)
        return marker.asked.op is Op.CANCEL and may_repeat

    def _judge_message(self, message: Message) -> None:
        source, asked, origin = message.source, message.asked, message.origin
        outcomes = ["delivered"] * len(message.deliveries)
        died = [DEAD.get(reason, reason) for reason in _reasons(message)]
        outcomes += died
        is_killed = message.killed_by is not None if asked.series else True
        outcomes += ["killed"] * (origin in self.killers and is_killed and not message.is_cut)
        if message.is_resolved:
            outcomes.append("recurring")
        is_quiet = message.killed_by is not None and (
            message.killed_by.asked.source not in self.model.markers
        )
        outcomes += ["killed"] * (is_quiet and not outcomes)
        letters = self.letters.pop(source, [])
        verdicts = {"duplicate", "conflict", *OF_MESSAGES}
        expected = died if asked.id is not None or asked.is_told else []
        if asked.is_told:
            verdicts.add("delivered")
            expected += ["delivered"] * len(message.deliveries)
        if asked.op is Op.REDRIVE or (asked.is_told and asked.op is Op.SCHEDULE):
            verdicts.add("scheduled")
            expected += ["scheduled"] * (message.refused is None)
        if asked.series and message.root is None:
            verdicts -= {*OF_MESSAGES, "delivered"}  # those are its occurrences'
        if message.root is not None:
            verdicts.add("ended")
            is_out = bool(message.deliveries or message.letters)
            has_ended = message.newest.state == "last" and is_out
            expected += ["ended"] * (has_ended and (asked.id is not None or asked.is_told))
        due_ms = None if message.root is None else message.due_ms
        answers = self._answers(origin, verdicts, due_ms)
        if message.refused == "repeated":  # its verdict is the marker's
            outcomes.append(message.refused)
        elif message.refused is not None:
            if not answers and not outcomes and not letters:
                self.waiting.append(f"{source}: a {message.refused} without receipt")
                return
            outcomes.append(message.refused)
            expected.append(message.refused)
        self._judge_letters(asked, letters, "conflict" if message.refused == "conflict" else None)
        if sorted(receipt["verdict"] for receipt in answers) != sorted(expected):
            self._fault(source, f"expected receipts {expected}: {answers}")
        if not outcomes and self.until_ms is not None and message.newest.rank[0] > self.until_ms:
            self.outcomes["message: pending"] += 1
            return
        if not outcomes:
            self.waiting.append(f"{source}: no outcome: {message.record}")
            return
        if len(outcomes) > 1:
            self._fault(source, f"{' and '.join(outcomes)}: {message}")
        retried = " after retries" if len(message.attempts) > 1 else ""
        self.outcomes[f"message: {outcomes[0]}{retried}"] += 1

    def _judge_rejected(self, message: Message) -> None:
        source, asked = message.source, message.asked
        if message.deliveries:
            self._fault(source, f"delivered, but it is bad: {message}")
        letters = self.letters.pop(source, [])
        answers = self.receipts.pop(source, [])
        if not letters:
            self.waiting.append(f"{source}: a bad request without dead letter")
            return
        self._judge_letters(asked, letters, asked.reason)
        verdicts = ["rejected"] if asked.id is not None else []
        if [receipt["verdict"] for receipt in answers] != verdicts:
            self._fault(source, f"expected receipts {verdicts}: {answers}")
        self.outcomes["bad: rejected"] += 1

    def _judge_letters(self, asked: Asked, letters: list[Logged], reason: str | None) -> None:
        """The one of this reason, or none; it holds the request as it was."""
        expected = [] if reason is None else [reason]
        if [letter.header("delayd-reason") for letter in letters] != expected:
            self._fault(asked.source, f"expected dead letters {expected}: {letters}")
        for letter in letters:
            record, count = asked.record, len(asked.record.headers)
            added = tuple(name for name, _ in letter.headers[count:])
            is_whole = letter.headers[:count] == record.headers and added == LETTER_HEADERS
            is_same = is_whole and (letter.key, letter.value) == (record.key, record.value)
            if not is_same and not asked.is_truncated:
                self._fault(asked.source, f"altered in its dead letter: {letter}")

    def _answers(self, source: str, verdicts: Set[str], due_ms: int | None = None) -> list[Receipt]:
        """Take the receipts of these verdicts, and of this due time if one is given, from what was
        found for a request."""
        found = self.receipts.pop(source, [])
        taken = [
            receipt
            for receipt in found
            if receipt["verdict"] in verdicts and (due_ms is None or receipt["due_ms"] == due_ms)
        ]
        if others := [receipt for receipt in found if receipt not in taken]:
            self.receipts[source] = others
        return taken


def _is_killed_under(message: Message, id: str | None) -> bool:
    return message.killed_by is not None and message.killed_by.asked.id == id


def _reasons(message: Message) -> list[str]:
    return [letter.fields["reason"] for letter in message.letters]


def _was_done(message: Message, at_ms: int) -> bool:
    """Return whether it was fired by then, by the master's clock. Dead letters do not say when
    they were."""
    fired_ms = [int(record.fields.get("fired", "0")) for record in message.deliveries]
    return bool(message.letters) or any(fired <= at_ms for fired in fired_ms)
