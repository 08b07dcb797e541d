"""Figures of lateness: its histogram, and a little curve for a cell of a table."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from delayd.audit.report import Bin, Lateness, TopicHour
from delayd.audit.showing.building.drawing import LINE, WIDE, Drawing, figure
from delayd.audit.showing.building.elements import Html, element, number
from delayd.audit.showing.building.scales import count_ticks, linear
from delayd.audit.showing.words import count_text, duration_text, short_count

TOP, BASE = 66, 236
"""Above the bars there is room for three percentiles, and for the count of the highest one."""
BINS_MAX: Final = 48
BINS_WIDTH_MIN: Final = 8
"""Fewer bins leave the rest of the width empty."""
BAR_GAP: Final = 1
BAR_HEIGHT_MIN: Final = 2.0
"""So that a single message among millions is seen."""
SPARK_WIDTH, SPARK_HEIGHT = 120, 22


def histogram(bins: Sequence[Bin], lateness: Lateness | None) -> Html | None:
    """Return the figure; None without bins. Bars are equally wide, whatever time they stand for."""
    shown = _bins_shown(bins)
    if not shown:
        return None
    most = max(shown, key=lambda each: each.count)
    late = "" if lateness is None else f" Half are at most {duration_text(lateness.p50)} late."
    return figure(
        "lateness-histogram",
        "Deliveries by how late they were",
        f"Most, {count_text(most.count)}, are {_range(most)} late.{late}",
        _bars(shown, lateness),
    )


def _bins_shown(bins: Sequence[Bin]) -> list[Bin]:
    """Return the bins from the first to the last that is not empty; join neighbours if there are
    many."""
    ordered = sorted(bins, key=lambda each: each.from_ms)
    filled = [n for n, each in enumerate(ordered) if each.count]
    if not filled:
        return []
    ordered = ordered[filled[0] : filled[-1] + 1]
    size = -(-len(ordered) // BINS_MAX)
    parts = [ordered[n : n + size] for n in range(0, len(ordered), size)]
    return [
        Bin(part[0].from_ms, part[-1].to_ms, sum(each.count for each in part)) for part in parts
    ]


def _bars(bins: Sequence[Bin], lateness: Lateness | None) -> Drawing:
    drawing = Drawing(BASE + 26)
    ticks = count_ticks(max(each.count for each in bins), 4)
    up = linear(0, ticks[-1].value, BASE, TOP)
    wide = WIDE / max(len(bins), BINS_WIDTH_MIN)
    drawing.value_axis(up, ticks)
    for n, each in enumerate(bins):
        x = n * wide
        y = min(up(each.count), BASE - BAR_HEIGHT_MIN) if each.count else float(BASE)
        tip = f"{_range(each)} late: {count_text(each.count)}"
        drawing.rect(x + BAR_GAP, y, wide - 2 * BAR_GAP, BASE - y, "bar", tip)
        if each.count:
            drawing.label(short_count(each.count), x, x + wide, y - LINE - 1, "halo middle")
    edges = [*(each.from_ms for each in bins), bins[-1].to_ms]
    drawing.ruler([(n * wide, duration_text(edge)) for n, edge in enumerate(edges)], BASE + 8)
    drawing.line(0, BASE, WIDE, BASE, "axis")
    if lateness is not None:
        _percentiles(drawing, bins, lateness, wide)
    return drawing


def _percentiles(drawing: Drawing, bins: Sequence[Bin], lateness: Lateness, wide: float) -> None:
    starts = [each.from_ms for each in bins]
    names: dict[int, list[str]] = {}
    for name, value in (("p50", lateness.p50), ("p99", lateness.p99), ("p99.9", lateness.p999)):
        names.setdefault(value, []).append(name)
    for row, (value, same) in enumerate(names.items()):
        n = min(max(bisect_right(starts, value) - 1, 0), len(bins) - 1)
        share = linear(bins[n].from_ms, bins[n].to_ms, 0, 1)(value)
        x = (n + share) * wide
        words = f"{', '.join(same)} {duration_text(value)}"
        drawing.line(x, row * LINE, x, BASE, "percentile")
        drawing.flag(words, x, row * LINE, (0, WIDE))


def _range(each: Bin) -> str:
    return f"{duration_text(each.from_ms)} to {duration_text(each.to_ms)}"


def spark(hours: Sequence[TopicHour]) -> Html | None:
    """Return the p99 of each hour, from 0 to the highest; None for a single hour."""
    if len(hours) < 2:
        return None
    top = max(hour.lateness.p99 for hour in hours)
    across = linear(hours[0].hour_ms, hours[-1].hour_ms, 2, SPARK_WIDTH - 2)
    up = linear(0, top, SPARK_HEIGHT - 2, 2)
    points = " ".join(
        f"{number(across(hour.hour_ms))},{number(up(hour.lateness.p99))}" for hour in hours
    )
    return element(
        "svg",
        element("polyline", points=points, class_="spark"),
        width=SPARK_WIDTH,
        height=SPARK_HEIGHT,
        viewBox=f"0 0 {SPARK_WIDTH} {SPARK_HEIGHT}",
        role="img",
        aria_label=f"p99 over {len(hours)} hours, at most {duration_text(top)}",
    )
