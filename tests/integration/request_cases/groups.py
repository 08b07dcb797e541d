"""The cases of groups: a name that messages share. Data only."""

from collections.abc import Iterable

from request_cases.case import (
    After,
    Case,
    Dead,
    Delivered,
    Header,
    Killed,
    Moment,
    Nothing,
    Pending,
    Recurs,
    Refused,
    Span,
    Step,
    Told,
)
from request_cases.making import (
    CATCHES_UP,
    NOW,
    REJECTED,
    SOON,
    TOPIC,
    case_of,
    delivered,
    dies,
    refused,
    spoilt,
    waits,
)

GROUP = "delayd-group"
NAMED: Header = (GROUP, b"customer-42")
RECEIPT: Header = ("delayd-receipt", b"yes")
FAR: Header = ("delayd-delay", b"1h")


def id_of(text: str) -> Header:
    """The header with the id of a case."""
    return ("delayd-id", f"group-{text}".encode())


def group_cases() -> Iterable[Case]:
    yield from _kept()
    yield from _compared()
    yield from _refused()
    yield from spoilt(GROUP, b"customer-42", (TOPIC, NOW))


def _kept() -> Iterable[Case]:
    """It is delivered with the message, and is in its dead letter."""
    for says, text, name in (
        ("a name", "plain", b"customer-42"),
        ("beyond ASCII", "umlaut", "grüne Kunden".encode()),
        ("256 bytes", "long", b"g" * 256),
        ("the id itself", "same", b"group-same"),
    ):
        id = id_of(text)
        yield delivered(GROUP, says, (GROUP, name), id, key=_key(id))
    id = id_of("told")
    both = (Told("scheduled"), Told("delivered"))
    yield delivered(GROUP, "with receipts", NAMED, RECEIPT, id, key=_key(id), told=both)
    id = id_of("window")
    wishes: tuple[Header, ...] = (NAMED, ("delayd-window", b"2s"), ("delayd-late", b"1h"))
    soon = (TOPIC, SOON)
    yield delivered(
        GROUP, "and a window", *wishes, id, due=Span(1), implied=soon, key=_key(id), planned=True
    )
    yield waits(GROUP, "not due yet", b"group-waits", NAMED, FAR)
    id = id_of("redrive")
    redrive: Header = ("delayd-redrive", b"0/4711300")
    told = (Told("scheduled"),)
    yield delivered(GROUP, "of a redrive", NAMED, redrive, id, key=_key(id), told=told)
    id = id_of("dies")
    nowhere: Header = ("delayd-topic", b"no-such-topic")
    detail = "no-such-topic does not exist"
    dead = (Told("dead", detail=detail),)
    yield dies(
        *(GROUP, "its target does not exist", NAMED, id),
        detail=detail,
        implied=(nowhere, SOON),
        key=_key(id),
        told=dead,
    )
    id = id_of("expired")
    past: Header = ("delayd-due", b"1577836800000")
    fate = Dead("it was worth delivering until", reason="expired")
    expired = (Told("expired"),)
    shown: tuple[Header, ...] = (NAMED, ("delayd-late", b"1000ms"), id, past)
    yield case_of(GROUP, "it has expired", shown, (TOPIC,), fate, key=_key(id), told=expired)
    id = id_of("series")
    each: Header = ("delayd-cron", b"* * * * * *")
    shown = (NAMED, each, ("delayd-until", Moment(2_500)))
    ended = (Told("ended"),)
    implied = (id, TOPIC, CATCHES_UP)
    yield case_of(GROUP, "of a series", shown, implied, Recurs(1_000), key=_key(id), told=ended)
    yield from _changed()


def _changed() -> Iterable[Case]:
    """By later requests about the id."""
    for says, op, detail in (
        ("it is fired", b"fire", "another due time"),
        ("it is cancelled", b"cancel", ""),
    ):
        id = id_of(op.decode())
        is_fired = op == b"fire"
        fate = Delivered(Span(0), moved_by=1) if is_fired else Killed()
        told = Told("rescheduled", detail=detail) if is_fired else Told("cancelled", killed=(0,))
        first = Step((NAMED, FAR, id, TOPIC), fate, key=_key(id))
        last = Step((("delayd-op", op), id), Nothing(), (told,), _key(id), None, implied=1)
        yield Case(GROUP, says, (first, last))
    id = id_of("replace")
    first = Step((NAMED, FAR, id, TOPIC), Killed(), key=_key(id))
    replace: Header = ("delayd-op", b"replace")
    last = Step(
        ((GROUP, b"another"), replace, id, TOPIC, NOW),
        Delivered(0),
        (Told("replaced", killed=(0,)),),
        key=_key(id),
        implied=3,
    )
    yield Case(GROUP, "a replace is of another group", (first, last))


def _compared() -> Iterable[Case]:
    for says, text, then, verdict in (
        ("the same group again", "again", NAMED, "duplicate"),
        ("another group, under an id that is taken", "other", (GROUP, b"b"), "conflict"),
    ):
        id = id_of(text)
        first = Step((NAMED, id, TOPIC, FAR), Pending(), key=_key(id))
        is_same = verdict == "duplicate"
        fate = Nothing() if is_same else Refused("conflict", "send delayd-op replace to have this")
        last = Step(
            (then, id, TOPIC, FAR),
            fate,
            (Told(verdict),),
            key=_key(id),
            after=After.SENT,
            implied=3,
        )
        yield Case(GROUP, says, (first, last))


def _refused() -> Iterable[Case]:
    detail = "delayd-group needs delayd-id"
    yield refused(GROUP, "without an id", NAMED, reason="missing-id", detail=detail)
    told = (Told("rejected", detail="missing-id: "),)
    yield refused(
        *(GROUP, "without an id, with receipts", NAMED, RECEIPT),
        reason="missing-id",
        detail=detail,
        told=told,
    )
    id = id_of("257")
    yield refused(
        *(GROUP, "257 bytes", (GROUP, b"g" * 257), id),
        reason="bad-group",
        detail="delayd-group has 257 bytes: use one of 1 to 256 bytes",
        key=_key(id),
        told=REJECTED,
    )
    for op, more in (("cancel", ()), ("fire", ()), ("reschedule", (("delayd-by", b"+1h"),))):
        id = id_of(f"no-{op}")
        yield refused(
            *(GROUP, f"of a {op}", ("delayd-op", op.encode()), *more, NAMED),
            reason="unexpected-header",
            detail=f"or have delayd {op} --group do so with each id",
            implied=(id,),
            key=_key(id),
            value=None,
            told=REJECTED,
        )
    yield refused(
        *(GROUP, "nearly right", ("delayd-groups", b"g")),
        reason="unknown-header",
        detail="did you mean delayd-group?",
    )


def _key(id: Header) -> bytes:
    assert isinstance(id[1], bytes)
    return id[1]
