"""When a message came into its queue of RabbitMQ, as far as it tells, and when it is due. Pure.

Source: docs/guides/importing.md, "RabbitMQ".
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

TIMESTAMP_MS: Final = "timestamp_in_ms"
"""The header that RabbitMQ writes itself, if it was told to."""
DEATHS: Final = "x-death"
"""The header in which RabbitMQ writes each queue that a message was dead-lettered from, the latest
one first: how often, and when it was for the first time."""


def published_ms(headers: Mapping[str, Any], timestamp: Any) -> int | None:
    """Return when it was published, or was dead-lettered since; None if nobody can tell. Of a time
    in seconds it is the end of that second: a message is never early."""
    exact = headers.get(TIMESTAMP_MS)
    said_ms = exact if isinstance(exact, int) else _end_ms(timestamp)
    deaths = headers.get(DEATHS)
    if not deaths:
        return said_ms
    latest = deaths[0] if isinstance(deaths, list) else None
    if not isinstance(latest, Mapping) or latest.get("count") != 1:
        return None  # when it was for the last time is not written
    died_ms = _end_ms(latest.get("time"))
    return None if died_ms is None else max(died_ms, said_ms or 0)


def due_ms(came_ms: int | None, expiration: Any, ttl_ms: int | None) -> int | None:
    """Return the end of its life, by its own time to live and that of its queue; None if nobody
    can tell."""
    own_ms = int(expiration) if str(expiration).isdigit() else None
    lives_ms = [each for each in (own_ms, ttl_ms) if each is not None]
    return None if came_ms is None or not lives_ms else came_ms + min(lives_ms)


def _end_ms(second: Any) -> int | None:
    if isinstance(second, datetime):
        second = int(second.timestamp())
    return (second + 1) * 1000 if isinstance(second, int) else None
