"""Counts and times as people read them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from replication.quotas import RATE_WINDOW_S


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


def limit_told(limit: Mapping[str, Any]) -> str:
    """Return what is said of a target in the list `limits` of a report."""
    counts = []
    if limit["max_pending"] is not None:
        counts.append(f"{limit['pending']:,} of {limit['max_pending']:,} messages pending")
    if limit["rate"] is not None:
        most = limit["rate"] * RATE_WINDOW_S
        counts.append(f"{limit['taken']:,} of {most:,} requests in {RATE_WINDOW_S} s")
    used = f"{limit['topic']}: {', '.join(counts)}"
    if limit["state"] == "full":
        by = "rate" if limit["refused_by"] == "rate" else "pending messages"
        since = moment(limit["full_since_ms"])
        return f"{used}; requests are refused as over-quota since {since}, by its {by}"
    return used


def told_of(paused: Mapping[str, Any]) -> str:
    """Return what is said of a target in the list `paused` of a report."""
    topic, rate = paused["topic"], paused["rate"]
    if paused["state"] == "paused":
        return f"{topic} is paused until {moment(paused['until_ms'])}, then {rate} a second"
    return f"{topic} is resumed: what has waited goes out, {rate} a second at most"
