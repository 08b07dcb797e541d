"""Small parts of figures: text, lines, axes, and a figure in two sizes.

A figure is drawn twice, for wide and for narrow pages, and style.css shows the one that fits: so
its text is always of a size that can be read. Coordinates are CSS pixels of the size drawn for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from delayd.audit.showing.building.elements import Attribute, Element, Node, element
from delayd.audit.showing.building.scales import Scale, Tick

WIDE: Final = 1040
NARROW: Final = 352
LETTER: Final = 7.4
"""A letter's width in the text of figures, in the widest of their fonts; nothing is measured."""


@dataclass(frozen=True, slots=True)
class Room:
    """Where a figure may draw, horizontally."""

    width: int
    left: int
    right: int

    @property
    def is_wide(self) -> bool:
        """Is there room for more than the bare figure?"""
        return self.width >= WIDE

    @property
    def end(self) -> int:
        """The right edge of the plot."""
        return self.width - self.right


def figure(
    slug: str,
    caption: str,
    description: str,
    draw: Callable[[int], tuple[Sequence[Node], int]],
    legend: Node = None,
) -> Element:
    """A figure in both sizes. `draw(width)` gives its parts and its height; `description` is what
    it shows, for whoever does not see it."""
    sizes: list[Node] = []
    for name, width in (("wide", WIDE), ("narrow", NARROW)):
        parts, height = draw(width)
        title = f"{slug}-{name}"
        sizes.append(
            element(
                "svg",
                element("title", caption, id=f"{title}-title"),
                element("desc", description, id=f"{title}-desc"),
                parts,
                class_=name,
                viewBox=f"0 0 {width} {height}",
                width=width,
                height=height,
                role="img",
                aria_labelledby=f"{title}-title {title}-desc",
            )
        )
    return element("figure", sizes, element("figcaption", caption, legend), id=slug)


def text(words: str, x: float, y: float, class_: str = "", **more: Attribute) -> Element:
    """A line of text; `y` is its base line."""
    return element("text", words, x=float(x), y=float(y), class_=class_ or None, **more)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Element:
    """A straight line."""
    return element("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)


def rect(
    x: float, y: float, width: float, height: float, class_: str, tip: str | None = None
) -> Element:
    """A rectangle; `tip` is shown by browsers where the mouse rests."""
    return element(
        "rect",
        None if tip is None else element("title", tip),
        x=float(x),
        y=float(y),
        width=float(max(width, 0)),
        height=float(max(height, 0)),
        class_=class_,
    )


def value_axis(room: Room, scale: Scale, ticks: Sequence[Tick]) -> list[Node]:
    """Labels at the left, and a faint line across for each."""
    parts: list[Node] = []
    for tick in ticks:
        y = scale(tick.value)
        parts.append(line(room.left, y, room.end, y, "grid"))
        parts.append(text(tick.label, room.left - 8, y + 4, "tick end"))
    return parts


def time_axis(room: Room, scale: Scale, ticks: Sequence[Tick], top: float, y: float) -> list[Node]:
    """Labels below `y`, and a faint line up to `top` for each."""
    parts: list[Node] = [line(room.left, y, room.end, y, "axis")]
    for tick in ticks:
        x = scale(tick.value)
        parts.append(line(x, top, x, y + 4, "grid"))
        edge = "start" if x < room.left + 20 else "end" if x > room.end - 20 else "middle"
        parts.append(text(tick.label, x, y + 18, f"tick {edge}"))
    return parts
