"""The cases of other headers, and of what is the user's own. Data only."""

from collections.abc import Iterable
from functools import partial

from request_cases.case import (
    RECORD_BYTES_MAX,
    Case,
)
from request_cases.making import (
    delivered,
    refused,
)


def other_header_cases() -> Iterable[Case]:
    section = "Other names that begin with delayd-"
    internals = "of delayd's own records, without a proof"
    drop = "drop its delayd-* headers first"
    rows = (
        *(
            ("nearly right", unknown, "unknown-header", f"did you mean delayd-{near}?")
            for unknown, near in (
                *(("dely", "delay"), ("Topic", "topic")),
                *(("keys", "key"), ("until-", "until")),
            )
        ),
        *(
            ("unknown", name, "unknown-header", "names that start with delayd- are reserved")
            for name in ("", "zzzzzzzzz", "\u00fc")
        ),
        *(
            ("one that delayd writes", written, "unknown-header", drop)
            for written in (
                *("fired", "source", "origin", "attempt", "occurrence"),
                *("reason", "detail", "truncated"),
            )
        ),
        *(
            (internals, internal, "bad-proof", "send a plain request without it")
            for internal in ("continues", "continues-due", "next-due", "digest", "proof")
        ),
    )
    for says, name, reason, detail in rows:
        yield refused(section, says, (f"delayd-{name}", b"1"), reason=reason, detail=detail)
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
    order = ("delayd-hold", b"pause/1790000000000/1790000060000/0/orders")
    yield refused(
        section,
        "an order to pause a target, without a proof",
        order,
        reason="unknown-header",
        detail="names that start with delayd- are reserved",
        implied=(),
    )
    yield refused(
        section,
        "the same, with a wrong proof",
        *(order, ("delayd-proof", b"0" * 64)),
        reason="bad-proof",
        detail="lacks their proof",
        implied=(),
    )
    yield from _quota_cases(section)


def _quota_cases(section: str) -> Iterable[Case]:
    for what, said in (
        ("an order to limit a target", b"limit/1790000000000/5/0/orders"),
        ("that a target is full", b"full/1790000000000/5/5/0/0/orders"),
    ):
        quota = ("delayd-quota", said)
        for more, reason, detail in (
            ((), "unknown-header", "names that start with delayd- are reserved"),
            ((("delayd-proof", b"0" * 64),), "bad-proof", "lacks their proof"),
        ):
            says = f"{what}, {'with a wrong' if more else 'without a'} proof"
            yield refused(section, says, quota, *more, reason=reason, detail=detail, implied=())


def user_cases() -> Iterable[Case]:
    section = "Your own key, value and headers"
    mine = partial(delivered, section)
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
