"""How the cases of headers are put together. Data only."""

from collections.abc import Iterable

from request_cases.case import (
    KEY,
    VALUE,
    Case,
    Dead,
    Delivered,
    Due,
    Header,
    Pending,
    Refused,
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
