"""The cases of local times: due when the clock of a zone shows it. Data only."""

from collections.abc import Iterable

from request_cases.case import (
    After,
    Case,
    Dead,
    Delivered,
    Fate,
    Header,
    Killed,
    Moment,
    Nothing,
    Pending,
    Span,
    Step,
    Told,
)
from request_cases.making import DAY_MS, REJECTED, TOPIC, case_of, delivered, refused, waits

SECTION = "Local times"
ZONE, DUE = "delayd-zone", "delayd-due"
BERLIN: Header = (ZONE, b"Europe/Berlin")
RECEIPT: Header = ("delayd-receipt", b"yes")
DUE_PAST: Header = (DUE, b"2020-01-01T01:00")
SKIPPED_MS = 1_585_443_600_000
"""2020-03-29T01:00Z: in Berlin the clock goes from 02:00 to 03:00."""


def clock(in_ms: int, zone: str = "Europe/Berlin") -> tuple[Header, Header]:
    """What the clock of a zone shows so long after the step is written."""
    return (DUE, Moment(in_ms, zone)), (ZONE, zone.encode())


def local_time_cases() -> Iterable[Case]:
    """A `delayd-due` without an offset, with `delayd-zone`."""
    yield from _delivered()
    yield from _refused()
    yield from _with_ids()


def _delivered() -> Iterable[Case]:
    for zone in ("Europe/Berlin", "Asia/Kolkata", "America/St_Johns", "UTC"):
        when = clock(1_500, zone)
        soon = Moment(1_500, zone)
        yield delivered(SECTION, f"soon, in {zone}", *when, due=soon, implied=(TOPIC,))
    for says, text, due_ms in (
        ("the past, at once", "2020-01-01T01:00", 1_577_836_800_000),
        ("with seconds", "2020-01-01T01:00:07", 1_577_836_807_000),
        ("small letters, milliseconds", "2020-01-01t01:00:00.007", 1_577_836_800_007),
        ("below a millisecond rounds up", "2020-01-01T01:00:00.0070001", 1_577_836_800_008),
        ("a time that the clock skips", "2020-03-29T02:30", SKIPPED_MS),
        ("the last second that it skips", "2020-03-29T02:59:59", SKIPPED_MS),
        ("behind the one that it skips", "2020-03-29T03:00", SKIPPED_MS),
        ("a time that it shows twice: the first", "2020-10-25T02:30", 1_603_585_800_000),
        ("the first moment, an hour ahead of UTC", "1970-01-01T00:00", 0),
    ):
        yield delivered(SECTION, says, (DUE, text.encode()), BERLIN, due=due_ms, implied=(TOPIC,))
    yield delivered(
        SECTION,
        "all its receipts",
        *(DUE_PAST, BERLIN, RECEIPT),
        due=1_577_836_800_000,
        implied=(TOPIC,),
        told=(Told("scheduled"), Told("delivered")),
    )
    late: Header = ("delayd-late", b"1ms")
    yield case_of(
        SECTION,
        "not worth it any more",
        (DUE_PAST, BERLIN, late),
        (TOPIC,),
        Dead("ms too late", "expired"),
    )
    yield waits(SECTION, "in a week", b"local-week", *clock(7 * DAY_MS))
    # Were it UTC, it would be beyond the longest delay.
    near = clock(40 * DAY_MS, "Pacific/Kiritimati")
    yield waits(SECTION, "just below the longest delay", b"local-40d", *near)
    detail = "the time zone 'Mars/Olympus' is not in tzdata"
    yield case_of(
        SECTION,
        "no such zone",
        (DUE_PAST, (ZONE, b"Mars/Olympus"), RECEIPT),
        (TOPIC,),
        Dead(detail, "no-occurrence"),
        told=(Told("scheduled"), Told("dead", detail=detail)),
    )


