"""The cases of series: messages that recur. Data only."""

from collections.abc import Iterable

from request_cases.case import (
    After,
    Case,
    Dead,
    Header,
    Moment,
    Nothing,
    Pending,
    Recurs,
    Step,
    Told,
)
from request_cases.making import (
    CATCHES_UP,
    NOW,
    REJECTED,
    TOPIC,
    case_of,
    refused,
    refusing,
    spoilt,
)

EACH_SECOND: Header = ("delayd-cron", b"* * * * * *")
YEARLY: Header = ("delayd-cron", b"@yearly")
RECEIPT: Header = ("delayd-receipt", b"yes")
ENDED = (Told("ended"),)


def recurs(section: str, says: str, id: bytes, *shown: Header, until_ms: int = 2_500) -> Case:
    """Each second up to its end, which it is told of."""
    until: Header = ("delayd-until", Moment(until_ms))
    implied: tuple[Header, ...] = (("delayd-id", id), TOPIC)
    if CATCHES_UP not in shown:
        implied = (*implied, CATCHES_UP)
    return case_of(section, says, (*shown, until), implied, Recurs(1_000), key=id, told=ENDED)


def waits(section: str, says: str, id: bytes, *shown: Header) -> Case:
    """Pending, under an id."""
    return case_of(section, says, shown, (("delayd-id", id), TOPIC), Pending(), key=id)


def cron_cases() -> Iterable[Case]:
    name = "delayd-cron"
    yield recurs(name, "six fields: each second", b"cron-each", EACH_SECOND)
    id = b"cron-every"
    until: Header = ("delayd-until", Moment(5_000))
    shown: tuple[Header, ...] = (("delayd-cron", b"*/2 * * * * *"), until)
    named: tuple[Header, ...] = (("delayd-id", id), TOPIC, CATCHES_UP)
    yield case_of(name, "every other one", shown, named, Recurs(2_000), key=id, told=ENDED)
    shown = (EACH_SECOND, ("delayd-until", Moment(2_500)))
    implied = (TOPIC,)
    yield case_of(name, "without an id, and so without receipts", shown, implied, Recurs(1_000))
    for number, text in enumerate(
        (
            *("0 9 1 1 *", "0 9 * 1 MON-FRI", "59 59 23 31 12 *", "0 0 L 2 *", "0 0 * 2 5L"),
            *("@yearly", "@annually", "0 0 29 2 *", "5/20 4 1 JAN *", "0 0 1 1 MON#1"),
        )
    ):
        yield waits(name, "not due yet", b"cron-waits-%d" % number, (name, text.encode()))
    for says, text, detail in (
        ("30 February", "0 0 30 2 *", "has no meaning"),
        ("a minute that there is not", "60 * * * *", "has no meaning"),
        ("a day that never comes", "0 0 */31 2 MON#5", "never comes"),
        ("a name that there is not", "0 0 * * MOO", "has no meaning"),
    ):
        yield _dies(name, says, (name, text.encode()), detail=detail)
    bad = refusing(name, "bad-cron", "is not five or six fields", implied=(TOPIC,))
    for says, text in (
        ("four fields", "* * * *"),
        ("seven fields", "* * * * * * *"),
        ("a tab between", "*\t* * * *"),
        ("a space before", " * * * * *"),
        ("a space behind", "* * * * * "),
        ("another character", "0 9 ? * *"),
        ("a letter beyond ASCII", "0 9 ä * *"),
        ("129 characters", "0 9 * * " + "1," * 60 + "1"),
        ("a name that there is not", "@noon"),
        ("a name with a capital", "@Daily"),
        ("a span", "@every 5m"),
        ("a word", "daily"),
    ):
        yield bad(says, text)
    for due in (("delayd-due", b"0"), ("delayd-delay", b"1s"), ("delayd-level", b"1")):
        yield refused(
            name,
            f"and `{due[0]}`",
            EACH_SECOND,
            due,
            reason="several-dues",
            detail=f"{due[0]} and delayd-cron contradict each other",
            implied=(TOPIC,),
        )
    yield refused(
        name,
        "and `delayd-window`",
        EACH_SECOND,
        ("delayd-window", b"1s"),
        reason="unexpected-header",
        detail="delayd-window and delayd-cron contradict each other",
        implied=(TOPIC,),
    )
    id = b"cron-cancel"
    yield refused(
        name,
        "of a cancel",
        ("delayd-op", b"cancel"),
        ("delayd-id", id),
        YEARLY,
        reason="unexpected-header",
        detail="the header delayd-cron has no meaning with delayd-op cancel",
        implied=(),
        key=id,
        told=REJECTED,
    )
    yield from _with_ids(name)
    yield from spoilt(name, b"@yearly", (TOPIC,))


