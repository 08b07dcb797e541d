"""Local times: a `delayd-due` that is a time of the clock of a zone, `delayd-zone`. Pure.

    delayd-due    2027-03-28T09:00        delayd-local, on what is delivered and in the buffer:
    delayd-zone   Europe/Berlin           2027-03-28T09:00[Europe/Berlin]

Which moment that is depends on the tzdata package, so no replica asks: the step that comes to a
record does (`recurrence/local_times.py`).

Source: docs/design/local-times.md.
"""

from typing import Final

from delayd.request.grammar import Fields, zone_of
from delayd.request.reasons import Reason, RefusedError, quoted
from delayd.request.request import LocalState, LocalTime
from delayd.request.times import LOCAL_EXAMPLE, clock_ms_of, due_ms_of, is_local

EARLIEST_MS: Final = 14 * 60 * 60 * 1000
"""No clock is further ahead of UTC."""

STATES: Final = {
    LocalState.UNRESOLVED: "no",
    LocalState.EXPECTED: "expected",
    LocalState.FINAL: "final",
    LocalState.OVER: "over",
}
"""`delayd-resolved` of a record that the master wrote."""
_STATE_NAMED: Final = {name: state for state, name in STATES.items()}

_RELATIVE: Final = ("delayd-delay", "delayd-level")


def local_time_of(fields: Fields) -> LocalTime:
    """Return the local time of a request that has a `delayd-zone` and no `delayd-cron`, unresolved.
    RefusedError if it asks for none."""
    due = fields.get("delayd-due")
    relative = next((name for name in _RELATIVE if name in fields), None)
    if due is not None and relative is not None:
        raise RefusedError(
            Reason.SEVERAL_DUES,
            f"delayd-due and {relative} contradict each other: keep one of them",
        )
    if due is None:
        what = "without delayd-due or delayd-cron" if relative is None else f"with {relative}"
        raise RefusedError(
            Reason.UNEXPECTED_HEADER,
            f"the header delayd-zone has no meaning {what}: leave it out, or send a delayd-due"
            f" without an offset, like {LOCAL_EXAMPLE}",
        )
    zone = zone_of(fields)
    if not is_local(due):
        due_ms_of(due)
        raise RefusedError(
            Reason.UNEXPECTED_HEADER,
            f"the header delayd-zone has no meaning with delayd-due {quoted(due)}, which is the"
            " same moment everywhere: leave out one of them, or write delayd-due without an offset,"
            f" like {LOCAL_EXAMPLE}",
        )
    clock_ms_of(due)
    return LocalTime(due, zone)


def earliest_ms_of(local: LocalTime) -> int:
    """Return the earliest moment (Unix ms) that a local time may be, in whatever zone."""
    return clock_ms_of(local.text) - EARLIEST_MS


def shown(local: LocalTime) -> str:
    """Return a local time in the form of RFC 9557."""
    return f"{local.text}[{local.zone}]"


def local_in(text: str, state: str) -> LocalTime | None:
    """Return the local time of a record that the master wrote; None if it is not as written."""
    clock, opening, zone = text.removesuffix("]").partition("[")
    if not opening or not zone or not is_local(clock) or state not in _STATE_NAMED:
        return None
    return LocalTime(clock, zone, _STATE_NAMED[state])
