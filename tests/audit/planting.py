"""Defects planted in a correct history of a world, each in another message: what is planted, and
the finding that it must make."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from plans import Sent, header
from world import PARTITIONS, START_MS, STEP_MS, TARGETS, History, Written

from delayd.bus import Headers
from delayd.bus.murmur2 import partition_of

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

    def alter(self, what: str, change: Callable[[Written], None]) -> None:
        """A delivery with something else in it."""
        request = self.next(what)
        change(self.delivery(request))
        self.expect("altered", request)

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
    for what in ("plain", "first", "retried", "mail", "replaced replace again"):
        request = planter.next(what)
        history.targets.remove(planter.delivery(request))
        planter.expect("lost", request)
    for what in ("plain", "late target", "retried by id"):
        request = planter.next(what)
        planter.add(history.targets, planter.delivery(request))
        planter.expect("duplicate", request)
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
    request = planter.next("plain")
    delivery, due_ms = planter.delivery(request), int(request.header("delayd-due") or 0)
    delivery.set("delayd-fired", b"%d" % (due_ms - 1))
    planter.expect("early", request)
    request = planter.next("plain")
    delivery, due_ms = planter.delivery(request), int(request.header("delayd-due") or 0)
    delivery.timestamp_ms = due_ms - 1_000
    planter.expect("early", request)


def _plant_altered(planter: Planter) -> None:
    def value(record: Written) -> None:
        record.value = (record.value or b"") + b"x"

    def key(record: Written) -> None:
        record.key = b"another"

    def header_value(record: Written) -> None:
        record.set("trace", b"another")

    def order(record: Written) -> None:
        record.headers[0], record.headers[1] = record.headers[1], record.headers[0]

    def dropped(record: Written) -> None:
        del record.headers[1]

    def partition(record: Written) -> None:
        record.partition = (record.partition + 1) % TARGETS[record.topic]

    def topic(record: Written) -> None:
        record.topic = "orders"

    def due(record: Written) -> None:
        record.set("delayd-due", b"%d" % (int(record.header("delayd-due") or 0) + 1))

    def id(record: Written) -> None:
        record.set("delayd-id", b"another")

    def stray(record: Written) -> None:
        record.headers.append(header("topic", "orders"))

    def off_step(record: Written) -> None:
        record.set("delayd-fired", b"%d" % (int(record.header("delayd-fired") or 0) + 1))

    def no_origin(record: Written) -> None:
        record.headers = [each for each in record.headers if each[0] != "delayd-origin"]

    for change in (value, key, header_value, order, dropped, partition, due):
        planter.alter("plain", change)
    planter.alter("keyed", stray)
    planter.alter("keyed", key)
    planter.alter("keyed", lambda record: record.set("delayd-fired", b"soon"))
    planter.alter("keyed", off_step)
    planter.alter("placed", partition)
    planter.alter("mail", topic)
    planter.alter("first", id)
    planter.alter("retried", lambda record: record.set("delayd-attempt", b"7"))
    planter.alter("null", lambda record: setattr(record, "value", b""))
    planter.alter("dated", due)
    request = planter.next("retried by id")
    no_origin(planter.delivery(request))
    planter.expect("altered", request)


def _plant_ghosts(planter: Planter) -> None:
    late_ms = START_MS + 9_000
    for what in ("early target", "replaced target", "duplicate", "conflict"):
        request = planter.next(what)
        planter.deliver(request, late_ms)
        planter.expect("ghost", request)
    request = planter.next("bad due")
    ghost = planter.deliver(request, late_ms)
    ghost.set("delayd-due", b"%d" % START_MS)
    planter.expect("ghost", request)


def plant_letters(planter: Planter) -> None:
    """Missing, doubled and false dead letters."""
    history = planter.history
    for what in ("no topic", "conflict"):
        request = planter.next(what)
        history.dead.remove(planter.letter(request))
        planter.expect("letter-missing", request)
    for what in ("no topic", "dead", "dead by id"):
        request = planter.next(what)
        planter.add(history.dead, planter.letter(request))
        planter.expect("letter-doubled", request)
    changes: list[tuple[str, str, bytes]] = [
        *(("no topic", "delayd-reason", b"bad-due"), ("odd header", "trace", b"x")),
        *(("no topic", "delayd-reason", b"conflict"), ("dead", "delayd-origin", b"0/1")),
        *(("dead", "delayd-attempt", b"1"), ("dead", "trace", b"x")),
        *(("odd header", "delayd-odd", b"2"), ("dead", "delayd-due", b"7")),
    ]
    for what, name, content in changes:
        request = planter.next(what)
        letter = planter.letter(request)
        letter.set(name, content)
        planter.expect("letter-false", request)
    for what in ("no topic", "dead"):
        request = planter.next(what)
        letter = planter.letter(request)
        letter.value = b"another"
        planter.expect("letter-false", request)
    request = planter.next("too large")
    letter = planter.letter(request)
    letter.headers = [each for each in letter.headers if each[0] != "delayd-truncated"]
    planter.expect("letter-false", request)
    # Of what was delivered, and of nothing.
    like = planter.letter(planter.next("no topic"))
    for source in (planter.next("keyless").place, "3/88888888"):
        made = planter.add(history.dead, like)
        made.set("delayd-source", source.encode())
        planter.expect("letter-false", source)
    like = planter.letter(planter.next("dead"))
    request = planter.next("keyless")
    made = planter.add(history.dead, like)
    made.set("delayd-source", request.place.encode())
    planter.expect("letter-false", request)
    # A message that died and left no letter is lost.
    request = planter.next("dead")
    history.dead.remove(planter.letter(request))
    planter.expect("lost", request)


def plant_verdicts(planter: Planter) -> None:
    """Missing, doubled, false and unknown receipts."""
    history = planter.history
    for what in ("early cancel", "late cancel", "unknown cancel", "no due", "duplicate"):
        request = planter.next(what)
        history.receipts.remove(planter.receipt(request))
        planter.expect("verdict-missing", request)
    request = planter.next("dead by id")
    history.receipts.remove(planter.receipt(request))
    planter.expect("verdict-missing", request)
    for what in ("early cancel", "replaced replace", "no due", "conflict", "dead by id"):
        request = planter.next(what)
        planter.add(history.receipts, planter.receipt(request))
        planter.expect("verdict-doubled", request)
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
        request = planter.next(what)
        planter.tell(request, **changes)
        planter.expect("verdict-false", request)

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
