"""The moment at which the clock of a zone shows a time. Pure.

Independent of the product: it imports neither `delayd` nor `replication`.
Source: docs/reference/requests.md, "Local times".
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

MS = timedelta(milliseconds=1)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


def moment_ms(text: str, zone: str) -> int | None:
    """Return the Unix ms at which the clock shows it first; where it skips it, when it goes on
    behind it. None if there is no such zone."""
    try:
        tz = ZoneInfo(zone)
    except (ValueError, KeyError, OSError):
        return None
    second, _, fraction = text.partition(".")
    fraction_ms = int(-(-int(fraction or 0) * 1_000 // 10 ** len(fraction)))  # rounded up
    wall = datetime.fromisoformat(second)
    near = wall.replace(tzinfo=UTC)
    offsets = [(near + by).astimezone(tz).utcoffset() or timedelta(0) for by in (-DAY, DAY)]
    for offset in sorted(offsets, reverse=True):
        moment = near - offset
        if moment.astimezone(tz).replace(tzinfo=None) == wall:
            break
    else:
        fraction_ms = 0
        moment = (near - max(offsets)).replace(second=0)
        while moment.astimezone(tz).replace(tzinfo=None) < wall:
            moment += MINUTE
    return max(0, (moment - datetime.fromtimestamp(0, UTC)) // MS + fraction_ms)
