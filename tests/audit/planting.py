"""Defects planted in a correct history of a world, each in another message: what is planted, and
the finding that it must make."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from plans import Sent, header
from world import START_MS, STEP_MS, TARGETS
from written import LIMITS, PARTITIONS, History, Written

from delayd.bus import Headers
from delayd.bus.murmur2 import partition_of
from delayd.request.proof import proof_of

Found = tuple[str, str]
"""Fault and source."""


class Planter:
    """Changes a history, and keeps what must be found."""

    def __init__(self, history: History, sent: Sent) -> None:
        self.history = history
        self.sent = sent
        self.expected: set[Found] = set()
        self._used: dict[str, int] = {}

    def next(self, what: str) -> Written:
        """A request of this kind that nothing has been planted in."""
        number = self._used.get(what, 0)
        self._used[what] = number + 1
        return self.sent[what][number]

    def expect(self, fault: str, request: Written | str) -> None:
        """This is to be found of this request, or source."""
        self.expected.add((fault, request if isinstance(request, str) else request.place))

    def delivery(self, request: Written) -> Written:
        """The record in the target that came of it."""
        return self._only(self.history.targets, request)

    def letter(self, request: Written) -> Written:
        """Its dead letter."""
        return self._only(self.history.dead, request)

    def receipt(self, request: Written) -> Written:
        """Its receipt."""
        return self._only(self.history.receipts, request)

    def _only(self, records: list[Written], request: Written) -> Written:
        place = request.place
        found = [
            each
            for each in records
            if place in (each.header("delayd-source"), each.header("delayd-origin"))
        ]
        assert len(found) == 1, f"{place}: {found}"
        return found[0]

    def add(self, records: list[Written], like: Written, **changes: Any) -> Written:
        """One more record, at the end of its partition."""
        made = replace(like, headers=[*like.headers], **changes)
        made.offset = 1 + max(
            (r.offset for r in records if (r.topic, r.partition) == (made.topic, made.partition)),
            default=-1,
        )
        records.append(made)
        return made

    def plant(self, fault: str, kinds: Iterable[str], change: Callable[[Written], object]) -> None:
        """Change what came of a request of each of these kinds, so that the fault is found."""
        for what in kinds:
            request = self.next(what)
            change(request)
            self.expect(fault, request)

    def alter(self, what: str, change: Callable[[Written], object]) -> None:
        """A delivery with something else in it."""
        self.plant("altered", [what], lambda request: change(self.delivery(request)))

    def deliver(self, request: Written, fired_ms: int, source: str | None = None) -> Written:
        """A delivery of a request for `orders` that ought not to be there."""
        user = [each for each in request.headers if not each[0].startswith("delayd-")]
        partition = 0 if request.key is None else partition_of(request.key, TARGETS["orders"])
        own: Headers = [header("due", request.header("delayd-due") or 0), header("fired", fired_ms)]
        if request.header("delayd-id") is not None:
            own.insert(0, header("id", request.header("delayd-id") or ""))
        own.append(header("source", request.place if source is None else source))
        made = Written(
            "target", "orders", partition, 0, fired_ms, request.key, request.value, user + own
        )
        return self.add(self.history.targets, made)

    def tell(self, request: Written, **changes: Any) -> None:
        """Change fields of a receipt."""
        receipt = self.receipt(request)
        told = json.loads(receipt.value or b"")
        receipt.value = json.dumps(told | changes).encode()

    def forge(self, id: str, source: str, verdict: str, **fields: Any) -> Written:
        """A receipt of nothing."""
        told: dict[str, Any] = {
            "id": id,
            "verdict": verdict,
            "op": "schedule",
            "source": source,
            "killed": [],
            "due_ms": None,
            "at_ms": START_MS + 5_000,
            "detail": "",
        }
        key, value = id.encode(), json.dumps(told | fields).encode()
        like = Written(
            *("receipts", "delayd-receipts", partition_of(key, PARTITIONS), 0, START_MS + 5_000),
            *(key, value, [header("source", source)]),
        )
        return self.add(self.history.receipts, like)


def plant_deliveries(planter: Planter) -> None:
    """Lost, doubled, early, altered, ghosts, unknown."""
    history = planter.history
    lost = ("plain", "first", "retried", "mail", "replaced replace again")
    planter.plant("lost", lost, lambda asked: history.targets.remove(planter.delivery(asked)))
    twice = ("plain", "late target", "retried by id")
    planter.plant(
        "duplicate", twice, lambda asked: planter.add(history.targets, planter.delivery(asked))
    )
    request = planter.next("retried")
    planter.deliver(request, START_MS + 4_000).topic = "late"
    history.targets[-1].partition = partition_of(request.key or b"", TARGETS["late"])
    planter.expect("duplicate", request)
    _plant_early(planter)
    _plant_altered(planter)
    _plant_ghosts(planter)
    for source in ("9/1", "0/99999999", "x", "01/1", "1/ 1", planter.next("early cancel").place):
        planter.deliver(planter.sent["plain"][-1], START_MS + 9_500, source)
        planter.expect("unknown", source)
    taken = {each.offset for each in history.buffer if each.partition == 0}
    gap = next(offset for offset in range(max(taken)) if offset not in taken)
    planter.deliver(planter.sent["plain"][-1], START_MS + 9_500, f"0/{gap}")
    planter.expect("unknown", f"0/{gap}")


def _plant_early(planter: Planter) -> None:
    def fired(request: Written) -> None:
        early_ms = int(request.header("delayd-due") or 0) - 1
        planter.delivery(request).set("delayd-fired", b"%d" % early_ms)

    def stamped(request: Written) -> None:
        early_ms = int(request.header("delayd-due") or 0) - 1_000
        planter.delivery(request).timestamp_ms = early_ms

    planter.plant("early", ["plain"], fired)
    planter.plant("early", ["plain"], stamped)


def _one_more(name: str) -> Callable[[Written], None]:
    return lambda record: record.set(name, b"%d" % (int(record.header(name) or 0) + 1))


def _plant_altered(planter: Planter) -> None:
    def value(record: Written) -> None:
        record.value = (record.value or b"") + b"x"

    def key(record: Written) -> None:
        record.key = b"another"

    def order(record: Written) -> None:
        record.headers[0], record.headers[1] = record.headers[1], record.headers[0]

    def partition(record: Written) -> None:
        record.partition = (record.partition + 1) % TARGETS[record.topic]

    due, alter = _one_more("delayd-due"), planter.alter
    alter("plain", value)
    alter("plain", key)
    alter("plain", lambda record: record.set("trace", b"another"))
    alter("plain", order)
    alter("plain", lambda record: record.headers.pop(1))
    alter("plain", partition)
    alter("plain", due)
    alter("keyed", lambda record: record.headers.append(header("topic", "orders")))
    alter("keyed", key)
    alter("keyed", lambda record: record.set("delayd-fired", b"soon"))
    alter("keyed", _one_more("delayd-fired"))
    alter("placed", partition)
    alter("mail", lambda record: setattr(record, "topic", "orders"))
    alter("first", lambda record: record.set("delayd-id", b"another"))
    alter("retried", lambda record: record.set("delayd-attempt", b"7"))
    alter("null", lambda record: setattr(record, "value", b""))
    alter("dated", due)
    alter("retried by id", lambda record: record.remove("delayd-origin"))


def _plant_ghosts(planter: Planter) -> None:
    late_ms = START_MS + 9_000
    kinds = ("early target", "replaced target", "duplicate", "conflict")
    planter.plant("ghost", kinds, lambda asked: planter.deliver(asked, late_ms))
    planter.plant(
        "ghost",
        ["bad due"],
        lambda asked: planter.deliver(asked, late_ms).set("delayd-due", b"%d" % START_MS),
    )


def plant_letters(planter: Planter) -> None:
    """Missing, doubled and false dead letters."""
    history = planter.history
    planter.plant(
        "letter-missing",
        ("no topic", "conflict"),
        lambda asked: history.dead.remove(planter.letter(asked)),
    )
    planter.plant(
        "letter-doubled",
        ("no topic", "dead", "dead by id"),
        lambda asked: planter.add(history.dead, planter.letter(asked)),
    )
    changes: list[tuple[str, str, bytes]] = [
        *(("no topic", "delayd-reason", b"bad-due"), ("odd header", "trace", b"x")),
        *(("no topic", "delayd-reason", b"conflict"), ("dead", "delayd-origin", b"0/1")),
        *(("dead", "delayd-attempt", b"1"), ("dead", "trace", b"x")),
        *(("odd header", "delayd-odd", b"2"), ("dead", "delayd-due", b"7")),
    ]
    for what, name, content in changes:
        request = planter.next(what)
        planter.letter(request).set(name, content)
        planter.expect("letter-false", request)
    planter.plant(
        "letter-false",
        ("no topic", "dead"),
        lambda asked: setattr(planter.letter(asked), "value", b"another"),
    )
    planter.plant(
        "letter-false",
        ["too large"],
        lambda asked: planter.letter(asked).remove("delayd-truncated"),
    )
    # Of what was delivered, and of nothing.
    like = planter.letter(planter.next("no topic"))
    for source in (planter.next("keyless").place, "3/88888888"):
        planter.add(history.dead, like).set("delayd-source", source.encode())
        planter.expect("letter-false", source)
    like = planter.letter(planter.next("dead"))
    source = planter.next("keyless").place
    planter.add(history.dead, like).set("delayd-source", source.encode())
    planter.expect("letter-false", source)
    # A message that died and left no letter is lost.
    planter.plant("lost", ["dead"], lambda asked: history.dead.remove(planter.letter(asked)))


def plant_verdicts(planter: Planter) -> None:
    """Missing, doubled, false and unknown receipts."""
    history = planter.history
    missing = ("early cancel", "late cancel", "unknown cancel", "no due", "duplicate", "dead by id")
    planter.plant(
        "verdict-missing", missing, lambda asked: history.receipts.remove(planter.receipt(asked))
    )
    doubled = ("early cancel", "replaced replace", "no due", "conflict", "dead by id")
    planter.plant(
        "verdict-doubled",
        doubled,
        lambda asked: planter.add(history.receipts, planter.receipt(asked)),
    )
    _plant_false(planter)
    for verdict, source in (("delivered", "x"), ("rejected", "2/77777777")):
        planter.forge("some", source, verdict)
        planter.expect("verdict-unknown", source)
    for change in ("value", "key"):
        like = planter.forge("some", f"1/999{len(change)}", "rejected")
        setattr(like, change, b"{")
        planter.expect("verdict-unknown", "None" if change == "value" else f"1/999{len(change)}")


def _plant_false(planter: Planter) -> None:
    def false(what: str, **changes: Any) -> None:
        planter.plant("verdict-false", [what], lambda asked: planter.tell(asked, **changes))

    # A cancel was ignored: what it killed came out at its time, long after it was called too late.
    target = planter.sent["early target"][planter._used.get("early cancel", 0)]
    due_ms = int(target.header("delayd-due") or 0)
    planter.deliver(target, -(-due_ms // STEP_MS) * STEP_MS)
    false("early cancel", verdict="too-late", killed=[])
    target = planter.sent["late target"][planter._used.get("late cancel", 0)]
    false("late cancel", verdict="cancelled", killed=[target.place])
    false("early cancel", verdict="too-late", killed=[])
    false("early cancel", verdict="not-found", killed=[])
    false("early cancel", killed=[])
    false("early cancel", killed=[planter.sent["plain"][0].place])
    false("early cancel", due_ms=1)
    false("early cancel", op="replace")
    false("unknown cancel", verdict="too-late")
    false("unknown cancel", verdict="cancelled", killed=[planter.sent["plain"][0].place])
    false("second cancel", verdict="not-found", killed=[])
    false("third cancel", verdict="cancelled", killed=[planter.sent["plain"][0].place])
    false("aged cancel", verdict="too-late")
    false("cancel within", verdict="too-late", killed=[])
    false("replaced replace", verdict="scheduled", killed=[])
    false("outrun replace", verdict="replaced", killed=["0/1"])
    false("new replace", verdict="too-late")
    false("no due", due_ms=5)
    false("duplicate", verdict="conflict")
    false("conflict", verdict="duplicate")
    false("dead by id", due_ms=5)
    for what, verdict in (("first", "delivered"), ("first", "rejected"), ("far id", "dead")):
        request = planter.next(what)
        planter.forge(request.header("delayd-id") or "", request.place, verdict)
        planter.expect("verdict-false", request)
    request = planter.next("keyed")
    planter.forge("some", request.place, "too-late")
    planter.expect("verdict-false", request)


def plant_wishes(planter: Planter) -> None:
    """Receipts that are missing of who asked for them, and one that nobody asked for."""
    receipts = planter.history.receipts

    def of(request: Written, verdict: str) -> Written:
        [found] = [
            each
            for each in receipts
            if each.header("delayd-source") == request.place
            and json.loads(each.value or b"")["verdict"] == verdict
        ]
        return found

    for what, verdict in (
        *(("told", "scheduled"), ("told", "delivered"), ("told later", "delivered")),
        *(("told dead", "dead"), ("told by id", "delivered"), ("told far", "scheduled")),
        ("told reject", "rejected"),
    ):
        request = planter.next(what)
        receipts.remove(of(request, verdict))
        planter.expect("verdict-missing", request)
    request = planter.next("expired by id")
    receipts.remove(of(request, "expired"))
    planter.expect("verdict-missing", request)
    planter.plant(
        "letter-false", ["expired", "expired retry"], lambda asked: _in_time(planter, asked)
    )
    request = planter.next("late in time")
    over_ms = START_MS + 10_000
    planter.delivery(request).set("delayd-fired", b"%d" % over_ms)
    planter.delivery(request).timestamp_ms = over_ms + 2
    planter.expect("stale", request)
    request = planter.next("spread")
    planter.delivery(request).set("delayd-planned", b"%d" % START_MS)
    planter.expect("altered", request)
    request = planter.next("spread early")
    planter.delivery(request).timestamp_ms = int(request.header("delayd-due") or 0)
    planter.expect("early", request)
    told, other = planter.next("told"), planter.next("plain")
    like = of(told, "delivered")
    fields = {**json.loads(like.value or b""), "source": other.place, "id": other.place}
    made = planter.add(receipts, like, value=json.dumps(fields).encode(), key=other.place.encode())
    made.set("delayd-source", other.place.encode())
    planter.expect("verdict-false", other)


def plant_series(planter: Planter) -> None:
    """Occurrences that are lost, doubled, at a wrong time, or follow wrongly."""
    history = planter.history

    def of(request: Written, number: int) -> Written:
        """The delivery of an occurrence."""
        [found] = [
            each
            for each in history.targets
            if each.header("delayd-origin") == request.place
            and each.header("delayd-occurrence") == str(number)
        ]
        return found

    def record_of(delivery: Written) -> Written:
        [found] = [
            each for each in history.buffer if each.place == delivery.header("delayd-source")
        ]
        return found

    def sign(record: Written) -> None:
        parts = (record.partition, record.key, record.value, record.headers[:-1])
        record.set("delayd-proof", proof_of(LIMITS, *parts))

    for what, number in (("series", 2), ("series by id", 1), ("series told", 3)):
        delivery = of(planter.next(what), number)
        history.targets.remove(delivery)
        planter.expect("lost", record_of(delivery))
    delivery = of(planter.next("series"), 3)
    planter.add(history.targets, delivery)
    planter.expect("duplicate", record_of(delivery))
    delivery = of(planter.next("series at once"), 2)
    delivery.set("delayd-occurrence", b"7")
    planter.expect("altered", delivery.header("delayd-origin") or "")
    for name, by in (("delayd-due", -500), ("delayd-occurrence", 100)):
        request = planter.next("series")
        delivery = of(request, 2)
        record = record_of(delivery)
        for each in (record, delivery):
            each.set(name, b"%d" % (int(each.header(name) or 0) + by))
        sign(record)
        planter.expect("series", request)
    request = planter.next("series beyond")
    record = record_of(of(request, 2))
    record.set("delayd-series", b"last")
    sign(record)
    planter.expect("series", request)
    request = planter.next("series told")
    [ended] = [
        each
        for each in history.receipts
        if each.header("delayd-source") == request.place
        and json.loads(each.value or b"")["verdict"] == "ended"
    ]
    history.receipts.remove(ended)
    planter.expect("verdict-missing", request)


def _in_time(planter: Planter, request: Written) -> None:
    """Its letter was written when it was still worth delivering, by any clock."""
    planter.letter(request).timestamp_ms = int(request.header("delayd-due") or 0) - 20_000
