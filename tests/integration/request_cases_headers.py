"""The cases of single headers: each good, at the edge, and bad. Data only."""

from collections.abc import Iterable
from typing import Any

from request_case import (
    KEY,
    RECORD_BYTES_MAX,
    VALUE,
    Case,
    Dead,
    Delivered,
    Due,
    Header,
    Moment,
    Nothing,
    Pending,
    Refused,
    Span,
    Step,
    Told,
)

TOPIC: Header = ("delayd-topic", b"orders")
NOW: Header = ("delayd-due", b"0")
SOON: Header = ("delayd-delay", b"1ms")

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
REJECTED = (Told("rejected"),)


def delivered(
    section: str,
    says: str,
    *shown: Header,
    due: Due = 0,
    implied: tuple[Header, ...] = (TOPIC, NOW),
    key: bytes | None = KEY,
    value: bytes | None = VALUE,
    told: tuple[Told, ...] = (),
    partition: int | None = None,
    size_bytes: int | None = None,
    delivered_key: bytes | None = None,
    to_partition: int | None = None,
    user: tuple[tuple[str, bytes | None], ...] | None = None,
    topic: bytes = b"orders",
) -> Case:
    fate = Delivered(due, delivered_key, to_partition, user, topic)
    headers = (*shown, *implied)
    step = Step(
        headers, fate, told, key, value, partition, size_bytes=size_bytes, implied=len(implied)
    )
    return Case(section, says, (step,))


def refused(
    section: str,
    says: str,
    *shown: Header,
    reason: str,
    detail: str,
    implied: tuple[Header, ...] = (TOPIC, NOW),
    key: bytes | None = KEY,
    value: bytes | None = VALUE,
    told: tuple[Told, ...] = (),
    partition: int | None = None,
    size_bytes: int | None = None,
    keeps_value: bool = True,
    keeps_headers: bool = True,
) -> Case:
    fate = Refused(reason, detail, keeps_value, keeps_headers)
    headers = (*shown, *implied)
    step = Step(
        headers, fate, told, key, value, partition, size_bytes=size_bytes, implied=len(implied)
    )
    return Case(section, says, (step,))


def waits(section: str, says: str, id: bytes, *shown: Header) -> Case:
    """Pending: with an id, so that it can be seen in the wheel."""
    implied: tuple[Header, ...] = (("delayd-id", id), TOPIC)
    return Case(section, says, (Step((*shown, *implied), Pending(), key=id, implied=len(implied)),))


def dies(section: str, says: str, *shown: Header, detail: str, implied: tuple[Header, ...]) -> Case:
    step = Step((*shown, *implied), Dead(detail), implied=len(implied))
    return Case(section, says, (step,))


def spoilt(name: str, good: bytes, implied: tuple[Header, ...]) -> Iterable[Case]:
    """What is wrong with any request header."""
    once = (name, good)
    rows: list[tuple[str, tuple[Header, ...], str, str]] = [
        ("null", ((name, None),), "null-header", f"the header {name} is null"),
        ("empty", ((name, b""),), "empty-header", f"the header {name} is empty"),
        ("twice, the same", (once, once), "repeated-header", f"{name} is there more than once"),
        ("not UTF-8", ((name, good + b"\xff"),), "not-utf8", f"the header {name} is not UTF-8"),
    ]
    for says, shown, reason, detail in rows:
        yield refused(name, says, *shown, reason=reason, detail=detail, implied=implied)


