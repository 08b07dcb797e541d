"""The cases of `reschedule` and `fire`: other due times for what is pending. Data only."""

from collections.abc import Iterable

from request_cases.case import (
    After,
    Case,
    Delivered,
    Fate,
    Header,
    Moment,
    Nothing,
    Pending,
    Refused,
    Span,
    Step,
    Told,
)
from request_cases.making import REJECTED, SOON, TOPIC, spoilt

FAR: Header = ("delayd-due", Moment(3_600_000))
RESCHEDULE: Header = ("delayd-op", b"reschedule")
FIRE: Header = ("delayd-op", b"fire")
YEARLY: Header = ("delayd-cron", b"@yearly")
OP, BY = "delayd-op", "delayd-by"
MOVED = (Told("rescheduled", detail="another due time"),)


def op_move_cases() -> Iterable[Case]:
    """The operations."""
    yield moved("fire: it goes out at once", b"fire", (FIRE,), Span(0))
    yield moved("a later time", b"move-ms", (RESCHEDULE, ("delayd-due", Moment(1_500))), Moment(0))
    when = ("delayd-due", Moment(1_200, "+02:00"))
    yield moved("a time as RFC 3339", b"move-rfc", (RESCHEDULE, when), Moment(0))
    yield moved("a time in the past", b"move-past", (RESCHEDULE, ("delayd-due", b"0")), 0)
    delay: Header = ("delayd-delay", b"1s")
    yield moved("a delay from now on", b"move-delay", (RESCHEDULE, delay), Span(1_000))
    wishes: tuple[Header, ...] = (("delayd-window", b"1h"), ("delayd-late", b"1h"))
    yield moved("fire: its window ends", b"fire-window", (FIRE,), Span(0), first=wishes)
    yield moved(
        "fire: keyed", b"fire-key", (FIRE,), Span(0), first=(("delayd-key", b"k"),), key=b"k"
    )
    yield from _of_nothing()
    yield from _in_series()
    yield from _twice()
    yield from _refused()


def by_cases() -> Iterable[Case]:
    """The header `delayd-by`."""
    for number, earlier in enumerate((b"-3598s", b"-2h", b"-3600000ms", b"-30m", b"-1h")):
        by: Header = (BY, earlier)
        if earlier == b"-30m":
            yield waiting("earlier", b"by-waits", by)
            continue
        id, asked = b"by-%d" % number, (RESCHEDULE, by)
        if earlier == b"-3598s":
            yield moved("earlier", id, asked, Moment(-3_598_000), section=BY, by=True)
        else:
            yield moved("earlier than now", id, asked, Span(0), section=BY)
    for number, later in enumerate((b"+1h", b"+10m", b"+0ms", b"+250ms", b"+1d")):
        yield waiting("later", b"by-later-%d" % number, (BY, later))
    detail = "is not + or - and an integer"
    for says, text in (
        ("no sign", "10m"),
        ("no unit", "+10"),
        ("another unit", "+1w"),
        ("a fraction", "+1.5h"),
        ("a space", "+ 1h"),
        ("two signs", "+-1h"),
        ("a word", "later"),
        ("more than 8,000 years", "+999999999999d"),
    ):
        yield refuses(BY, says, (RESCHEDULE, (BY, text.encode())), "bad-by", detail)
    for says, text in (("beyond the longest delay", "+9999d"),):
        id = b"by-far"
        first = Step((FAR, ("delayd-id", id), TOPIC), Pending(), key=id)
        headers: tuple[Header, ...] = (RESCHEDULE, (BY, text.encode()), ("delayd-id", id))
        fate = Refused("too-far", "which is this cluster's max_delay")
        last = Step(headers, fate, REJECTED, key=id, value=None, implied=1)
        yield Case(BY, says, (first, last))
    other = (("delayd-delay", b"1h"), (BY, b"+1m"))
    detail = "delayd-by has no meaning with delayd-op schedule"
    headers = (*other, ("delayd-id", b"by-schedule"), TOPIC)
    step = Step(headers, Refused("unexpected-header", detail), REJECTED, b"by-schedule", implied=2)
    yield Case(BY, "of a schedule", (step,))
    yield from spoilt(BY, b"+1m", (RESCHEDULE,))


def moved(
    says: str,
    id: bytes,
    asked: tuple[Header, ...],
    due: int | Moment | Span,
    *,
    first: tuple[Header, ...] = (),
    key: bytes | None = None,
    section: str = OP,
    by: bool = False,
) -> Case:
    """It is pending, and delivered when the last step says. `due`: as of that step, unless `by`."""
    fate = Delivered(due, key, moved_by=0 if by else 1)
    scheduled = Step((FAR, *first, ("delayd-id", id), TOPIC), fate, key=id)
    last = Step((*asked, ("delayd-id", id)), Nothing(), MOVED, key=id, value=None, implied=1)
    return Case(section, says, (scheduled, last))


def waiting(says: str, id: bytes, by: Header) -> Case:
    """It is pending after that, too."""
    named: Header = ("delayd-id", id)
    scheduled = Step((FAR, named, TOPIC), Nothing(), key=id)
    last = Step((RESCHEDULE, by, named), Nothing(), MOVED, key=id, value=None, implied=1)
    return Case(BY, says, (scheduled, last))


def refuses(section: str, says: str, asked: tuple[Header, ...], reason: str, detail: str) -> Case:
    id = f"no-{section}-{says}".encode()
    headers = (*asked, ("delayd-id", id))
    fate = Refused(reason, detail)
    return Case(section, says, (Step(headers, fate, REJECTED, key=id, value=None, implied=1),))


