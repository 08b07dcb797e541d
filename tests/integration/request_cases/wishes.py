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
        ((name, b"1500ms"), ("delayd-topic", b"no-such-topic")),
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
