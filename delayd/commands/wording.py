"""Counts and times as people read them."""

from datetime import datetime


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 dead letter`, `2 dead letters`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def local_time(ms: int) -> str:
    """Return Unix ms as date and time in this machine's zone, with the zone's name; where the
    calendar ends, say so."""
    try:
        moment = datetime.fromtimestamp(ms // 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return "beyond the calendar"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{ms % 1000:03} {moment:%Z}"


def moment(ms: int | None) -> str:
    """Return a time in Unix ms, and as people here read it; a question mark if it is not known."""
    return "?" if ms is None else f"{ms} ({local_time(ms)})"