def topic_cases() -> Iterable[Case]:
    name = "delayd-topic"

    def bad(says: str, topic: bytes, reason: str, detail: str) -> Case:
        shown = (name, topic)
        return refused(name, says, shown, reason=reason, detail=detail, implied=(NOW,))

    yield delivered(name, "a topic", TOPIC, implied=(NOW,))
    every_kind = b"Orders_2.eu-west"
    yield delivered(
        name, "every kind of character", (name, every_kind), implied=(NOW,), topic=every_kind
    )
    long = b"t" * 249
    yield delivered(name, "as long as a name can be", (name, long), implied=(NOW,), topic=long)
    yield bad("one character more", long + b"t", "bad-topic", "1 to 249 letters")
    yield refused(name, "none", reason="missing-topic", detail="is missing", implied=(NOW,))
    yield refused(
        name,
        "another spelling is a header of yours",
        ("Delayd-Topic", b"orders"),
        reason="missing-topic",
        detail="delayd-topic is missing",
        implied=(NOW,),
    )
    yield bad("a slash", b"orders/eu", "bad-topic", "no legal topic name")
    yield bad("a space", b" orders", "bad-topic", "no legal topic name")
    yield bad("a NUL byte", b"orders\0", "bad-topic", "no legal topic name")
    yield bad("not ASCII", "größe".encode(), "bad-topic", "gr\\xf6\\xdfe")
    yield bad("a dot", b".", "bad-topic", "not . or ..")
    yield bad("two dots", b"..", "bad-topic", "not . or ..")
    yield bad("Kafka's own", b"__consumer_offsets", "forbidden-topic", "Kafka (__*)")
    yield bad("delayd's own", b"delayd-buffer", "forbidden-topic", "never a target")
    yield bad("as delayd's own", b"delayd-orders", "forbidden-topic", "it belongs to delayd")
    yield refused(
        name,
        "two of them",
        TOPIC,
        (name, b"others"),
        reason="repeated-header",
        detail="more than once",
        implied=(NOW,),
    )
    yield from spoilt(name, b"orders", (NOW,))
    yield dies(
        name,
        "a topic that does not exist",
        (name, b"no-such-topic"),
        detail="topic no-such-topic does not exist; create it",
        implied=(NOW,),
    )
    yield Case(
        name,
        "a topic that takes smaller records only",
        (
            Step(
                ((name, b"small"), NOW),
                Dead("takes 2000 at most (max.message.bytes)"),
                value=b"x" * 2_000,
                implied=1,
            ),
        ),
    )
    compacted: Header = (name, b"compacted")
    yield delivered(
        name, "a compacted topic, with a key", compacted, implied=(NOW,), topic=b"compacted"
    )
    yield Case(
        name,
        "a compacted topic, without a key",
        (Step((compacted, NOW), Dead("each record needs a key"), key=None, implied=1),),
    )


