"""What is wrong: each fault with its meaning and its count, and the messages concerned."""

from collections.abc import Sequence
from typing import Final

from delayd.audit.judging.faults import Fault
from delayd.audit.report import Finding, Report
from delayd.audit.showing.bounded import findings_within
from delayd.audit.showing.elements import Element, Node, element
from delayd.audit.showing.tables import Column, moment, table, theirs
from delayd.audit.showing.words import count_text, place_text, visible

FILTER_FROM: Final = 6
"""So few findings are found without a filter."""

_HEADS: Final = ("fault", "source", "id", "where", "node", "due (UTC)", "reason")


def findings(report: Report) -> Element | None:
    """The section; None if nothing is wrong."""
    if report.ok:
        return None
    return element(
        "section",
        element("h2", "What is wrong", id="wrong"),
        table(
            "Every kind of fault that was found",
            [Column("fault", "nowrap"), Column("findings", "n"), Column("means", "wide-text")],
            [
                [
                    element("span", theirs(slug, code=True), class_="bad"),
                    count_text(count),
                    meaning_of(slug),
                ]
                for slug, count in report.found
            ],
        ),
        element("h3", "The messages concerned"),
        _examples(findings_within(report.examples), sum(count for _, count in report.found)),
        aria_labelledby="wrong",
    )


def meaning_of(slug: str) -> str:
    """What a fault means; nothing of one that this version does not know."""
    known = {fault.slug: fault.meaning for fault in Fault}
    return known.get(slug, "")


def _examples(shown: Sequence[Finding], found: int) -> Element:
    filter_form = element(
        "div",
        element("label", "Filter", for_="filter"),
        element("input", id="filter", type="search", autocomplete="off"),
        element("output", for_="filter"),
        class_="filter",
        hidden=True,
    )
    return element(
        "div",
        filter_form if len(shown) >= FILTER_FROM else None,
        element(
            "table",
            element("caption", _caption(len(shown), found)),
            element(
                "thead",
                element(
                    "tr",
                    (element("th", h, scope="col", role="columnheader") for h in _HEADS),
                    role="row",
                ),
                role="rowgroup",
            ),
            element("tbody", map(_row, shown), role="rowgroup"),
            class_="cards",
            role="table",
        ),
    )


def _caption(shown: int, found: int) -> str:
    if shown >= found:
        return f"All {count_text(found)}" if found != 1 else "The only one"
    return f"{count_text(shown)} of {count_text(found)}: the first of each kind"


def _row(finding: Finding) -> Element:
    place = place_text(finding.topic, finding.partition, finding.offset)
    cells: list[tuple[str, Node, str]] = [
        ("source", theirs(finding.source, code=True), "id"),
        ("id", theirs(finding.id, code=True), "id"),
        ("where", element("bdi", place, class_="code") if place else None, "id"),
        ("node", theirs(finding.node), "id"),
        ("due", None if finding.due_ms is None else moment(finding.due_ms), "nowrap"),
        ("", theirs(finding.reason), "wide-text"),
    ]
    return element(
        "tr",
        element(
            "th",
            element("span", visible(finding.fault), class_="code bad"),
            scope="row",
            role="rowheader",
            class_="id",
        ),
        (
            element("td", content, role="cell", class_=kind, data_of=head or None)
            for head, content, kind in cells
        ),
        role="row",
    )
