"""The map of pending messages by due time and node, with the cells that differ."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from delayd.audit.report import HeatCell
from delayd.audit.showing.building.drawing import WIDE, Drawing, figure, key
from delayd.audit.showing.building.elements import Html, Node, element
from delayd.audit.showing.building.scales import intervals, linear, time_ticks
from delayd.audit.showing.words import (
    NAME_CHARS_MAX,
    count_text,
    duration_text,
    span_text,
    time_text,
)
from delayd.runtime.visible import visible

ROW: Final = 30
TOP: Final = 8
SHADES: Final = 6
COLUMNS_MAX: Final = 120
NODES_MAX: Final = 12
LOG: Final = "the log"
"""The row of what should be there."""


def heat_map(cells: Sequence[HeatCell], absent: Sequence[str]) -> Html | None:
    """Return the figure, with a row for each of `absent`, nodes of which nothing is known; None if
    nothing is pending anywhere."""
    if not any(cell.pending or cell.differ for cell in cells):
        return None
    shown, width = heat_within(cells, COLUMNS_MAX)
    known = {cell.node for cell in shown}
    rows = sorted(known | set(sorted(set(absent) - known)[: NODES_MAX // 2]))
    expected = sum(cell.pending for cell in cells if cell.node == "")
    differ = sum(cell.differ for cell in cells)
    low, high = min(cell.at_ms for cell in cells), max(cell.at_ms for cell in cells)
    return figure(
        "slots",
        f"Pending messages by due time and node, {span_text(low, high)}",
        f"By the log {count_text(expected)} messages are pending. On the nodes, "
        f"{count_text(differ)} differ.",
        _map(shown, width, rows),
        [*_legend(differ > 0)],
    )


def _map(cells: Sequence[HeatCell], width_ms: int, rows: Sequence[str]) -> Drawing:
    base = TOP + ROW * len(rows)
    drawing = Drawing(base + 28)
    low, high = min(cell.at_ms for cell in cells), max(cell.at_ms for cell in cells) + width_ms
    across = linear(low, high, 0, WIDE)
    most = max(cell.pending for cell in cells)
    drawing.time_axis(across, time_ticks(low, high, 9), TOP, base)
    known = {cell.node for cell in cells}
    for n, node in enumerate(rows):
        y = TOP + n * ROW
        drawing.beside(visible(node, NAME_CHARS_MAX) or LOG, y + ROW / 2, "row")
        drawing.rect(0, y + 2, WIDE, ROW - 4, "empty")
        if node not in known:
            drawing.label("no export", 0, WIDE, y + 7, "missing")
    for cell in sorted(cells, key=lambda cell: cell.differ > 0):
        x, y = across(cell.at_ms), TOP + rows.index(cell.node) * ROW + 2
        wide = across(cell.at_ms + width_ms) - x
        if cell.differ:
            drawing.rect(x, y, wide, ROW - 4, "differs", _tip(cell, width_ms))
            drawing.line(x, y, x + wide, y + ROW - 4, "differs")
        elif cell.pending:
            class_ = f"heat-{shade(cell.pending, most)}"
            drawing.rect(x, y, wide, ROW - 4, class_, _tip(cell, width_ms))
    return drawing


def _tip(cell: HeatCell, width_ms: int) -> str:
    node = visible(cell.node, NAME_CHARS_MAX) or LOG
    differ = f", {count_text(cell.differ)} differ" if cell.differ else ""
    when = f"{time_text(cell.at_ms)}, {duration_text(width_ms)}"
    return f"{node}, {when}: {count_text(cell.pending)} pending{differ}"


def shade(pending: int, most: int) -> int:
    """Return 1 to SHADES by the square root of the share, so that few differ from none."""
    return max(1, math.ceil(math.sqrt(pending / most) * SHADES)) if most else 1


def _legend(differ: bool) -> Iterable[Node]:
    shades = [element("i", class_=f"key heat-{n}") for n in range(1, SHADES + 1)]
    yield element("span", "few", shades, "many", class_="shades")
    if differ:
        yield key("differs", "differs from the log")


def heat_within(cells: Sequence[HeatCell], columns: int) -> tuple[list[HeatCell], int]:
    """Return the pending messages in at most `columns` columns and NODES_MAX + 1 rows, the
    log's among them, and how long a column is, ms. Nodes that differ most are kept."""
    if not cells:
        return [], 1000
    times = sorted({cell.at_ms for cell in cells})
    start = times[0]
    _, width = intervals(times, COLUMNS_MAX, columns)
    differ: Counter[str] = Counter()
    for cell in cells:
        differ[cell.node] += cell.differ
    nodes = sorted(differ.keys() - {""}, key=lambda node: (-differ[node], node))
    kept = {"", *nodes[:NODES_MAX]}
    sums: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    for cell in cells:
        if cell.node in kept:
            entry = sums[cell.node, (cell.at_ms - start) // width]
            entry[0] += cell.pending
            entry[1] += cell.differ
    return [
        HeatCell(start + column * width, node, pending, differing)
        for (node, column), (pending, differing) in sorted(sums.items())
    ], width