def due_cases() -> Iterable[Case]:
    name = "delayd-due"

    def good(says: str, content: bytes | Moment, due: Due) -> Case:
        return delivered(name, says, (name, content), due=due, implied=(TOPIC,))

    def bad(says: str, text: str, detail: str, reason: str = "bad-due") -> Case:
        shown = (name, text.encode())
        return refused(name, says, shown, reason=reason, detail=detail, implied=(TOPIC,))

    new_year_ms = 1_577_836_800_000
    for moment in (Moment(1_500), Moment(1_500, "Z"), Moment(1_500, "+05:30"), Moment(0)):
        how = "Unix milliseconds" if moment.form == "ms" else f"RFC 3339 with {moment.form}"
        yield good(f"{how}, now" if moment.in_ms == 0 else f"{how}, soon", moment, moment)
    yield good("the past, at once", b"1577836800000", new_year_ms)
    yield good("the first millisecond", b"0", 0)
    yield good("leading zeros, 15 digits", b"001577836800000", new_year_ms)
    yield good("RFC 3339", b"2020-01-01T00:00:00Z", new_year_ms)
    yield good("small letters", b"2020-01-01t00:00:00z", new_year_ms)
    yield good("an offset to the east", b"2020-01-01T05:30:00+05:30", new_year_ms)
    yield good("an offset to the west", b"2019-12-31T19:00:00-05:00", new_year_ms)
    yield good("the widest offset", b"2020-01-01T23:59:00+23:59", new_year_ms)
    yield good("milliseconds", b"2020-01-01T00:00:00.007Z", new_year_ms + 7)
    yield good("below a millisecond rounds up", b"2020-01-01T00:00:00.0070001Z", new_year_ms + 8)
    yield good("tenths", b"2020-01-01T00:00:00.5Z", new_year_ms + 500)
    yield good("a leap day", b"2024-02-29T00:00:00Z", 1_709_164_800_000)
    yield good("the first moment", b"1970-01-01T00:00:00Z", 0)
    yield waits(
        name, "just below the longest delay", b"due-39d", (name, Moment(40 * DAY_MS - HOUR_MS))
    )
    beyond = Moment(40 * DAY_MS + HOUR_MS)
    yield refused(
        name,
        "beyond the longest delay",
        (name, beyond),
        reason="too-far",
        detail="max_delay is 3456000000 ms: choose an earlier time",
        implied=(TOPIC,),
    )
    yield bad("the last millisecond of 9999", "253402300799999", "max_delay is", "too-far")
    yield bad("one more", "253402300800000", "beyond the year 9999")
    yield bad("16 digits", "0001577836800000", "beyond the year 9999")
    yield bad("before 1970", "1969-12-31T23:59:59Z", "outside 1970-01-01")
    yield bad("before 1970 by its offset", "1970-01-01T00:30:00+01:00", "outside 1970-01-01")
    yield bad("rounded up beyond 9999", "9999-12-31T23:59:59.9999Z", "outside 1970-01-01")
    yield bad("a year of five digits", "10000-01-01T00:00:00Z", "neither Unix milliseconds nor")
    yield bad("negative", "-1", "neither Unix milliseconds nor RFC 3339")
    yield bad("a sign", "+1577836800000", "write it like 2026-")
    yield bad("a fraction of a millisecond", "1577836800000.5", "neither Unix milliseconds")
    yield bad("an exponent", "15e11", "neither Unix milliseconds")
    yield bad("a space before it", " 0", "neither Unix milliseconds")
    yield bad("digits of another script", "\u0661\u0662\u0663", "neither Unix milliseconds")
    yield bad("a word", "tomorrow", "neither Unix milliseconds nor RFC 3339")
    yield bad("no offset", "2020-01-01T00:00:00", "has no offset: end it with Z")
    yield bad("a space for the T", "2020-01-01 00:00:00Z", "neither Unix milliseconds")
    yield bad("no time of day", "2020-01-01", "neither Unix milliseconds")
    yield bad("no seconds", "2020-01-01T00:00Z", "neither Unix milliseconds")
    yield bad("a leap second", "2016-12-31T23:59:60Z", "names a leap second")
    yield bad("hour 24", "2020-01-01T24:00:00Z", "a time of day that does not exist")
    yield bad("minute 60", "2020-01-01T00:60:00Z", "a time of day that does not exist")
    yield bad("a day that is not", "2023-02-29T00:00:00Z", "a day that is in no calendar")
    yield bad("month 13", "2020-13-01T00:00:00Z", "a day that is in no calendar")
    yield bad(
        "an offset of a day", "2020-01-01T00:00:00+24:00", "has an offset that does not exist"
    )
    yield bad("an offset without its colon", "2020-01-01T00:00:00+0100", "neither Unix milli")
    yield from spoilt(name, b"0", (TOPIC,))


def delay_cases() -> Iterable[Case]:
    name = "delayd-delay"

    def good(says: str, text: bytes, ms: int) -> Case:
        return delivered(name, says, (name, text), due=Span(ms), implied=(TOPIC,))

    def bad(says: str, text: str, detail: str = "write it like", reason: str = "bad-delay") -> Case:
        shown = (name, text.encode())
        return refused(name, says, shown, reason=reason, detail=detail, implied=(TOPIC,))

    yield good("milliseconds", b"250ms", 250)
    yield good("seconds", b"2s", 2_000)
    yield good("nothing", b"0s", 0)
    yield good("nothing, in days", b"0d", 0)
    yield good("leading zeros, 15 digits", b"000000000000900ms", 900)
    yield waits(name, "minutes", b"delay-5m", (name, b"5m"))
    yield waits(name, "hours", b"delay-2h", (name, b"2h"))
    yield waits(name, "days", b"delay-30d", (name, b"30d"))
    yield waits(name, "the longest delay", b"delay-40d", (name, b"40d"))
    yield waits(name, "the longest delay, in milliseconds", b"delay-max", (name, b"3456000000ms"))
    longest = "the due time is 3456000001 ms after the append time"
    yield bad("a millisecond more", "3456000001ms", longest, "too-far")
    yield bad("a day more", "41d", "max_delay is 3456000000 ms", "too-far")
    yield bad("15 digits of days", "999999999999999d", "max_delay is", "too-far")
    yield bad("16 digits", "0000000000000001s", "at most 15 digits")
    yield bad("no unit", "10", "followed by ms, s, m, h or d")
    yield bad("no number", "s")
    yield bad("capitals", "10S")
    yield bad("weeks", "1w")
    yield bad("two units", "1m30s")
    yield bad("a fraction", "1.5s", "is not an integer")
    yield bad("negative", "-5s")
    yield bad("a sign", "+5s")
    yield bad("a space between", "10 s")
    yield bad("a line feed behind", "10s\n")
    yield bad("ISO 8601", "PT10S")
    yield from spoilt(name, b"1s", (TOPIC,))


