"""What a debounce does to the messages under its id, as the reference model has them. Pure.

Independent of the product.
Source: docs/design/debounce.md.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from chaos.asked import Asked, Op


class Live(Protocol):
    """A live message (`reference_model.Message`)."""

    @property
    def newest(self) -> Asked: ...
    @property
    def moving(self) -> Any: ...
    @property
    def planned_ms(self) -> int: ...
    @property
    def run_ms(self) -> int: ...


L = TypeVar("L", bound=Live)


class Debounced(NamedTuple, Generic[L]):
    """A debounce with its due time."""

    asked: Asked
    gone: list[L]
    """What it takes the place of."""
    since_ms: int
    """When the first one of its run was appended."""
    is_answered: bool
    """It asks for that, or takes the place of anything but others of its run."""


def debounced(asked: Asked, live: Sequence[L], as_of_ms: int) -> Debounced[L]:
    """Return what becomes of it, if this is live. What is due goes out."""
    append_ms = asked.record.append_ms
    assert asked.content is not None, "a debounce brings a message"
    takes_held = any(m.moving is not None and m.planned_ms > as_of_ms for m in live)
    gone = [m for m in live if (takes_held if m.moving is not None else gives_way(m, as_of_ms))]
    runs = [m.run_ms for m in live if m.run_ms and m.newest.rank[0] > as_of_ms]
    since_ms = min([append_ms, *runs])
    due_ms = max(append_ms, min(asked.content.due_ms, since_ms + asked.max_wait_ms))
    asked = replace(asked, content=asked.content._replace(due_ms=due_ms))
    is_answered = asked.is_told or not all(each.run_ms for each in gone)
    return Debounced(asked, gone, since_ms, is_answered)


def gives_way(message: Live, as_of_ms: int) -> bool:
    """Return whether a debounce takes its place: not if it is due, or waits for its turn."""
    newest = message.newest
    is_single = not (newest.moved_by or newest.series or newest.local)
    is_deferred = newest.op is Op.CONTINUE and newest.record.fields.get("attempt") == "0"
    return (newest.rank[0] > as_of_ms or newest.goes_on) and not (is_deferred and is_single)