def _dies(section: str, says: str, *shown: Header, detail: str) -> Case:
    told = (Told("scheduled"), Told("dead", detail=detail))
    return case_of(
        section, says, (*shown, RECEIPT), (TOPIC,), Dead(detail, "no-occurrence"), told=told
    )


def _with_ids(name: str) -> Iterable[Case]:
    for what, after, fate, told in (
        ("again", YEARLY, Nothing(), Told("duplicate")),
        ("cancelled", ("delayd-op", b"cancel"), Nothing(), Told("cancelled", killed=(0,))),
    ):
        id = b"cron-id-" + what.encode()
        named: tuple[Header, ...] = (("delayd-id", id), TOPIC)
        first = Step(
            (YEARLY, RECEIPT, *named),
            Pending() if what == "again" else Nothing(),
            (Told("scheduled"),),
            key=id,
        )
        headers = (after, ("delayd-id", id)) if what == "cancelled" else (after, *named)
        second = Step(headers, fate, (told,), key=id, after=After.ANSWERED, implied=1)
        yield Case(name, f"pending, and {what}", (first, second))


def zone_cases() -> Iterable[Case]:
    name = "delayd-zone"
    for number, zone in enumerate(("Europe/Berlin", "UTC", "America/Argentina/Ushuaia", "EST5EDT")):
        yield waits(name, "of a series", b"zone-%d" % number, (name, zone.encode()), YEARLY)
    yield _dies(name, "not in tzdata", (name, b"Mars/Olympus"), YEARLY, detail="not in tzdata")
    bad = refusing(name, "bad-zone", "is no name of a time zone", implied=(TOPIC, YEARLY))
    for says, text in (
        ("an offset", "+01:00"),
        ("a space", "Europe/New Berlin"),
        ("a path", "../Berlin"),
        ("a slash in front", "/Berlin"),
        ("a slash at the end", "Europe/"),
        ("65 characters", "Z" * 65),
        ("letters beyond ASCII", "Europe/Zürich"),
    ):
        yield bad(says, text)
    yield refused(
        name,
        "of a message that does not recur",
        (name, b"UTC"),
        reason="unexpected-header",
        detail="the header delayd-zone has no meaning with delayd-due '0'",
    )
    yield from spoilt(name, b"UTC", (TOPIC, YEARLY))


def until_cases() -> Iterable[Case]:
    name = "delayd-until"
    far: Header = (name, b"253402300799999")
    yield waits(name, "as Unix ms", b"until-ms", far, YEARLY)
    yield waits(name, "as RFC 3339", b"until-rfc", (name, b"9999-12-31T23:59:59+01:00"), YEARLY)
    yield recurs(name, "in a moment", b"until-soon", EACH_SECOND, until_ms=1_500)
    yield _dies(name, "in the past", (name, b"0"), EACH_SECOND, detail="after the end of")
    bad = refusing(name, "bad-until", "delayd-until", implied=(TOPIC, YEARLY))
    for says, text in (
        ("a word", "tomorrow"),
        ("a delay", "10s"),
        ("without an offset", "2026-01-31T23:59:59"),
        ("in seconds", "1700000000"),
        ("a day that is in no calendar", "2026-02-30T00:00:00Z"),
        ("a sign", "-1"),
    ):
        yield bad(says, text)
    yield refused(
        name,
        "of a message that does not recur",
        far,
        reason="unexpected-header",
        detail="the header delayd-until has no meaning without delayd-cron",
    )
    yield from spoilt(name, b"253402300799999", (TOPIC, YEARLY))


def catchup_cases() -> Iterable[Case]:
    name = "delayd-catchup"
    for number, word in enumerate((b"once", b"all")):
        yield waits(name, "of a series", b"catchup-%d" % number, (name, word), YEARLY)
    yield recurs(name, "nothing is missed", b"catchup-each", (name, b"all"), EACH_SECOND)
    bad = refusing(name, "bad-catchup", "is neither once nor all", implied=(TOPIC, YEARLY))
    for says, text in (
        ("a number", "1"),
        ("a capital", "All"),
        ("none", "none"),
        ("yes", "yes"),
        ("a space behind", "all "),
    ):
        yield bad(says, text)
    yield refused(
        name,
        "of a message that does not recur",
        (name, b"all"),
        NOW,
        reason="unexpected-header",
        detail="the header delayd-catchup has no meaning without delayd-cron",
        implied=(TOPIC,),
    )
    yield from spoilt(name, b"all", (TOPIC, YEARLY))
