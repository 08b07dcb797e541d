"""Tables of the page: heads with scopes, numbers at the right, a limit and what it leaves out."""

from collections.abc import Sequence
from dataclasses import dataclass

from delayd.audit.report import Lateness
from delayd.audit.showing.bounded import ROWS_MAX
from delayd.audit.showing.elements import Element, Node, element
from delayd.audit.showing.words import count_text, duration_text, moment_of, time_text, visible


@dataclass(frozen=True, slots=True)
class Column:
    """`kind` is the class of its cells: "n" for numbers, "nowrap", "wide-text" or nothing."""

    name: str
    kind: str = ""


def columns(*names: str, kind: str = "") -> list[Column]:
    """Several of a kind."""
    return [Column(name, kind) for name in names]


def table(
    caption: str,
    heads: Sequence[Column],
    rows: Sequence[Sequence[Node]],
    *,
    most: int = ROWS_MAX,
    total: int | None = None,
    first_is_all: bool = False,
    more: str = "",
) -> Element:
    """The first cell of a row is its head. Beyond `most` rows it ends, and says how many more
    (`more`: of what) there are of `total`, else of `rows`. Scrolls by itself if it is too wide."""
    body = [
        element(
            "tr",
            (
                element("th" if n == 0 else "td", cell, scope="row" if n == 0 else None, **kind)
                for n, (cell, kind) in enumerate(zip(row, map(_kind, heads), strict=True))
            ),
            class_="all" if first_is_all and index == 0 else None,
        )
        for index, row in enumerate(rows[:most])
    ]
    left = (len(rows) if total is None else total) - most
    return element(
        "div",
        element(
            "div",
            element(
                "table",
                element("caption", caption),
                element(
                    "thead",
                    element("tr", (element("th", h.name, scope="col", **_kind(h)) for h in heads)),
                ),
                element("tbody", body),
            ),
            class_="scroll",
            tabindex=0,
            role="region",
            aria_label=caption,
        ),
        element("p", f"and {count_text(left)} {more or 'more'}", class_="more")
        if left > 0
        else None,
    )


def _kind(column: Column) -> dict[str, str | None]:
    return {"class_": column.kind or None}


LATENESS_COLUMNS = [
    Column("messages", "n"),
    *columns("p50", "p99", "p99.9", "max", kind="n"),
]


def lateness_cells(lateness: Lateness | None) -> list[Node]:
    """One row's share of LATENESS_COLUMNS."""
    if lateness is None:
        return ["0", "", "", "", ""]
    return [
        count_text(lateness.count),
        *map(duration_text, (lateness.p50, lateness.p99, lateness.p999, lateness.max)),
    ]


def moment(ms: int) -> Node:
    """A time, for people and machines."""
    at = moment_of(ms)
    shown = time_text(ms)
    return shown if at is None else element("time", shown, datetime=at.isoformat())


def theirs(text: str | None, code: bool = False) -> Node:
    """What somebody else has written: made visible, and kept from turning what is around it."""
    if not text:
        return None
    return element("bdi", visible(text), class_="code" if code else None)
