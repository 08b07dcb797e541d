"""The outcomes of a request, as values: its place in the buffer, and the verdict.

Not here: errors (`errors.py`), and who waits for a receipt (`verdicts.py`).
"""

import json
from dataclasses import dataclass
from typing import Final, Self

from delayd.bus import Ack


@dataclass(frozen=True, slots=True)
class Sent:
    """The place of a request. `partition` and `offset` are its source, for dedupe and audit."""

    partition: int
    offset: int
    append_ms: int
    """The broker's append time, Unix ms."""

    @property
    def source(self) -> str:
        """Return the `source` that its receipt names."""
        return f"{self.partition}/{self.offset}"

    @classmethod
    def of(cls, ack: Ack, due_ms: int) -> Self:
        """Return the outcome of an acknowledged request."""
        return cls(*ack)


@dataclass(frozen=True, slots=True)
class Scheduled(Sent):
    """The place of a request that has a due time; the delivered record names its `source` too."""

    due_ms: int
    """The due time as asked, Unix ms; in the past means at once."""

    @classmethod
    def of(cls, ack: Ack, due_ms: int) -> Self:
        return cls(*ack, due_ms)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The definite answer to a request, from its receipt."""

    verdict: str
    """`cancelled`, `replaced`, `rescheduled`, `scheduled` (of a replace: it found nothing),
    `too-late`, `not-found`, `duplicate`, `conflict`, `over-quota`, `rejected`."""
    killed: tuple[str, ...]
    """Sources of the messages that will never be delivered because of this request."""
    due_ms: int | None
    """The due time of the message that the answer is about, Unix ms."""
    at_ms: int
    """The master's now of the step that decided, Unix ms."""
    detail: str
    source: str
    """`partition/offset` of the request that it answers."""
    old_due_ms: int | None = None
    """Of `rescheduled`: when the message was due before, Unix ms."""
    forecast_messages: int | None = None
    """Of `scheduled` for later, since rules version 7: how many messages of the same target are due
    in the same span. Advice."""
    forecast_span_ms: int | None = None
    """That span: a second, or an hour while the due time is far."""
    forecast_late_ms: int | None = None
    """How late the last message of that second is expected to be; None: nothing was measured."""


LATER: Final = frozenset({"delivered", "dead", "expired", "ended"})
"""Verdicts of later receipts with the same source: what became of the message."""


_FORECAST: Final = ("forecast_messages", "forecast_span_ms", "forecast_late_ms")
"""Advice: what cannot be read of it is left out."""


def verdict_of(value: bytes | None) -> Verdict | None:
    """Return the verdict in a receipt's value; None if there is none."""
    try:
        fields = json.loads(value or b"")
        verdict = Verdict(
            verdict=str(fields["verdict"]),
            killed=tuple(str(source) for source in fields["killed"]),
            due_ms=None if fields["due_ms"] is None else int(fields["due_ms"]),
            at_ms=int(fields["at_ms"]),
            detail=str(fields["detail"] or ""),
            source=str(fields["source"]),
            old_due_ms=None if fields.get("old_due_ms") is None else int(fields["old_due_ms"]),
            **{name: fields[name] for name in _FORECAST if _is_count(fields.get(name))},
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None  # an infinite number and a thousand brackets raise the last two
    return None if verdict.verdict in LATER else verdict


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
