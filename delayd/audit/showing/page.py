"""The report as one HTML page: no network, no other file, complete without its little script.

It stays below PAGE_BYTES_MAX: every list and every text on it has a limit where it is written. The
same report gives the same bytes.
"""

import base64
import hashlib
from importlib import resources
from typing import Final

from delayd.audit.report import Report
from delayd.audit.showing.building.elements import Html, element
from delayd.audit.showing.sections import lateness, over_time, replicas, requests, the_cut, travel
from delayd.audit.showing.verdict import SIGNS, findings, verdict
from delayd.runtime.visible import visible

PAGE_BYTES_MAX: Final = 5_000_000


def page(report: Report) -> str:
    """Return the whole page; UTF-8 when it is written to a file."""
    return "<!doctype html>\n" + element("html", _head(report), _body(report), lang="en")


def _head(report: Report) -> Html:
    word, _ = SIGNS[report.ok]
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="generator", content=f"delayd {visible(report.version)}"),
        element("title", f"delayd audit: {word} ({visible(report.cluster)})"),
        element("style", Html(_file("style.css"))),
    )


def _body(report: Report) -> Html:
    return element(
        "body",
        element(
            "main",
            verdict(report),
            findings(report),
            over_time(report),
            lateness(report),
            replicas(report),
            requests(report),
            the_cut(report),
            travel(report),
        ),
        element(
            "footer",
            "Judged from Kafka's topics and the export of every node; nothing that delayd says "
            "about itself was believed. All times are UTC.",
        ),
        element("script", Html(_file("filter.js"))),
    )


def _policy() -> str:
    """Return a policy by which nothing is fetched and only our own script runs."""
    digest = hashlib.sha256(_file("filter.js").encode()).digest()
    own = base64.b64encode(digest).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{own}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
