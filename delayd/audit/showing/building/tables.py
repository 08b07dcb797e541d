"""Tables of the page: heads with scopes, numbers at the right, a limit and what it leaves out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from delayd.audit.report import Lateness
from delayd.audit.showing.building.elements import Element, Node, element
from delayd.audit.showing.words import count_text, duration_text

Item = TypeVar("Item")

ROWS_MAX: Final = 40
"""Rows of a table that sets no other limit."""


@dataclass(frozen=True, slots=True)
class Column:
    """`kind` is the class of its cells: "n" for numbers, "nowrap", "wide-text" or nothing."""

    name: str
    kind: str = ""


def columns(*names: str, kind: str = "") -> list[Column]:
    """Return several columns of a kind."""
    return [Column(name, kind) for name in names]


def table(
    caption: str,
    heads: Sequence[Column],
    items: Sequence[Item],
    cells: Callable[[Item], Sequence[Node]],
    *,
    most: int = ROWS_MAX,
    more: str = "more",
    row_class: Callable[[Item], str | None] = lambda _: None,
) -> Element:
    """Return one row for each item, its first cell the row's head. Ends after `most` rows and says
    how many more (`more`: of what) there are. Scrolls by itself if it is too wide."""
    classes = [head.kind or None for head in heads]

    def row(item: Item) -> Element:
        first, *rest = cells(item)
        return element(
            "tr",
            element("th", first, scope="row", class_=classes[0]),
            (
                element("td", cell, class_=kind)
                for cell, kind in zip(rest, classes[1:], strict=True)
            ),
            class_=row_class(item),
        )

    left = len(items) - most
    return element(
        "div",
        element(
            "div",
            element(
                "table",
                element("caption", element("span", caption)),
                element("thead", element("tr", map(_head, heads))),
                element("tbody", map(row, items[:most])),
            ),
            class_="scroll",
            tabindex=0,
            role="region",
            aria_label=caption,
        ),
        element("p", f"and {count_text(left)} {more}", class_="more") if left > 0 else None,
    )


def _head(column: Column) -> Element:
    return element("th", column.name, scope="col", class_=column.kind or None)


LATENESS_COLUMNS: Final = (
    Column("messages", "n"),
    *columns("p50", "p99", "p99.9", "max", kind="n"),
)


def lateness_cells(lateness: Lateness | None) -> list[Node]:
    """Return one row's share of LATENESS_COLUMNS."""
    if lateness is None:
        return ["0", "", "", "", ""]
    times = (lateness.p50, lateness.p99, lateness.p999, lateness.max)
    return [count_text(lateness.count), *map(duration_text, times)]