def _refused() -> Iterable[Case]:
    rows: list[tuple[str, tuple[Header, ...], str, str]] = []
    for says, text in (
        ("a day that is in no calendar", "2027-02-29T09:00"),
        ("an hour that there is not", "2027-03-28T24:00"),
        ("a leap second", "2027-03-28T09:00:60"),
        ("a space between", "2027-03-28 09:00"),
        ("a day alone", "2027-03-28"),
        ("before 1970", "1969-12-31T23:59"),
        ("a word", "tomorrow"),
    ):
        rows.append((says, ((DUE, text.encode()), BERLIN), "bad-due", text))
    rows.append(("without a zone", (DUE_PAST,), "bad-due", "is neither Unix milliseconds nor"))
    same = "which is the same moment everywhere"
    for says, text in (("`Z`", "2027-03-28T09:00:00Z"), ("Unix milliseconds", "0")):
        rows.append(
            (f"{says} and a zone", ((DUE, text.encode()), BERLIN), "unexpected-header", same)
        )
    for other in ("delayd-delay", "delayd-level"):
        value = b"1s" if other == "delayd-delay" else b"1"
        meaning = f"delayd-zone has no meaning with {other}"
        rows.append(
            (f"`{other}` and a zone", (BERLIN, (other, value)), "unexpected-header", meaning)
        )
        both = (DUE_PAST, BERLIN, (other, value))
        detail = f"delayd-due and {other} contradict"
        rows.append((f"and `{other}`", both, "several-dues", detail))
    alone = "delayd-zone has no meaning without delayd-due or delayd-cron"
    rows.append(("a zone alone", (BERLIN,), "unexpected-header", alone))
    cron: Header = ("delayd-cron", b"@daily")
    detail = "delayd-due and delayd-cron contradict"
    rows.append(("and `delayd-cron`", (DUE_PAST, BERLIN, cron), "several-dues", detail))
    until: Header = ("delayd-until", b"0")
    detail = "delayd-until has no meaning without delayd-cron"
    rows.append(("and `delayd-until`", (DUE_PAST, BERLIN, until), "unexpected-header", detail))
    rows.append(("a zone as a path", (DUE_PAST, (ZONE, b"../x")), "bad-zone", "is no name"))
    far = clock(42 * DAY_MS)
    rows.append(("too far in any zone", far, "too-far", "max_delay is 3456000000 ms"))
    own: Header = ("delayd-local", b"x")
    rows.append(
        ("a header of delayd's", (DUE_PAST, BERLIN, own), "unknown-header", "delayd writes")
    )
    for says, shown, reason, detail in rows:
        yield refused(SECTION, says, *shown, reason=reason, detail=detail, implied=(TOPIC,))


def _with_ids() -> Iterable[Case]:
    week = clock(7 * DAY_MS)

    def then(
        says: str,
        fate: Fate,
        asked: tuple[Header, ...],
        told: Told,
        last: Fate | None = None,
        when: tuple[Header, Header] = week,
        after: After = After.ANSWERED,
        told_first: tuple[Told, ...] = (Told("scheduled"),),
    ) -> Case:
        """It is pending, and something is asked under its id."""
        id = f"local-{says}".replace(" ", "-").encode()
        named: Header = ("delayd-id", id)
        first = Step((*when, RECEIPT, named, TOPIC), fate, told_first, key=id)
        value = b"other" if any(name == "delayd-topic" for name, _ in asked) else None
        headers = (*asked, named)
        step = Step(headers, last or Nothing(), (told,), id, value, after=after, implied=1)
        return Case(SECTION, says, (first, step))

    cancel, fire = ("delayd-op", b"cancel"), ("delayd-op", b"fire")
    for after, when in ((After.SENT, "at once"), (After.ANSWERED, "resolved")):
        gone = Told("cancelled", killed=(0,))
        yield then(f"cancelled {when}", Killed(), (cancel,), gone, after=after)
    by: tuple[Header, ...] = (("delayd-op", b"reschedule"), ("delayd-by", b"+1h"))
    unmovable = (
        refused(SECTION, "", reason="unmovable", detail="delayd-by could count from").steps[0].fate
    )
    yield then("moved by an hour", Pending(), by, REJECTED[0], unmovable)
    conflict = refused(SECTION, "", reason="conflict", detail="the id is taken").steps[0].fate
    other = (DUE_PAST, BERLIN, TOPIC)
    yield then("another under its id", Pending(), other, Told("conflict"), conflict)
    moved = Told("rescheduled", detail="another due time")
    out = Delivered(Span(0), moved_by=1)
    both = (Told("scheduled"), Told("delivered"))
    yield then("fired", out, (fire,), moved, told_first=both, after=After.SENT)
