"""The verdict: a word, a sentence, and the figures that everybody asks for."""

from typing import Final

from delayd.audit.report import Report
from delayd.audit.showing.building.blocks import theirs
from delayd.audit.showing.building.elements import Element, element
from delayd.audit.showing.words import (
    duration_text,
    large_count,
    second_text,
    verdict_sentence,
    wrong_sentence,
)

SIGNS: Final = {
    True: ("ok", "M13 23 L20 30 L32 15"),
    False: ("failed", "M14.5 14.5 L29.5 29.5 M29.5 14.5 L14.5 29.5"),
}
"""By Report.ok: the word, and the path of the sign."""


def verdict(report: Report) -> Element:
    """Return the head of the page."""
    word, sign = SIGNS[report.ok]
    return element(
        "header",
        _about(report),
        element(
            "div",
            element(
                "svg",
                element("circle", cx=22, cy=22, r=22),
                element("path", d=sign),
                class_="icon",
                viewBox="0 0 44 44",
                aria_hidden="true",
            ),
            element(
                "div",
                element("h1", f"Verdict: {word}"),
                element("p", verdict_sentence(report)),
                element("p", wrong_sentence(report)),
            ),
            class_=f"verdict {word}",
        ),
        _tiles(report),
    )


def _about(report: Report) -> Element:
    return element(
        "p",
        element("strong", "delayd audit"),
        element("span", "cluster ", element("strong", theirs(report.cluster))),
        element("span", f"{second_text(report.made_ms)} UTC"),
        element("span", f"took {duration_text(report.wall_ms)}"),
        element("span", "delayd ", theirs(report.version)),
        class_="about",
    )


def _tiles(report: Report) -> Element:
    late = report.lateness
    tiles: list[tuple[str, str, bool]] = [
        ("requests", large_count(report.fates.accepted), True),
        ("delivered", large_count(report.fates.delivered), True),
        *(
            (name, large_count(report.count(fault)), report.count(fault) == 0)
            for fault, name in (("lost", "lost"), ("duplicate", "doubled"), ("early", "early"))
        ),
        ("p99 lateness", "none" if late is None else duration_text(late.p99), True),
        _replicas(report),
    ]
    return element(
        "dl",
        (
            element(
                "div",
                element("dt", name),
                element("dd", value, class_=None if good else "bad"),
            )
            for name, value, good in tiles
        ),
        class_="tiles",
    )


def _replicas(report: Report) -> tuple[str, str, bool]:
    """Return how many nodes hold just what the log says is pending."""
    differ: set[str | None] = {cell.node for cell in report.heat if cell.differ}
    differ |= {finding.node for finding in report.examples if finding.job == "replicas"}
    equal = sum(node.problem is None and node.node not in differ for node in report.nodes)
    return ("replicas equal", f"{equal} of {len(report.nodes)}", equal == len(report.nodes))