def level_cases() -> Iterable[Case]:
    name = "delayd-level"

    def bad(says: str, text: str) -> Case:
        return refused(
            name,
            says,
            (name, text.encode()),
            reason="bad-level",
            detail="is not one of 1 to 18 (1 is 1s, 18 is 2h): use delayd-delay",
            implied=(TOPIC,),
        )

    yield delivered(name, "the lowest", (name, b"1"), due=Span(1_000), implied=(TOPIC,))
    yield delivered(name, "the second", (name, b"2"), due=Span(5_000), implied=(TOPIC,))
    yield delivered(name, "a leading zero", (name, b"01"), due=Span(1_000), implied=(TOPIC,))
    yield waits(name, "one in the middle", b"level-10", (name, b"10"))
    yield waits(name, "the highest", b"level-18", (name, b"18"))
    yield bad("above the highest", "19")
    yield bad("none", "0")
    yield bad("negative", "-1")
    yield bad("a fraction", "1.0")
    yield bad("a word", "one")
    yield bad("a delay", "1s")
    yield bad("16 digits", "0" * 15 + "1")
    yield from spoilt(name, b"1", (TOPIC,))


def several_due_cases() -> Iterable[Case]:
    section = "When, altogether"
    due: Header = ("delayd-due", b"0")
    delay: Header = ("delayd-delay", b"1s")
    level: Header = ("delayd-level", b"1")
    yield refused(
        section,
        "none of them",
        reason="missing-due",
        detail="no due time: add one",
        implied=(TOPIC,),
    )
    for shown in ((due, delay), (due, level), (delay, level), (due, delay, level)):
        names = " and ".join(str(name) for name, _ in shown)
        yield refused(
            section,
            "several" if len(shown) == 2 else "all three",
            *shown,
            reason="several-dues",
            detail=f"{names} contradict each other",
            implied=(TOPIC,),
        )


def key_cases() -> Iterable[Case]:
    name = "delayd-key"
    long = b"k" * 1_000
    yield delivered(name, "none: the record's own", implied=(TOPIC, NOW))
    yield delivered(name, "another", (name, b"customer-7"), delivered_key=b"customer-7")
    yield delivered(name, "the same", (name, KEY), delivered_key=KEY)
    yield delivered(name, "for a record without a key", (name, b"k"), key=None, delivered_key=b"k")
    umlaut = "schlüssel".encode()
    yield delivered(name, "not ASCII", (name, umlaut), delivered_key=umlaut)
    yield delivered(name, "a NUL byte", (name, b"a\0b"), delivered_key=b"a\0b")
    yield delivered(name, "a long one", (name, long), delivered_key=long)
    yield delivered(name, "a space", (name, b" "), delivered_key=b" ")
    yield from spoilt(name, b"customer-7", (TOPIC, NOW))


def partition_cases() -> Iterable[Case]:
    name = "delayd-partition"

    def bad(says: str, text: str) -> Case:
        return refused(
            name,
            says,
            (name, text.encode()),
            reason="bad-partition",
            detail="is not an integer from 0 to 2147483647",
        )

    yield delivered(name, "the first", (name, b"0"), to_partition=0)
    yield delivered(name, "the second", (name, b"1"), to_partition=1)
    yield delivered(name, "the last of four", (name, b"3"), to_partition=3)
    yield delivered(name, "a leading zero", (name, b"02"), to_partition=2)
    yield delivered(name, "of a record without a key", (name, b"2"), key=None, to_partition=2)
    there: Header = ("delayd-key", b"customer-7")
    yield delivered(
        name,
        "with another key",
        (name, b"1"),
        there,
        delivered_key=b"customer-7",
        to_partition=1,
    )
    for says, text in (("one too many", "4"), ("Kafka's last", "2147483647")):
        yield dies(
            name,
            says,
            (name, text.encode()),
            detail=f"has 4 partitions, the message asks for partition {text}",
            implied=(TOPIC, NOW),
        )
    yield bad("beyond Kafka's last", "2147483648")
    yield bad("11 digits", "00000000001")
    yield bad("negative", "-1")
    yield bad("a fraction", "1.0")
    yield bad("a word", "first")
    yield bad("a list", "0,1")
    yield from spoilt(name, b"1", (TOPIC, NOW))


