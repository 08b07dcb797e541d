"""The parts of sections besides tables and figures."""

from typing import Final

from delayd.audit.showing.building.elements import Element, Node, element
from delayd.audit.showing.words import TEXT_CHARS_MAX, count_text, moment_of, time_text, visible

SHORT_CHARS_MAX: Final = 32
"""What is not broken into lines, in tables that can scroll."""


def section(slug: str, title: str, *content: Node, lead: str = "") -> Element:
    """Return a heading and what is under it."""
    return element(
        "section",
        element("h2", title, id=slug),
        element("p", lead, class_="lead") if lead else None,
        content,
        aria_labelledby=slug,
    )


def part(title: str, *content: Node) -> Element:
    """Return a lower heading and what is under it."""
    return element("div", element("h3", title), content, class_="part")


def nothing(words: str) -> Element:
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
