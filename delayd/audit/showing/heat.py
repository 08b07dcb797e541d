"""What is pending at the cut, by due time and node: one cell each, those that differ are marked."""

import math
from collections.abc import Sequence
from typing import Final

from delayd.audit.report import HeatCell
from delayd.audit.showing.bounded import HEAT_COLUMNS_MAX, heat_within
from delayd.audit.showing.drawing import Room, figure, line, rect, text, time_axis
from delayd.audit.showing.elements import Element, Node, element
from delayd.audit.showing.scales import Linear, time_ticks
from delayd.audit.showing.words import count_text, duration_text, second_text, time_text, visible

ROW: Final = 30
TOP: Final = 8
SHADES: Final = 6
LOG: Final = "the log"
"""The row of what should be there."""


def heat_map(cells: Sequence[HeatCell]) -> Element | None:
    """The figure; None if nothing is pending anywhere."""
    if not any(cell.pending or cell.differ for cell in cells):
        return None
    rows = sorted({cell.node for cell in heat_within(cells, HEAT_COLUMNS_MAX)[0]})
    height = TOP + ROW * len(rows) + 28
    expected = sum(cell.pending for cell in cells if cell.node == "")
    differ = sum(cell.differ for cell in cells)
    last = max(cell.at_ms for cell in cells if cell.pending or cell.differ)
    return figure(
        "slots",
        "Pending messages by due time and node (UTC)",
        f"By the log {count_text(expected)} messages are pending, the last due about "
        f"{second_text(last)}. On the nodes, {count_text(differ)} differ.",
        lambda width: (_map(cells, rows, Room(width, 120 if width > 400 else 84, 12)), height),
        _legend(differ > 0),
    )


def _map(cells: Sequence[HeatCell], rows: Sequence[str], room: Room) -> list[Node]:
    columns = HEAT_COLUMNS_MAX if room.is_wide else HEAT_COLUMNS_MAX // 3
    shown, width = heat_within(cells, columns)
    low, high = min(cell.at_ms for cell in shown), max(cell.at_ms for cell in shown) + width
    across = Linear(low, high, room.left, room.end)
    base = TOP + ROW * len(rows)
    most = max((cell.pending for cell in shown), default=0)
    ticks = time_ticks(low, high, 9 if room.is_wide else 3)
    parts = time_axis(room, across, ticks, TOP, base)
    for n, node in enumerate(rows):
        name = visible(node, 16 if room.is_wide else 11) if node else LOG
        parts.append(text(name, room.left - 10, TOP + n * ROW + 19, "row end"))
        parts.append(rect(room.left, TOP + n * ROW + 2, room.end - room.left, ROW - 4, "empty"))
    marks: list[Node] = []
    for cell in shown:
        x, y = across(cell.at_ms), TOP + rows.index(cell.node) * ROW + 2
        wide = max(across(cell.at_ms + width) - x, 2)
        tip = (
            f"{visible(cell.node) or LOG}, {time_text(cell.at_ms)}, {duration_text(width)}: "
            f"{count_text(cell.pending)} pending"
        )
        if cell.differ:
            tip += f", {count_text(cell.differ)} differ"
        if cell.pending:
            parts.append(
                rect(x, y, wide, ROW - 4, f"heat-{shade(cell.pending, most)}", _wide(tip, room))
            )
        if cell.differ:
            marks.append(rect(x, y, wide, ROW - 4, "differs", _wide(tip, room)))
            marks.append(line(x, y, x + wide, y + ROW - 4, "differs"))
    return [*parts, *marks]


def _wide(tip: str, room: Room) -> str | None:
    """On a narrow screen there is no mouse."""
    return tip if room.is_wide else None


def shade(pending: int, most: int) -> int:
    """1 to SHADES: the square root of the share, so that few are told from none."""
    return max(1, math.ceil(math.sqrt(pending / most) * SHADES)) if most else 1


def _legend(differ: bool) -> Node:
    shades = [element("i", class_=f"key heat-{n}") for n in range(1, SHADES + 1)]
    keys = [element("span", "few", shades, "many", class_="shades")]
    if differ:
        keys.append(element("span", element("i", class_="key differs"), "differs from the log"))
    return element("span", keys, class_="legend")