def op_cases() -> Iterable[Case]:
    name = "delayd-op"

    def about(id: bytes) -> Header:
        return ("delayd-id", id)

    yield delivered(name, "schedule, as without it", (name, b"schedule"))
    for word in ("Cancel", "delete", " cancel", "schedule,cancel"):
        yield refused(
            name,
            "no operation",
            (name, word.encode()),
            reason="bad-op",
            detail="use one of schedule, cancel, replace",
        )
    cancel: Header = (name, b"cancel")
    replace: Header = (name, b"replace")
    missing = "delayd-id is missing"
    yield refused(
        name, "cancel without an id", cancel, reason="missing-id", detail=missing, implied=()
    )
    yield refused(name, "replace without an id", replace, reason="missing-id", detail=missing)
    for shown in (
        TOPIC,
        NOW,
        ("delayd-delay", b"1s"),
        ("delayd-level", b"1"),
        ("delayd-key", b"k"),
        ("delayd-partition", b"1"),
        ("delayd-redrive", b"0/4711"),
    ):
        unfit = str(shown[0])
        id = f"cancel-with-{unfit}".encode()
        yield refused(
            name,
            "cancel with what it does not take",
            cancel,
            about(id),
            shown,
            reason="unexpected-header",
            detail=f"the header {unfit} has no meaning with delayd-op cancel",
            implied=(),
            key=id,
            told=REJECTED,
        )
    id = b"replace-with-redrive"
    yield refused(
        name,
        "replace with what it does not take",
        replace,
        about(id),
        ("delayd-redrive", b"0/4711"),
        reason="unexpected-header",
        detail="delayd-redrive has no meaning with delayd-op replace",
        key=id,
        told=REJECTED,
    )
    for left, wanted, reason in ((NOW, "topic", "missing-topic"), (TOPIC, "due", "missing-due")):
        id = f"replace-without-{wanted}".encode()
        yield refused(
            name,
            f"replace without {'a topic' if wanted == 'topic' else 'a time'}",
            replace,
            about(id),
            reason=reason,
            detail=reason.replace("missing-topic", "is missing").replace("missing-due", "no due"),
            implied=(left,),
            key=id,
            told=REJECTED,
        )
    for says, id, value in (
        ("cancel without a value", b"cancel-null", None),
        ("cancel with a value and headers of yours: ignored", b"cancel-value", b"why"),
    ):
        mine: tuple[Header, ...] = () if value is None else (("mine", b"1"),)
        step = Step(
            (cancel, about(id), *mine),
            Nothing(),
            (Told("not-found", detail="nothing is scheduled under the id"),),
            key=id,
            value=value,
        )
        yield Case(name, says, (step,))
    yield from spoilt(name, b"cancel", (TOPIC, NOW))


