"""A little curve for a cell of a table."""

from collections.abc import Sequence
from typing import Final

from delayd.audit.report import TopicHour
from delayd.audit.showing.building.elements import Element, element, number
from delayd.audit.showing.building.scales import Linear
from delayd.audit.showing.words import duration_text

WIDTH: Final = 120
HEIGHT: Final = 22


def spark(hours: Sequence[TopicHour]) -> Element | None:
    """Return the p99 of each hour, from 0 to the highest; None for a single hour."""
    if len(hours) < 2:
        return None
    top = max(hour.lateness.p99 for hour in hours)
    across = Linear(hours[0].hour_ms, hours[-1].hour_ms, 2, WIDTH - 2)
    up = Linear(0, top, HEIGHT - 2, 2)
    points = " ".join(
        f"{number(across(hour.hour_ms))},{number(up(hour.lateness.p99))}" for hour in hours
    )
    return element(
        "svg",
        element("polyline", points=points, class_="spark"),
        width=WIDTH,
        height=HEIGHT,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"p99 over {len(hours)} hours, at most {duration_text(top)}",
    )
