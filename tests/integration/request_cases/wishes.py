"""The cases of wishes: how a message is handled beside its delivery. Data only."""

from collections.abc import Iterable
from typing import Any

from request_cases.case import (
    After,
    Case,
    Dead,
    Delivered,
    Header,
    Killed,
    Nothing,
    Pending,
    Refused,
    Span,
    Step,
    Told,
)
from request_cases.making import (
    NOW,
    REJECTED,
    SOON,
    TOPIC,
    case_of,
    delivered,
    dies,
    refused,
    refusing,
    spoilt,
    waits,
)

FAR = ("delayd-delay", b"1h")
RECEIPT = ("delayd-receipt", b"yes")
EXPIRED = (Told("expired"),)
BOTH = (Told("scheduled"), Told("delivered"))


def receipt_cases() -> Iterable[Case]:
    name = "delayd-receipt"
    yield delivered(name, "without an id: receipts under its source", RECEIPT, told=BOTH)
    id = b"receipt-id"
    yield delivered(name, "with an id", RECEIPT, ("delayd-id", id), key=id, told=BOTH)
    id = b"receipt-waits"
    shown = (RECEIPT, ("delayd-id", id))
    told = (Told("scheduled"),)
    yield case_of(name, "not due yet", shown, (TOPIC, FAR), Pending(), key=id, told=told)
    source = Told("scheduled", id="2/4711100")
    yield delivered(
        name,
        "of a redrive: the second one under the source of its own",
        RECEIPT,
        ("delayd-redrive", b"2/4711100"),
        partition=2,
        told=(source, Told("delivered")),
    )
    yield _replaced(name)
    yield _again(name)
    yield dies(
        name,
        "its target does not exist",
        RECEIPT,
        detail="no-such-topic does not exist",
        implied=(("delayd-topic", b"no-such-topic"), SOON),
        told=(Told("scheduled"), Told("dead", detail="no-such-topic does not exist")),
    )
    for says, more, implied, reason, detail in (
        ("too far", ("delayd-delay", b"41d"), (TOPIC,), "too-far", "max_delay is"),
        ("no target", NOW, (), "missing-topic", "is missing"),
        ("an unknown header", ("delayd-dely", b"1s"), (TOPIC, NOW), "unknown-header", "did you"),
    ):
        yield refused(
            name,
            f"without an id, refused: {says}",
            RECEIPT,
            more,
            reason=reason,
            detail=detail,
            implied=implied,
            told=(Told("rejected", detail=f"{reason}: "),),
        )
    id = b"receipt-cancel"
    yield refused(
        name,
        "of a cancel, which has its verdict anyway",
        ("delayd-op", b"cancel"),
        ("delayd-id", id),
        RECEIPT,
        reason="unexpected-header",
        detail="the header delayd-receipt has no meaning with delayd-op cancel",
        implied=(),
        key=id,
        told=REJECTED,
    )
    bad = refusing(name, "bad-receipt", "is not yes: leave it out")
    for says, text in (
        ("no", "no"),
        ("a capital", "Yes"),
        ("a number", "1"),
        ("another word", "all"),
        ("a space behind", "yes "),
    ):
        yield bad(says, text)
    yield refused(
        name,
        "nearly right",
        ("delayd-receipts", b"yes"),
        reason="unknown-header",
        detail="did you mean delayd-receipt?",
    )
    yield from spoilt(name, b"yes", (TOPIC, NOW))


def _replaced(name: str) -> Case:
    named = ("delayd-id", b"receipt-replace")
    old = Step((RECEIPT, named, TOPIC, FAR), Killed(), (Told("scheduled"),), key=named[1])
    new = Step(
        (RECEIPT, named, ("delayd-op", b"replace"), TOPIC, NOW),
        Delivered(0),
        (Told("replaced", (0,)), Told("delivered")),
        key=named[1],
        implied=2,
    )
    return Case(name, "of a replace, beside its verdict", (old, new))


def _again(name: str) -> Case:
    """It is no part of what two requests are compared by."""
    named = ("delayd-id", b"receipt-again")
    first = Step((named, TOPIC, FAR), Pending(), key=named[1])
    duplicate = Told("duplicate", detail="the same request is scheduled as")
    again = Step(
        (RECEIPT, named, TOPIC, FAR),
        Nothing(),
        (duplicate,),
        key=named[1],
        after=After.SENT,
        implied=2,
    )
    return Case(name, "the same message as one without it", (first, again))