def id_cases() -> Iterable[Case]:
    name = "delayd-id"

    def good(says: str, id: bytes) -> Case:
        return delivered(name, says, (name, id), key=id)

    def bad(says: str, id: bytes, key: bytes | None, detail: str, told: bool = True) -> Case:
        return refused(
            name,
            says,
            (name, id),
            reason="bad-id",
            detail=detail,
            key=key,
            told=REJECTED if told else (),
        )

    yield good("the key", b"order-4711")
    yield good("one byte", b"i")
    yield good("256 bytes", b"i" * 256)
    yield good("256 bytes that are 128 characters", "ü".encode() * 128)
    yield good("not ASCII", "Bestellung №1".encode())
    yield good("a space", b" ")
    yield good("a NUL byte", b"order\x004711")
    yield good("quotes and a backslash", b'"order"\\4711')
    yield delivered(
        name,
        "with another key to deliver",
        (name, b"order-4712"),
        ("delayd-key", b"customer-7"),
        key=b"order-4712",
        delivered_key=b"customer-7",
    )
    yield bad("257 bytes", b"i" * 257, b"i" * 257, "has 257 bytes: use one of 1 to 256", False)
    yield bad("not the key", b"order-1", b"order-2", "send the id as the key, byte for byte")
    yield bad("other capitals than the key", b"Order-3", b"order-3", "which is another")
    yield bad("no key", b"order-4", None, "which is null")
    yield bad("an empty key", b"order-5", b"", "which is another")
    wrong = b"order-6"  # murmur2 has it in partition 0 of 3
    yield refused(
        name,
        "in another partition than murmur2 has it",
        (name, wrong),
        reason="wrong-partition",
        detail="partitioner=murmur2_random",
        key=wrong,
        partition=1,
        told=REJECTED,
    )
    yield refused(
        name,
        "two of them",
        (name, b"order-7"),
        (name, b"order-8"),
        reason="repeated-header",
        detail="more than once",
        key=b"order-7",
    )
    yield refused(
        name,
        "with another fault: a receipt too",
        (name, b"order-9"),
        ("delayd-dely", b"1s"),
        reason="unknown-header",
        detail="did you mean delayd-delay?",
        key=b"order-9",
        told=(Told("rejected", detail="unknown-header: "),),
    )
    yield from spoilt(name, KEY, (TOPIC, NOW))


def redrive_cases() -> Iterable[Case]:
    name = "delayd-redrive"

    def good(says: str, source: str, *others: Header, **fields: Any) -> Case:
        return delivered(
            name,
            says,
            (name, source.encode()),
            *others,
            partition=int(source.partition("/")[0]),
            told=(Told("scheduled", id=source),),
            **fields,
        )

    def bad(
        says: str, text: str, detail: str = "copy delayd-source of the dead letter", **fields: Any
    ) -> Case:
        shown = (name, text.encode())
        usual: dict[str, Any] = {"reason": "bad-redrive", "partition": 0}
        return refused(name, says, shown, detail=detail, **(usual | fields))

    yield good("a source", "0/4711000")
    yield good("in any partition", "2/4711000")
    yield good("as a schedule", "0/4711001", ("delayd-op", b"schedule"))
    yield good("Kafka's last offset", "1/9223372036854775807")
    first = Step(
        ((name, b"1/4711002"), TOPIC, NOW),
        Delivered(0),
        (Told("scheduled", id="1/4711002"),),
        partition=1,
    )
    again = Step(
        ((name, b"1/4711002"), TOPIC, NOW),
        Nothing(),
        (Told("duplicate", detail="was redriven before", id="1/4711002"),),
        value=b"whatever it says",
        partition=1,
        implied=2,
    )
    yield Case(name, "the same source again", (first, again))
    limit = RECORD_BYTES_MAX + 1_024
    yield good("as large as it may be", "0/4711004", size_bytes=limit)
    yield bad(
        "one byte more",
        "0/4711005",
        f"counts {limit + 1} bytes",
        reason="too-large",
        size_bytes=limit + 1,
        keeps_value=False,
        told=(Told("rejected", id="0/4711005"),),
    )
    yield bad(
        "not its partition",
        "1/4711003",
        "is sent again through partition 1",
        told=(Told("rejected", id="1/4711003"),),
    )
    yield bad("beyond Kafka's last offset", "0/9223372036854775808")
    yield bad("a word", "nowhere")
    yield bad("a partition only", "0")
    yield bad("no offset", "0/")
    yield bad("leading zeros", "0/04711")
    yield bad("negative", "0/-1")
    yield bad("a space behind", "0/4711 ")
    yield bad("three numbers", "0/4711/1")
    yield from spoilt(name, b"0/4711", (TOPIC, NOW))


