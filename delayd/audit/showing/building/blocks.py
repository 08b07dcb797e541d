"""The parts of sections besides figures: headings, texts, and tables with a limit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from delayd.audit.report import Lateness
from delayd.audit.showing.building.elements import Html, Node, element
from delayd.audit.showing.words import (
    count_text,
    duration_text,
    moment_of,
    time_text,
)
from delayd.runtime.visible import TEXT_CHARS_MAX, visible

Item = TypeVar("Item")

SHORT_CHARS_MAX: Final = 32
"""What is not broken into lines, in tables that can scroll."""

ROWS_MAX: Final = 40
"""Rows of a table that sets no other limit."""


def section(slug: str, title: str, *content: Node, lead: str = "") -> Html:
    """Return a heading and what is under it."""
    return element(
        "section",
        element("h2", title, id=slug),
        element("p", lead, class_="lead") if lead else None,
        content,
        aria_labelledby=slug,
    )


def part(title: str, *content: Node) -> Html:
    """Return a lower heading and what is under it."""
    return element("div", element("h3", title), content, class_="part")


def nothing(words: str) -> Html:
    """Return what stands where there is nothing to show."""
    return element("p", words, class_="muted")


def wrong_count(count: int) -> Node:
    """Return a count that should be 0: red if it is not."""
    return element("span", count_text(count), class_="bad") if count else "0"


def moment(ms: int) -> Node:
    """Return a time, for people and machines."""
    at = moment_of(ms)
    shown = time_text(ms)
    return shown if at is None else element("time", shown, datetime=at.isoformat())


def theirs(text: str | None, *, code: bool = False, chars_max: int = TEXT_CHARS_MAX) -> Node:
    """Return text that somebody else has written: made visible, and kept from turning what is
    around it."""
    if not text:
        return None
    shown = visible(text, chars_max)
    classes = ["code"] * code + ["short"] * (len(shown) <= SHORT_CHARS_MAX)
    return element("bdi", shown, class_=" ".join(classes) or None)


@dataclass(frozen=True, slots=True)
class Column(Generic[Item]):
    """A column of a table: its head, and its cell in the row of an item. `kind` is the class of its
    cells: "n" for numbers, "nowrap", "wide-text", "bar" or nothing."""

    name: str
    cell: Callable[[Item], Node]
    kind: str = ""


def table(
    caption: str,
    items: Sequence[Item],
    *columns: Column[Item],
    title: str | None = None,
    most: int = ROWS_MAX,
    more: str = "more",
    row_class: Callable[[Item], str | None] = lambda _: None,
) -> Html:
    """Return one row for each item, its first cell the row's head, under a heading if it has a
    `title`. Ends after `most` rows and says how many more (`more`: of what) there are. Scrolls by
    itself if it is too wide."""
    heads = (element("th", each.name, scope="col", class_=each.kind or None) for each in columns)

    def row(item: Item) -> Html:
        first, *rest = columns
        return element(
            "tr",
            element("th", first.cell(item), scope="row", class_=first.kind or None),
            (element("td", each.cell(item), class_=each.kind or None) for each in rest),
            class_=row_class(item),
        )

    rows = element(
        "table",
        element("caption", element("span", caption)),
        element("thead", element("tr", heads)),
        element("tbody", map(row, items[:most])),
    )
    left = len(items) - most
    whole = element(
        "div",
        element("div", rows, class_="scroll", tabindex=0, role="region", aria_label=caption),
        element("p", f"and {count_text(left)} {more}", class_="more") if left > 0 else None,
    )
    return whole if title is None else part(title, whole)


def lateness_columns(of: Callable[[Item], Lateness | None]) -> list[Column[Item]]:
    """Return the columns for the lateness of an item."""

    def column(name: str, text: Callable[[Lateness], str], absent: str = "") -> Column[Item]:
        def cell(item: Item) -> str:
            late = of(item)
            return absent if late is None else text(late)

        return Column(name, cell, "n")

    return [
        column("messages", lambda late: count_text(late.count), "0"),
        column("p50", lambda late: duration_text(late.p50)),
        column("p99", lambda late: duration_text(late.p99)),
        column("p99.9", lambda late: duration_text(late.p999)),
        column("max", lambda late: duration_text(late.max)),
    ]
