"""How late deliveries were: one bar for each bin, the percentiles as lines."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from delayd.audit.report import Bin, Lateness
from delayd.audit.showing.bounded import BINS_MAX
from delayd.audit.showing.building.drawing import LETTER, Room, figure, line, rect, text, value_axis
from delayd.audit.showing.building.elements import Element, Node
from delayd.audit.showing.building.scales import Linear, count_ticks
from delayd.audit.showing.words import count_text, duration_text, short_count

TOP, BASE = 62, 232
HEIGHT: Final = 264
BAR_WIDTH_MAX: Final = 110
LABEL_ROWS: Final = (14, 28, 42)
"""Base lines of the percentiles, above the bars."""
BAR_HEIGHT_MIN: Final = 2.0
"""So that a single message among millions is seen."""


def histogram(bins: Sequence[Bin], lateness: Lateness | None) -> Element | None:
    """The figure; None without bins. Bars are equally wide, whatever time they stand for."""
    shown = _bins_shown(bins)
    if not shown:
        return None
    most = max(shown, key=lambda each: each.count)
    late = "" if lateness is None else f" Half are at most {duration_text(lateness.p50)} late."
    return figure(
        "lateness-histogram",
        "Deliveries by how late they were",
        f"Most, {count_text(most.count)}, are {_range(most)} late.{late}",
        lambda width: (_bars(shown, lateness, Room(width, 56 if width > 400 else 50, 12)), HEIGHT),
    )


def _bins_shown(bins: Sequence[Bin]) -> list[Bin]:
    """From the first to the last that is not empty; neighbours are joined if there are too many."""
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


def _bars(bins: Sequence[Bin], lateness: Lateness | None, room: Room) -> list[Node]:
    ticks = count_ticks(max(each.count for each in bins), 4)
    up = Linear(0, ticks[-1].value, BASE, TOP)
    wide = min((room.end - room.left) / len(bins), BAR_WIDTH_MAX)
    parts: list[Node] = value_axis(room, up, ticks)
    labels: list[Node] = []
    for n, each in enumerate(bins):
        x = room.left + n * wide
        y = min(up(each.count), BASE - BAR_HEIGHT_MIN) if each.count else float(BASE)
        tip = f"{_range(each)} late: {count_text(each.count)}"
        parts.append(rect(x + 1, y, wide - 2, BASE - y, "bar", tip))
        if each.count and wide >= 34:
            labels.append(text(short_count(each.count), x + wide / 2, y - 5, "halo middle"))
    edges = [*(each.from_ms for each in bins), bins[-1].to_ms]
    free_from = 0.0
    for n, edge in enumerate(edges):
        label, x = duration_text(edge), room.left + n * wide
        half = LETTER * len(label) / 2
        if x - half >= free_from and x + half <= room.width:
            labels.append(text(label, x, BASE + 18, "middle"))
            free_from = x + half + 8
    parts.append(line(room.left, BASE, room.end, BASE, "axis"))
    if lateness is not None:
        parts += _percentiles(bins, lateness, room, wide)
    return [*parts, *labels]


def _percentiles(bins: Sequence[Bin], lateness: Lateness, room: Room, wide: float) -> list[Node]:
    starts = [each.from_ms for each in bins]
    names: dict[int, list[str]] = {}
    for name, value in (("p50", lateness.p50), ("p99", lateness.p99), ("p99.9", lateness.p999)):
        names.setdefault(value, []).append(name)
    parts: list[Node] = []
    free_from = dict.fromkeys(LABEL_ROWS, 0.0)
    for value, same in names.items():
        n = min(max(bisect_right(starts, value) - 1, 0), len(bins) - 1)
        share = Linear(bins[n].from_ms, bins[n].to_ms, 0, 1)(value)
        x = room.left + (n + share) * wide
        label = ", ".join(same) + (f" {duration_text(value)}" if room.is_wide else "")
        width = LETTER * len(label)
        left, edge = (x, "start") if x + width < room.end else (x - width, "end")
        row = next(row for row, free in free_from.items() if left >= free)
        free_from[row] = left + width + 8
        parts.append(line(x, row + 4, x, BASE, "percentile"))
        parts.append(text(label, x, row, f"gap halo {edge}"))
    return parts


def _range(each: Bin) -> str:
    return f"{duration_text(each.from_ms)} to {duration_text(each.to_ms)}"
