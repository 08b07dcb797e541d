"""The section on what is wrong: each fault with its meaning and count, and the messages."""

from collections.abc import Sequence
from typing import Final

from delayd.audit.report import Finding, Report
from delayd.audit.showing.building.blocks import moment, part, section, theirs
from delayd.audit.showing.building.elements import Element, Node, element
from delayd.audit.showing.building.tables import Column, table
from delayd.audit.showing.limits import FINDINGS_MAX
from delayd.audit.showing.words import NAME_CHARS_MAX, count_text, meaning_of, place_text, visible

FILTER_FROM: Final = 6
"""So few findings are found without a filter."""

_HEADS: Final = ("fault", "source", "id", "where", "node", "due (UTC)", "reason")


def findings(report: Report) -> Element | None:
    """Return the section; None if nothing is wrong."""
    if report.ok:
        return None

    def cells(found: tuple[str, int]) -> list[Node]:
        slug, count = found
        name = element("span", theirs(slug, code=True), class_="bad")
        return [name, count_text(count), meaning_of(slug)]

    total = sum(count for _, count in report.found)
    return section(
        "wrong",
        "What is wrong",
        table(
            "Every kind of fault that was found",
            [Column("fault", "nowrap"), Column("findings", "n"), Column("means", "wide-text")],
            report.found,
            cells,
        ),
        part("The messages concerned", _examples(report.examples[:FINDINGS_MAX], total))
        if report.examples
        else None,
    )


def _examples(shown: Sequence[Finding], total: int) -> Element:
    """Return a table that narrow pages show as cards: `role` says what it is even then."""
    heads = (element("th", head, scope="col", role="columnheader") for head in _HEADS)
    return element(
        "div",
        _filter() if len(shown) >= FILTER_FROM else None,
        element(
            "div",
            element(
                "table",
                element("caption", _caption(len(shown), total)),
                element("thead", element("tr", heads, role="row"), role="rowgroup"),
                element("tbody", map(_row, shown), role="rowgroup"),
                class_="cards",
                role="table",
            ),
            class_="findings",
            tabindex=0,
            role="region",
            aria_label="The messages concerned",
        ),
    )


def _filter() -> Element:
    """Return the form that filter.js shows; without the script it stays hidden."""
    return element(
        "div",
        element("label", "Filter", for_="filter"),
        element("input", id="filter", type="search", autocomplete="off"),
        element("output", for_="filter"),
        class_="filter",
        hidden=True,
    )


def _caption(shown: int, total: int) -> str:
    if shown < total:
        return f"{count_text(shown)} of {count_text(total)}: the first of each kind"
    return f"All {count_text(total)}" if total > 1 else "The only one"


def _row(finding: Finding) -> Element:
    place = place_text(finding.topic, finding.partition, finding.offset)
    cells: list[tuple[str, Node]] = [
        ("source", theirs(finding.source, code=True, chars_max=NAME_CHARS_MAX)),
        ("id", theirs(finding.id, code=True)),
        ("where", element("bdi", place, class_="code") if place else None),
        ("node", theirs(finding.node, chars_max=NAME_CHARS_MAX)),
        ("due", None if finding.due_ms is None else moment(finding.due_ms)),
        ("", theirs(finding.reason)),
    ]
    fault = element("span", visible(finding.fault), class_="code bad")
    return element(
        "tr",
        element("th", fault, scope="row", role="rowheader"),
        (element("td", content, role="cell", data_of=head or None) for head, content in cells),
        role="row",
    )