def late_cases() -> Iterable[Case]:
    name, past = "delayd-late", ("delayd-due", b"1577836800000")
    until = "it was worth delivering until 15778368"
    second = (name, b"1000ms")

    def over(says: str, *shown: Header, **step: Any) -> Case:
        fate = Dead(until, reason="expired")
        return case_of(name, says, (*shown, past), (TOPIC,), fate, **step)

    yield delivered(name, "in time", (name, b"1h"), due=Span(1), implied=(TOPIC, SOON))
    yield delivered(name, "in days", (name, b"30d"), due=Span(1), implied=(TOPIC, SOON))
    yield delivered(name, "the longest", (name, b"365d"), due=Span(1), implied=(TOPIC, SOON))
    yield waits(name, "not due yet", b"late-waits", (name, b"1ms"), FAR)
    yield over("due long ago", second)
    yield over("to a certain partition", second, ("delayd-partition", b"2"))
    id = b"late-id"
    yield over("with an id", second, ("delayd-id", id), key=id, told=EXPIRED)
    yield over("and with receipts", second, RECEIPT, told=(Told("scheduled"), *EXPIRED))
    id = b"late-replace"
    replacing = (("delayd-id", id), ("delayd-op", b"replace"))
    told = (Told("scheduled"), *EXPIRED)
    yield over("of a replace", second, *replacing, key=id, told=told)
    redriven = ("delayd-redrive", b"1/4711200")
    scheduled = Told("scheduled", id="1/4711200")
    yield over("of a redrive", second, redriven, partition=1, told=(scheduled,))
    yield case_of(
        name,
        "over while it is retried",
        ((name, b"6000ms"), ("delayd-topic", b"no-such-topic")),
        (SOON,),
        Dead("it was worth delivering until", reason="expired", attempts=1),
    )
    first = Step((second, ("delayd-id", b"late-other"), TOPIC, FAR), Pending(), key=b"late-other")
    other = Step(
        ((name, b"1s"), ("delayd-id", b"late-other"), TOPIC, FAR),
        Refused("conflict", "send delayd-op replace to have this one instead"),
        (Told("conflict"),),
        key=b"late-other",
        implied=2,
    )
    yield Case(name, "the same lateness in other words, under an id that is taken", (first, other))
    id = b"late-cancel"
    yield refused(
        name,
        "of a cancel",
        ("delayd-op", b"cancel"),
        ("delayd-id", id),
        second,
        reason="unexpected-header",
        detail="the header delayd-late has no meaning with delayd-op cancel",
        implied=(),
        key=id,
        told=REJECTED,
    )
    bad = refusing(name, "bad-late", "from 1ms to 365d: write it like")
    for says, text in (
        ("nothing", "0s"),
        ("nothing, in days", "0d"),
        ("a day more than the longest", "366d"),
        ("15 digits of days", "999999999999999d"),
        ("16 digits", "0000000000000001s"),
        ("no unit", "10"),
        ("no number", "s"),
        ("capitals", "10S"),
        ("weeks", "1w"),
        ("two units", "1m30s"),
        ("a fraction", "1.5s"),
        ("negative", "-5s"),
        ("a space between", "10 s"),
        ("a time of day", "12:00"),
    ):
        yield bad(says, text)
    yield from spoilt(name, b"1h", (TOPIC, NOW))


def window_cases() -> Iterable[Case]:
    name = "delayd-window"
    yield delivered(name, "a millisecond: no room", (name, b"1ms"), due=0, planned=True)
    yield delivered(name, "due long ago, at once", (name, b"1d"), due=0, planned=True)
    for says, content in (("by its source", b"2s"), ("in milliseconds", b"1500ms")):
        shown = (name, content)
        yield delivered(name, says, shown, due=Span(1), implied=(TOPIC, SOON), planned=True)
    id = b"window-id"
    yield delivered(
        name,
        "by its id",
        (name, b"2s"),
        ("delayd-id", id),
        due=Span(1),
        implied=(TOPIC, SOON),
        key=id,
        planned=True,
    )
    id = b"window-late"
    yield delivered(
        name,
        "lateness counts from the planned time",
        (name, b"3s"),
        ("delayd-late", b"1m"),
        ("delayd-id", id),
        due=Span(1),
        implied=(TOPIC, SOON),
        key=id,
        planned=True,
        told=(),
    )
    yield waits(name, "not due yet", b"window-waits", (name, b"5m"), FAR)
    yield waits(name, "the longest", b"window-day", (name, b"1d"), FAR)
    yield case_of(
        name,
        "its target does not exist",
        ((name, b"1ms"), RECEIPT, ("delayd-topic", b"no-such-topic")),
        (SOON,),
        Dead("no-such-topic does not exist"),
        told=(Told("scheduled"), Told("dead")),
    )
    id = b"window-cancel"
    yield refused(
        name,
        "of a cancel",
        ("delayd-op", b"cancel"),
        ("delayd-id", id),
        (name, b"5m"),
        reason="unexpected-header",
        detail="the header delayd-window has no meaning with delayd-op cancel",
        implied=(),
        key=id,
        told=REJECTED,
    )
    id = b"window-2"  # the end of its window is beyond the longest delay
    yield refused(
        name,
        "a window that ends beyond the longest delay",
        (name, b"1d"),
        ("delayd-id", id),
        ("delayd-delay", b"40d"),
        reason="too-far",
        detail="max_delay is 3456000000 ms: choose an earlier time",
        implied=(TOPIC,),
        key=id,
        told=REJECTED,
    )
    first = Step(
        ((name, b"5m"), ("delayd-id", b"window-other"), TOPIC, FAR), Pending(), key=b"window-other"
    )
    other = Step(
        ((name, b"300s"), ("delayd-id", b"window-other"), TOPIC, FAR),
        Refused("conflict", "send delayd-op replace to have this one instead"),
        (Told("conflict"),),
        key=b"window-other",
        implied=2,
    )
    yield Case(name, "the same window in other words, under an id that is taken", (first, other))
    bad = refusing(name, "bad-window", "from 1ms to 1d: write it like")
    for says, text in (
        ("nothing", "0s"),
        ("more than a day", "25h"),
        ("15 digits of days", "999999999999999d"),
        ("no unit", "10"),
        ("a fraction", "1.5s"),
        ("negative", "-5s"),
        ("a space between", "10 s"),
        ("a range", "0s-5s"),
    ):
        yield bad(says, text)
    yield refused(
        name,
        "what delayd writes",
        ("delayd-planned", b"1"),
        reason="unknown-header",
        detail="drop its delayd-* headers first",
    )
    yield from spoilt(name, b"5m", (TOPIC, NOW))
