"""Events that cancel messages, and the cancels that a bridge has written of them. Pure.

Each event that counts causes one cancel, of the id that it names, and nothing else does. What the
cancels come to, judge.py says.
Source: docs/guides/cancel-on-event.md.
"""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Final

from chaos.records import Logged

EVENTS: Final = "events"
RULE: Final = {"id": "/order/id", "where": {"/status": "paid"}}
"""Of the table that nodes have for the topic of events."""
CAUSE: Final = "cancelled-by"
"""The header of a bridge's cancel."""


def unanswered(events: Iterable[Logged], requests: Iterable[Logged]) -> list[str]:
    """Return a sentence for each event that counts and has no cancel yet."""
    done = {cause for _, cause in _cancels(requests)}
    wanted = _wanted(events)
    return [f"event {place}: no cancel of {wanted[place]}" for place in wanted if place not in done]


def bridge_faults(events: Iterable[Logged], requests: Iterable[Logged]) -> list[str]:
    """Return a sentence for each cancel that should not be."""
    wanted, faults = _wanted(events), []
    times = Counter(cause for _, cause in _cancels(requests))
    for record, cause in _cancels(requests):
        fields = record.fields
        said = (fields.get("op"), fields.get("id"))
        if said != ("cancel", wanted.get(cause)):
            faults.append(f"{record.place}: {said} for event {cause}: {wanted.get(cause)}")
        if times[cause] > 1:
            faults.append(f"{record.place}: one of {times[cause]} cancels for event {cause}")
    return faults


def _wanted(events: Iterable[Logged]) -> dict[str, str]:
    """By an event that counts, as `topic/partition/offset`: the id that it cancels."""
    found = {f"{event.topic}/{event.place}": json.loads(event.value or b"") for event in events}
    return {place: e["order"]["id"] for place, e in found.items() if e["status"] == "paid"}


def _cancels(requests: Iterable[Logged]) -> list[tuple[Logged, str]]:
    causes = ((record, record.header(CAUSE)) for record in requests)
    return [(record, cause) for record, cause in causes if cause is not None]
