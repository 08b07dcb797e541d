"""How the cases of headers are put together. Data only."""

from collections.abc import Callable, Iterable
from typing import Any

from request_cases.case import (
    Case,
    Dead,
    Delivered,
    Due,
    Fate,
    Header,
    Pending,
    Refused,
    Step,
    Told,
)

TOPIC: Header = ("delayd-topic", b"orders")
NOW: Header = ("delayd-due", b"0")
SOON: Header = ("delayd-delay", b"1ms")
CATCHES_UP: Header = ("delayd-catchup", b"all")
"""No occurrence is left out, however busy the machine is."""

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
    delivered_key: bytes | None = None,
    to_partition: int | None = None,
    user: tuple[tuple[str, bytes | None], ...] | None = None,
    topic: bytes = b"orders",
    planned: bool = False,
    **step: Any,
) -> Case:
    fate = Delivered(due, delivered_key, to_partition, user, topic, planned)
    return case_of(section, says, shown, implied, fate, **step)


def refused(
    section: str,
    says: str,
    *shown: Header,
    reason: str,
    detail: str,
    implied: tuple[Header, ...] = (TOPIC, NOW),
    keeps_value: bool = True,
    keeps_headers: bool = True,
    **step: Any,
) -> Case:
    fate = Refused(reason, detail, keeps_value, keeps_headers)
    return case_of(section, says, shown, implied, fate, **step)


def refusing(
    name: str, usual: str, why: str = "", implied: tuple[Header, ...] = (TOPIC, NOW)
) -> Callable[..., Case]:
    """Of a header: what makes a case of a content that is refused, for that reason unless another
    is given."""

    def bad(says: str, text: str, detail: str = why, reason: str = usual) -> Case:
        shown = (name, text.encode())
        return refused(name, says, shown, reason=reason, detail=detail, implied=implied)

    return bad


def waits(section: str, says: str, id: bytes, *shown: Header) -> Case:
    """Pending: with an id, so that it can be seen in the wheel."""
    return case_of(section, says, shown, (("delayd-id", id), TOPIC), Pending(), key=id)


def dies(
    section: str, says: str, *shown: Header, detail: str, implied: tuple[Header, ...], **step: Any
) -> Case:
    return case_of(section, says, shown, implied, Dead(detail), **step)


def case_of(
    section: str,
    says: str,
    shown: tuple[Header, ...],
    implied: tuple[Header, ...],
    fate: Fate,
    **step: Any,
) -> Case:
    """A case of one step; `step` is what else that has."""
    return Case(section, says, (Step((*shown, *implied), fate, implied=len(implied), **step),))


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
