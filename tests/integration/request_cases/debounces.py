"""The cases of `debounce`: of several messages the last one counts. Data only."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from request_cases.case import (
    After,
    Case,
    Delivered,
    Due,
    Fate,
    Header,
    Killed,
    Moment,
    Nothing,
    Pending,
    Refused,
    Span,
    Step,
    Told,
)
from request_cases.making import REJECTED, TOPIC, refused, spoilt

OP, MAX_WAIT = "delayd-op", "delayd-max-wait"
DEBOUNCE: Header = (OP, b"debounce")
DELAY_MS = 12_000
"""Long enough for the records that follow."""
DELAY: Header = ("delayd-delay", b"12s")
WAIT: Header = (MAX_WAIT, b"1h")
TIMES = (DELAY, WAIT)
AT_ONCE = (("delayd-delay", b"1ms"), (MAX_WAIT, b"1ms"))
RECEIPTS: Header = ("delayd-receipt", b"yes")
LAST = Delivered(Span(DELAY_MS))
SCHEDULED, REPLACED = Told("scheduled"), Told("replaced", (0,))
OUT = Told("delivered")


def op_debounce_cases() -> Iterable[Case]:
    """The operation."""
    yield case("debounce: one", "one", one(*TIMES, fate=LAST))
    yield case(
        "debounce: the last of three",
        "three",
        *(one(*TIMES, fate=Killed(), value=b"%d" % n) for n in range(2)),
        one(*TIMES, fate=LAST, value=b"3"),
    )
    first = one(DELAY, (MAX_WAIT, b"12s"), fate=Killed())
    cut = Delivered(Span(DELAY_MS), since=0)
    yield case(
        "debounce: the last of those within `delayd-max-wait`",
        "cut",
        *(first, replace(first, value=b"2")),
        one(DELAY, (MAX_WAIT, b"12s"), fate=cut, value=b"3"),
    )
    out = one(*AT_ONCE, RECEIPTS, fate=Delivered(Span(1)), told=(SCHEDULED, OUT))
    again = one(*TIMES, fate=LAST, value=b"2", after=After.ANSWERED)
    yield case("debounce: the one before is delivered", "again", out, again)
    yield case(
        "debounce: another key, partition and target topic",
        "other",
        one(*TIMES, ("delayd-key", b"k"), fate=Killed()),
        one(*TIMES, ("delayd-partition", b"2"), fate=Delivered(Span(DELAY_MS), partition=2)),
    )
    told = one(*TIMES, RECEIPTS, fate=Delivered(Span(DELAY_MS)), told=(SCHEDULED, OUT))
    yield case("debounce: told", "told", told)
    yield case(
        "debounce: each is told",
        "each-told",
        one(*TIMES, RECEIPTS, fate=Killed(), told=(SCHEDULED,)),
        one(*TIMES, RECEIPTS, fate=LAST, told=(REPLACED, OUT), value=b"2"),
    )
    for name, content in (("delayd-group", b"a group"), ("delayd-late", b"1h")):
        says = f"debounce: with `{name}`"
        yield case(says, name, one(*TIMES, (name, content), fate=LAST))
    yield from _in_place_of_others()
    yield from _others_about_it()
    yield from _refused()


def max_wait_cases() -> Iterable[Case]:
    """The header `delayd-max-wait`."""
    for number, text in enumerate(("1ms", "250ms", "10s", "5m", "2h", "30d", "999999999999999d")):
        times = (("delayd-delay", b"1ms"), (MAX_WAIT, text.encode()))
        steps = (one(*times, fate=Delivered(Span(1))),)
        yield case("good", f"wait-{number}", *steps, section=MAX_WAIT)
    detail = "is not an integer of at most 15 digits"
    for says, text in (
        ("no unit", "10"),
        ("another unit", "10w"),
        ("a sign", "+10s"),
        ("a fraction", "1.5s"),
        ("a space", "10 s"),
        ("16 digits", "1000000000000000ms"),
        ("a word", "soon"),
    ):
        yield refuses(says, (DELAY, (MAX_WAIT, text.encode())), "bad-max-wait", detail)
    shorter = (DELAY, (MAX_WAIT, b"11999ms"))
    yield refuses("shorter than the delay", shorter, "bad-max-wait", "shorter than delayd-delay")
    yield refuses("without a delay", (WAIT,), "missing-due", "delayd-delay is missing")
    for op, more in (
        ("schedule", (TOPIC, DELAY)),
        ("replace", (TOPIC, DELAY)),
        ("cancel", ()),
        ("reschedule", (DELAY,)),
        ("fire", ()),
    ):
        detail = f"delayd-max-wait has no meaning with delayd-op {op}"
        asked: tuple[Header, ...] = ((OP, op.encode()), WAIT, *more)
        yield refuses(f"of a {op}", asked, "unexpected-header", detail, is_op=True)
    implied: tuple[Header, ...] = (DEBOUNCE, ("delayd-delay", b"1s"), TOPIC)
    yield from spoilt(MAX_WAIT, b"1h", implied)


def one(
    *headers: Header,
    fate: Fate,
    told: tuple[Told, ...] = (),
    value: bytes = b"1",
    after: After = After.SENT,
) -> Step:
    """A debounce, without its id."""
    return Step((DEBOUNCE, *headers, TOPIC), fate, told, value=value, after=after)


def case(says: str, slug: str, *steps: Step, section: str = OP) -> Case:
    """A case of these steps under an id of their own."""
    id = f"debounce-{slug}".encode()
    named = [replace(each, headers=(("delayd-id", id), *each.headers), key=id) for each in steps]
    last = replace(named[-1], headers=(*named[-1].headers[1:], named[-1].headers[0]), implied=2)
    return Case(section, says, (*named[:-1], last))


def refuses(
    says: str,
    asked: tuple[Header, ...],
    reason: str,
    detail: str,
    *,
    section: str = MAX_WAIT,
    is_op: bool = False,
) -> Case:
    id = f"no-debounce-{says}".encode()
    implied: tuple[Header, ...] = (("delayd-id", id),)
    if not is_op:
        implied = (DEBOUNCE, TOPIC, *implied)
    step: dict[str, Any] = {"key": id, "told": REJECTED}
    if is_op and (OP, b"cancel") not in asked:
        step["value"] = None
    return refused(section, says, *asked, reason=reason, detail=detail, implied=implied, **step)


def _in_place_of_others() -> Iterable[Case]:
    hour: Header = ("delayd-delay", b"1h")
    yearly: Header = ("delayd-cron", b"@yearly")
    clock = (("delayd-due", Moment(3_600_000, "UTC")), ("delayd-zone", b"UTC"))
    for says, slug, headers in (
        ("a plain message", "plain", (hour,)),
        ("a series", "series", (yearly,)),
        ("a local time", "clock", clock),
    ):
        first = Step((*headers, TOPIC), Killed())
        last = one(*AT_ONCE, fate=Delivered(Span(1)), told=(REPLACED,), value=b"2")
        yield case(f"debounce in place of {says}", slug, first, last)
    pending = Step((hour, TOPIC), Killed())
    moved = Step(
        ((OP, b"reschedule"), ("delayd-by", b"+1h")), Nothing(), (Told("rescheduled"),), value=None
    )
    last = one(*AT_ONCE, fate=Delivered(Span(1)), told=(REPLACED,), value=b"2")
    yield case("debounce in place of what is moved", "moved", pending, moved, last)
    fired = Step(((OP, b"fire"),), Nothing(), (Told("rescheduled"),), value=None)
    goes = Step((hour, TOPIC), Delivered(Span(0), moved_by=1))
    yield case("debounce after a fire", "fired", goes, fired, one(*TIMES, fate=LAST, value=b"2"))


def _others_about_it() -> Iterable[Case]:
    far = (("delayd-delay", b"1h"), WAIT)
    for says, slug, headers, fate, told in (
        ("cancel", "cancel", ((OP, b"cancel"),), Nothing(), Told("cancelled", (1,))),
        ("replace", "replace", ((OP, b"replace"), TOPIC, DELAY), LAST, Told("replaced", (1,))),
    ):
        steps = (one(*far, fate=Killed()), one(*far, fate=Killed(), value=b"2"))
        value = None if slug == "cancel" else b"3"
        last = Step(headers, fate, (told,), value=value)
        yield case(f"debounce twice, and then {says}", slug, *steps, last)
    for says, slug, more, due in (
        ("fire", "fire", (), Span(0)),
        ("reschedule", "reschedule", (DELAY,), Span(DELAY_MS)),
    ):
        yield _moved(says, slug, more, due)
    conflict = Refused("conflict", "the id is taken by")
    schedule = Step((("delayd-delay", b"1h"), TOPIC), conflict, (Told("conflict"),), value=b"1")
    first = one(*far, fate=Pending())
    yield case("debounce, and then a schedule of the same", "conflict", first, schedule)


def _moved(says: str, slug: str, more: tuple[Header, ...], due: Due) -> Case:
    far = (("delayd-delay", b"1h"), WAIT)
    first = one(*far, fate=Delivered(due, moved_by=1))
    headers: tuple[Header, ...] = ((OP, says.encode()), *more)
    last = Step(headers, Nothing(), (Told("rescheduled"),), value=None)
    return case(f"debounce, and then {says}", slug, first, last)


def _refused() -> Iterable[Case]:
    for name, content in (
        ("delayd-due", b"0"),
        ("delayd-level", b"1"),
        ("delayd-by", b"+1m"),
        ("delayd-window", b"1m"),
        ("delayd-cron", b"@daily"),
        ("delayd-zone", b"UTC"),
        ("delayd-until", b"0"),
        ("delayd-catchup", b"all"),
        ("delayd-redrive", b"0/7"),
    ):
        detail = f"{name} has no meaning with delayd-op debounce"
        asked = (*TIMES, (name, content))
        says = f"debounce with `{name}`"
        yield refuses(says, asked, "unexpected-header", detail, section=OP)
    far = (("delayd-delay", b"9999d"), (MAX_WAIT, b"9999d"))
    yield refuses("debounce too far", far, "too-far", "max_delay", section=OP)
    detail = "delayd-max-wait is missing"
    yield refuses("debounce without `delayd-max-wait`", (DELAY,), "missing-due", detail, section=OP)
    detail = "the header delayd-id is missing"
    nameless = (DEBOUNCE, *TIMES)
    says, implied = "debounce without an id", (TOPIC,)
    yield refused(OP, says, *nameless, reason="missing-id", detail=detail, implied=implied)
