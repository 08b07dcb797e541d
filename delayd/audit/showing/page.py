"""The report as one HTML page: no network, no other file, complete without its little script.

What it shows is bounded (bounded.py); the same report gives the same bytes.
"""

import base64
import hashlib
from importlib import resources
from typing import Final

from delayd.audit.report import Report
from delayd.audit.showing import sections
from delayd.audit.showing.elements import Element, Node, Verbatim, element, render
from delayd.audit.showing.findings import findings
from delayd.audit.showing.tables import moment, theirs
from delayd.audit.showing.words import (
    count_text,
    duration_text,
    verdict_sentence,
    visible,
    wrong_sentence,
)

HEADLINES: Final = {
    True: ("ok", "Verdict: ok", "M13 23 L20 30 L32 15"),
    False: ("failed", "Verdict: failed", "M14.5 14.5 L29.5 29.5 M29.5 14.5 L14.5 29.5"),
}
"""By Report.ok: class, words, and the path of the sign."""


def page(report: Report) -> str:
    """The whole page; UTF-8 when it is written to a file."""
    return "<!doctype html>\n" + render(element("html", _head(report), _body(report), lang="en"))


def _head(report: Report) -> Element:
    verdict = HEADLINES[report.ok][0]
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="generator", content=f"delayd {visible(report.version)}"),
        element("title", f"delayd audit: {verdict} ({visible(report.cluster)})"),
        element("style", Verbatim(_file("style.css"))),
    )


def _body(report: Report) -> Element:
    content: list[Node] = [
        _verdict(report),
        findings(report),
        sections.over_time(report),
        sections.lateness(report),
        sections.replicas(report),
        sections.requests(report),
        sections.the_cut(report),
        sections.travel(report),
    ]
    return element(
        "body",
        element("main", content),
        element(
            "footer",
            "Judged from Kafka's topics and the export of every node; nothing that delayd says "
            "about itself was believed. All times are UTC.",
        ),
        element("script", Verbatim(_file("filter.js"))),
    )


def _verdict(report: Report) -> Element:
    class_, headline, sign = HEADLINES[report.ok]
    return element(
        "header",
        element(
            "p",
            element("span", element("strong", "delayd audit")),
            element("span", "cluster ", element("strong", theirs(report.cluster))),
            element("span", moment(report.made_ms), " UTC"),
            element("span", f"took {duration_text(report.wall_ms)}"),
            element("span", "delayd ", theirs(report.version)),
            class_="about",
        ),
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
                element("h1", headline),
                element("p", verdict_sentence(report)),
                element("p", wrong_sentence(report)),
            ),
            class_=f"verdict {class_}",
        ),
        _tiles(report),
    )


def _tiles(report: Report) -> Element:
    compared = sum(node.problem is None for node in report.nodes)
    equal = report.count("replica-missing", "replica-extra", "replica-changed") == 0
    tiles: list[tuple[str, str, bool]] = [
        ("requests", count_text(report.fates.accepted), True),
        ("delivered", count_text(report.fates.delivered), True),
        *(
            (name, count_text(report.count(fault)), report.count(fault) == 0)
            for fault, name in (("lost", "lost"), ("duplicate", "doubled"), ("early", "early"))
        ),
        ("p99 lateness", sections.percentile_text(report.lateness), True),
        (
            "replicas compared" if equal else "replicas compared, not equal",
            f"{compared} of {len(report.nodes)}",
            equal and compared == len(report.nodes),
        ),
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


def _policy() -> str:
    """Nothing may be fetched, and only the script of our own runs, whatever got into the page."""
    digest = hashlib.sha256(_file("filter.js").encode()).digest()
    own = base64.b64encode(digest).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{own}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
