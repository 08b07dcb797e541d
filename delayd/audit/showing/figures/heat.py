"""What is pending at the cut, by due time and node: one cell each, those that differ are marked."""

import math
from collections.abc import Container, Sequence
from typing import Final

from delayd.audit.report import HeatCell
from delayd.audit.showing.bounded import HEAT_COLUMNS_MAX, HEAT_NODES_MAX, heat_within
from delayd.audit.showing.building.drawing import Room, figure, line, rect, text, time_axis
from delayd.audit.showing.building.elements import Element, Node, element
from delayd.audit.showing.building.scales import Linear, time_ticks
from delayd.audit.showing.words import (
    NAME_CHARS_MAX,
    count_text,
    duration_text,
    span_text,
    time_text,
    visible,
)

ROW: Final = 30
TOP: Final = 8
SHADES: Final = 6
LOG: Final = "the log"
"""The row of what should be there."""


def heat_map(cells: Sequence[HeatCell], absent: Sequence[str]) -> Element | None:
    """The figure, with a row for each of `absent`, nodes of which nothing is known; None if
    nothing is pending anywhere."""
    if not any(cell.pending or cell.differ for cell in cells):
        return None
    known = {cell.node for cell in heat_within(cells, HEAT_COLUMNS_MAX)[0]}
    rows = sorted(known | set(sorted(set(absent) - known)[: HEAT_NODES_MAX // 2]))
    height = TOP + ROW * len(rows) + 28
    expected = sum(cell.pending for cell in cells if cell.node == "")
    differ = sum(cell.differ for cell in cells)
    low, high = min(cell.at_ms for cell in cells), max(cell.at_ms for cell in cells)
    return figure(
        "slots",
        f"Pending messages by due time and node, {span_text(low, high)}",
        f"By the log {count_text(expected)} messages are pending. On the nodes, "
        f"{count_text(differ)} differ.",
        lambda width: (_map(cells, rows, Room(width, 120 if width > 400 else 84, 12)), height),
        _legend(differ > 0),
    )


def _map(cells: Sequence[HeatCell], rows: Sequence[str], room: Room) -> list[Node]:
    columns = HEAT_COLUMNS_MAX if room.is_wide else HEAT_COLUMNS_MAX // 3
    shown, width = heat_within(cells, columns)
    low, high = min(cell.at_ms for cell in shown), max(cell.at_ms for cell in shown) + width
    across = Linear(low, high, room.left, room.end)
    most = max(cell.pending for cell in shown)
    ticks = time_ticks(low, high, 9 if room.is_wide else 3)
    parts = time_axis(room, across, ticks, TOP, TOP + ROW * len(rows))
    parts += _rows(rows, {cell.node for cell in shown}, room)
    differing: list[Node] = []
    for cell in shown:
        x, y = across(cell.at_ms), TOP + rows.index(cell.node) * ROW + 2
        wide = max(across(cell.at_ms + width) - x, 2)
        tip = _tip(cell, width) if room.is_wide else None  # narrow screens have no mouse
        if cell.differ:
            differing.append(rect(x, y, wide, ROW - 4, "differs", tip))
            differing.append(line(x, y, x + wide, y + ROW - 4, "differs"))
        elif cell.pending:
            parts.append(rect(x, y, wide, ROW - 4, f"heat-{shade(cell.pending, most)}", tip))
    return [*parts, *differing]


def _rows(rows: Sequence[str], known: Container[str], room: Room) -> list[Node]:
    parts: list[Node] = []
    for n, node in enumerate(rows):
        name = visible(node, 16 if room.is_wide else 11) if node else LOG
        y = TOP + n * ROW
        parts.append(text(name, room.left - 10, y + 19, "row end"))
        parts.append(rect(room.left, y + 2, room.end - room.left, ROW - 4, "empty"))
        if node not in known:
            parts.append(text("no export", room.left + 10, y + 19, "gap"))
    return parts


def _tip(cell: HeatCell, width_ms: int) -> str:
    node = visible(cell.node, NAME_CHARS_MAX) or LOG
    differ = f", {count_text(cell.differ)} differ" if cell.differ else ""
    when = f"{time_text(cell.at_ms)}, {duration_text(width_ms)}"
    return f"{node}, {when}: {count_text(cell.pending)} pending{differ}"


def shade(pending: int, most: int) -> int:
    """1 to SHADES: the square root of the share, so that few are told from none."""
    return max(1, math.ceil(math.sqrt(pending / most) * SHADES)) if most else 1


def _legend(differ: bool) -> Node:
    shades = [element("i", class_=f"key heat-{n}") for n in range(1, SHADES + 1)]
    keys = [element("span", "few", shades, "many", class_="shades")]
    if differ:
        keys.append(element("span", element("i", class_="key differs"), "differs from the log"))
    return element("span", keys, class_="legend")
