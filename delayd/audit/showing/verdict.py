"""The top of the page: the verdict with the figures that everybody asks for, and what is wrong."""

from collections.abc import Sequence
from typing import Final

from delayd.audit.report import Finding, Report
from delayd.audit.showing.building.blocks import Column, moment, part, section, table, theirs
from delayd.audit.showing.building.elements import Html, Node, element
from delayd.audit.showing.words import (
    MUST_BE_0,
    NAME_CHARS_MAX,
    count_text,
    duration_text,
    large_count,
    meaning_of,
    place_text,
    second_text,
    verdict_sentence,
    wrong_sentence,
)
from delayd.runtime.visible import visible

FINDINGS_MAX: Final = 500
"""Rows of findings: a report keeps 20 of each of some 25 faults."""

FILTER_FROM: Final = 6
"""So few findings are found without a filter."""

_HEADS: Final = ("fault", "source", "id", "where", "node", "due (UTC)", "reason")

SIGNS: Final = {
    True: ("ok", "M13 23 L20 30 L32 15"),
    False: ("failed", "M14.5 14.5 L29.5 29.5 M29.5 14.5 L14.5 29.5"),
}
"""By Report.ok: the word, and the path of the sign."""


def verdict(report: Report) -> Html:
    """Return the head of the page."""
    word, sign = SIGNS[report.ok]
    shapes = (element("circle", cx=22, cy=22, r=22), element("path", d=sign))
    sentences = (
        element("h1", f"Verdict: {word}"),
        element("p", verdict_sentence(report)),
        element("p", wrong_sentence(report)),
    )
    return element(
        "header",
        _about(report),
        element(
            "div",
            element("svg", shapes, class_="icon", viewBox="0 0 44 44", aria_hidden="true"),
            element("div", sentences),
            class_=f"verdict {word}",
        ),
        _tiles(report),
    )


def _about(report: Report) -> Html:
    return element(
        "p",
        element("strong", "delayd audit"),
        element("span", "cluster ", element("strong", theirs(report.cluster))),
        element("span", f"{second_text(report.made_ms)} UTC"),
        element("span", f"took {duration_text(report.wall_ms)}"),
        element("span", "delayd ", theirs(report.version)),
        class_="about",
    )


def _tiles(report: Report) -> Html:
    late = report.lateness
    tiles: list[tuple[str, str, bool]] = [
        ("requests", large_count(report.fates.accepted), True),
        ("delivered", large_count(report.fates.delivered), True),
        *(
            (name, large_count(report.count(fault)), report.count(fault) == 0)
            for fault, name in MUST_BE_0
        ),
        ("p99 lateness", "none" if late is None else duration_text(late.p99), True),
        _replicas(report),
    ]
    shown = [
        element("div", element("dt", name), element("dd", value, class_=None if good else "bad"))
        for name, value, good in tiles
    ]
    return element("dl", shown, class_="tiles")


def _replicas(report: Report) -> tuple[str, str, bool]:
    """Return how many nodes hold just what the log says is pending."""
    differ: set[str | None] = {cell.node for cell in report.heat if cell.differ}
    differ |= {finding.node for finding in report.examples if finding.job == "replicas"}
    equal = sum(node.problem is None and node.node not in differ for node in report.nodes)
    return ("replicas equal", f"{equal} of {len(report.nodes)}", equal == len(report.nodes))


def findings(report: Report) -> Html | None:
    """Return the section; None if nothing is wrong."""
    if report.ok:
        return None

    def slug(found: tuple[str, int]) -> Node:
        return element("span", theirs(found[0], code=True), class_="bad")

    total = sum(count for _, count in report.found)
    return section(
        "wrong",
        "What is wrong",
        table(
            "Every kind of fault that was found",
            report.found,
            Column(
                "fault",
                lambda found: element("span", theirs(found[0], code=True), class_="bad"),
                "nowrap",
            ),
            Column("findings", lambda found: count_text(found[1]), "n"),
            Column("means", lambda found: meaning_of(found[0]), "wide-text"),
        ),
        part("The messages concerned", _examples(report.examples[:FINDINGS_MAX], total))
        if report.examples
        else None,
    )


def _examples(shown: Sequence[Finding], total: int) -> Html:
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


def _filter() -> Html:
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


def _row(finding: Finding) -> Html:
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