def other_header_cases() -> Iterable[Case]:
    section = "Other names that begin with delayd-"
    for planned in ("cron", "zone", "until", "late"):
        yield refused(
            section,
            "reserved",
            (f"delayd-{planned}", b"1"),
            reason="not-supported",
            detail="leave it out, or upgrade the cluster",
        )
    for unknown, near in (
        ("delayd-dely", "delay"),
        ("delayd-Topic", "topic"),
        ("delayd-keys", "key"),
        ("delayd-until-", "until"),
    ):
        yield refused(
            section,
            "nearly right",
            (unknown, b"1"),
            reason="unknown-header",
            detail=f"did you mean delayd-{near}?",
        )
    for unknown in ("delayd-", "delayd-zzzzzzzzz", "delayd-\u00fc"):
        yield refused(
            section,
            "unknown",
            (unknown, b"1"),
            reason="unknown-header",
            detail="names that start with delayd- are reserved",
        )
    for written in (
        *("fired", "source", "origin", "attempt", "occurrence"),
        *("reason", "detail", "truncated"),
    ):
        yield refused(
            section,
            "one that delayd writes",
            (f"delayd-{written}", b"1"),
            reason="unknown-header",
            detail="drop its delayd-* headers first",
        )
    for internal in ("continues", "continues-due", "next-due", "digest", "proof"):
        yield refused(
            section,
            "of delayd's own records, without a proof",
            (f"delayd-{internal}", b"1"),
            reason="bad-proof",
            detail="send a plain request without it",
        )
    yield refused(
        section,
        "a whole record like delayd's own, with a wrong proof",
        *(("delayd-topic", b"orders"), ("delayd-due", b"0"), ("delayd-continues", b"0")),
        *(("delayd-continues-due", b"0"), ("delayd-next-due", b"0"), ("delayd-origin", b"0/0")),
        *(("delayd-attempt", b"1"), ("delayd-proof", b"0" * 64)),
        reason="bad-proof",
        detail="lacks their proof",
        implied=(),
    )


def user_cases() -> Iterable[Case]:
    section = "What is yours"

    def mine(
        says: str, *shown: Header, user: tuple[tuple[str, bytes | None], ...] | None = None
    ) -> Case:
        return delivered(section, says, *shown, user=user)

    yield mine("repeated, in your order", ("b", b"1"), ("a", b"2"), ("b", b"3"), ("b", b"1"))
    yield mine("binary", ("trace", b"\x00\xff\xfe"))
    yield mine("empty and null", ("empty", b""), ("null", None))
    yield mine("an empty name", ("", b"1"))
    yield mine("a name that is not ASCII", ("größe", b"1"))
    yield mine("a name of 1,000 characters", ("n" * 1_000, b"1"))
    yield mine("500 headers", *((f"h{n}", b"%d" % n) for n in range(500)))
    yield mine("spellings that are not reserved", ("Delayd-Due", b"9"), ("delayd_due", b"9"))
    yield mine("reserved, but for a letter", ("delayd", b"9"), ("xdelayd-due", b"9"))
    yield mine("a name with a NUL byte is cut there", (b"a\0b", b"1"), user=(("a", b"1"),))
    yield refused(
        section,
        "a name that is not UTF-8: no header can be read",
        (b"\xff", b"1"),
        reason="not-utf8",
        detail="encode header names as UTF-8",
        keeps_headers=False,
    )
    yield delivered(section, "a null value", value=None)
    yield delivered(section, "an empty value", value=b"")
    yield delivered(section, "a binary value", value=b"\x00\xff\xfe")
    yield delivered(section, "no key: any partition", key=None)
    yield delivered(section, "an empty key", key=b"")
    yield delivered(section, "a binary key", key=b"\xff\x00")
    yield delivered(section, "a record as large as it may be", size_bytes=RECORD_BYTES_MAX)
    yield refused(
        section,
        "one byte more",
        reason="too-large",
        detail="counts 983053 bytes of key, value and headers, this cluster takes 983052",
        size_bytes=RECORD_BYTES_MAX + 1,
        keeps_value=False,
    )
    yield refused(
        section,
        "one byte more, most of it in headers",
        ("mine", b"x" * 40_000),
        reason="too-large",
        detail="send a smaller one",
        size_bytes=RECORD_BYTES_MAX + 1,
        keeps_value=False,
        keeps_headers=False,
    )


HEADER_CASES: tuple[Case, ...] = (
    *topic_cases(),
    *due_cases(),
    *delay_cases(),
    *level_cases(),
    *several_due_cases(),
    *key_cases(),
    *partition_cases(),
    *op_cases(),
    *id_cases(),
    *redrive_cases(),
    *other_header_cases(),
    *user_cases(),
)