def _of_nothing() -> Iterable[Case]:
    for op, more in ((FIRE, ()), (RESCHEDULE, ((BY, b"+1h"),))):
        word = bytes(op[1] or b"").decode() if isinstance(op[1], bytes) else ""
        id = f"nothing-{word}".encode()
        headers: tuple[Header, ...] = (op, *more, ("delayd-id", id))
        told = (Told("not-found", detail="nothing is remembered"),)
        step = Step(headers, Nothing(), told, key=id, value=None, implied=1)
        yield Case(OP, f"{word}: nothing is pending", (step,))
        id = f"late-{word}".encode()
        named: Header = ("delayd-id", id)
        receipts: Header = ("delayd-receipt", b"yes")
        done = Step(
            (SOON, receipts, named, TOPIC),
            Delivered(Span(1)),
            (Told("scheduled"), Told("delivered")),
            key=id,
        )
        told = (Told("too-late", detail="had been delivered"),)
        step = Step((op, *more, named), Nothing(), told, id, None, after=After.ANSWERED, implied=1)
        yield Case(OP, f"{word}: it is delivered", (done, step))
        id = f"gone-{word}".encode()
        named = ("delayd-id", id)
        pending = Step((FAR, named, TOPIC), Nothing(), key=id)
        cancel = Step(
            (("delayd-op", b"cancel"), named),
            Nothing(),
            (Told("cancelled", killed=(0,)),),
            id,
            None,
        )
        told = (Told("not-found", detail="nothing is scheduled"),)
        step = Step((op, *more, named), Nothing(), told, id, None, implied=1)
        yield Case(OP, f"{word}: it is cancelled", (pending, cancel, step))


def _in_series() -> Iterable[Case]:
    id = b"move-series"
    named: Header = ("delayd-id", id)
    receipt: Header = ("delayd-receipt", b"yes")
    first = Step((YEARLY, receipt, named, TOPIC), Pending(), (Told("scheduled"),), key=id)
    fate = Refused("unmovable", "a series is pending under the id")
    headers: tuple[Header, ...] = (RESCHEDULE, (BY, b"+1h"), named)
    last = Step(headers, fate, REJECTED, id, None, after=After.ANSWERED, implied=1)
    yield Case(OP, "reschedule: a series", (first, last))


def _twice() -> Iterable[Case]:
    for says, then, told in (
        ("cancel", (("delayd-op", b"cancel"),), Told("cancelled", killed=(0,))),
        ("reschedule", (RESCHEDULE, (BY, b"+1m")), MOVED[0]),
    ):
        id = f"twice-{says}".encode()
        named: Header = ("delayd-id", id)
        pending = Step((FAR, named, TOPIC), Nothing(), key=id)
        later = Step((RESCHEDULE, (BY, b"+1h"), named), Nothing(), MOVED, id, None)
        last = Step((*then, named), Nothing(), (told,), id, None, implied=1)
        yield Case(OP, f"reschedule, and then {says}", (pending, later, last))
    for says, verdict in (("the same again", "duplicate"), ("another message", "conflict")):
        id = f"taken-{verdict}".encode()
        named = ("delayd-id", id)
        fixed: tuple[Header, ...] = (("delayd-delay", b"1h"), named, TOPIC)
        pending = Step(fixed, Nothing(), key=id)
        later = Step((RESCHEDULE, (BY, b"+1h"), named), Nothing(), MOVED, id, None)
        if verdict == "duplicate":
            last = Step(fixed, Nothing(), (Told(verdict),), key=id, implied=2)
        else:
            fate: Fate = Refused("conflict", "the id is taken by")
            asked: tuple[Header, ...] = (("delayd-key", b"other"), *fixed)
            last = Step(asked, fate, (Told(verdict),), key=id, implied=2)
        yield Case(OP, f"reschedule, and then {says}", (pending, later, last))


def _refused() -> Iterable[Case]:
    soon: Header = ("delayd-delay", b"1s")
    for says, asked, reason, detail in (
        ("fire with a time", (FIRE, soon), "unexpected-header", "delayd-delay has no meaning"),
        ("fire with a target", (FIRE, TOPIC), "unexpected-header", "delayd-topic has no meaning"),
        ("fire with `delayd-by`", (FIRE, (BY, b"+1m")), "unexpected-header", "has no meaning with"),
        ("reschedule without a time", (RESCHEDULE,), "missing-due", "delayd-by"),
        (
            "reschedule with two times",
            (RESCHEDULE, soon, (BY, b"+1m")),
            "several-dues",
            "delayd-delay and delayd-by contradict each other",
        ),
        (
            "reschedule with a level",
            (RESCHEDULE, ("delayd-level", b"1")),
            "unexpected-header",
            "delayd-level has no meaning",
        ),
        (
            "reschedule with a wish",
            (RESCHEDULE, soon, ("delayd-late", b"1m")),
            "unexpected-header",
            "delayd-late has no meaning",
        ),
        (
            "reschedule to beyond the longest delay",
            (RESCHEDULE, ("delayd-delay", b"9999d")),
            "too-far",
            "max_delay",
        ),
    ):
        yield refuses(OP, says, asked, reason, detail)
    id = b"fire-value"
    fate = Refused("unexpected-value", "leaves the message as it is")
    step = Step((FIRE, ("delayd-id", id)), fate, REJECTED, key=id, implied=1)
    yield Case(OP, "fire with a value", (step,))
    step = Step((FIRE,), Refused("missing-id", "needs the id"), key=b"k", value=None)
    yield Case(OP, "fire without an id", (step,))
