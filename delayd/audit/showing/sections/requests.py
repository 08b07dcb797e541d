"""The section on requests: their fates, and the verdicts of cancels."""

from delayd.audit.report import Report
from delayd.audit.showing.building.blocks import nothing, part, section, theirs, wrong_count
from delayd.audit.showing.building.elements import Element, Node, element
from delayd.audit.showing.building.tables import Column, table
from delayd.audit.showing.words import FATES, count_text


def requests(report: Report) -> Element:
    """Return the section with fates, and verdicts of cancels and replaces."""
    return section(
        "requests",
        "What became of the requests",
        _fates(report),
        part(
            "Verdicts of cancels and replaces",
            _marks(report) if report.marks else nothing("Nobody cancelled or replaced anything."),
        ),
    )


def _fates(report: Report) -> Element:
    most = max(max(getattr(report.fates, field) for field, _, _ in FATES), 1)

    def cells(fate: tuple[str, str, str]) -> list[Node]:
        field, name, meaning = fate
        count: int = getattr(report.fates, field)
        return [
            name,
            wrong_count(count) if field == "lost" else count_text(count),
            element("span", class_="share", style=f"width:{100 * count / most:.1f}%")
            if count
            else None,
            meaning,
        ]

    def row_class(fate: tuple[str, str, str]) -> str | None:
        return None if getattr(report.fates, fate[0]) else "none"

    heads = [
        Column("fate", "nowrap"),
        Column("requests", "n"),
        Column("", "bar"),
        Column("means", "wide-text"),
    ]
    return table("Each request has exactly one fate", heads, FATES, cells, row_class=row_class)


def _marks(report: Report) -> Element:
    def cells(mark: tuple[str, int]) -> list[Node]:
        return [theirs(mark[0]), count_text(mark[1])]

    return element(
        "div",
        table(
            "As they follow from the log",
            [Column("verdict"), Column("cancels and replaces", "n")],
            sorted(report.marks, key=lambda mark: (-mark[1], mark[0])),
            cells,
        ),
        class_="half",
    )
