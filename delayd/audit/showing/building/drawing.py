"""A figure: shapes, words beside them, words over them.

A figure is drawn once and fits any width. Its shapes stand in an SVG that stretches sideways: x
runs from 0 to WIDE, y is in CSS pixels. Its words are HTML that style.css places and never scales.
A label has a box, and the browser shows it only if it fits in there, whatever the font is.
"""

from collections.abc import Sequence
from typing import Final

from delayd.audit.showing.building.elements import Html, Node, element, number
from delayd.audit.showing.building.scales import Scale, Tick

WIDE: Final = 1000
"""The right edge of every drawing; the left one is 0."""
LINE: Final = 16
"""The height of a line of text, as in style.css."""
ASIDE: Final = 24
"""How far a label may stand out of either end of an axis, CSS pixels; style.css leaves as much."""


class Drawing:
    """A drawing, made part by part; a later part lies above."""

    def __init__(self, height: int) -> None:
        """`height` is in CSS pixels."""
        self._height = height
        self._beside: list[Node] = []
        self._shapes: list[Node] = []
        self._labels: list[Node] = []

    def shape(self, name: str, class_: str, *, tip: str | None = None, **places: float) -> None:
        """Add an SVG shape; browsers show `tip` where the mouse rests."""
        title = None if tip is None else element("title", tip)
        given = {key: float(value) for key, value in places.items()}
        self._shapes.append(element(name, title, class_=class_, **given))

    def path(self, class_: str, steps: Sequence[str]) -> None:
        """Add a path."""
        self._shapes.append(element("path", d="".join(steps), class_=class_))

    def rect(
        self, x: float, y: float, width: float, height: float, class_: str, tip: str | None = None
    ) -> None:
        """Add a rectangle."""
        places = {"x": x, "y": y, "width": max(width, 0), "height": max(height, 0)}
        self.shape("rect", class_, tip=tip, **places)

    def line(self, x1: float, y1: float, x2: float, y2: float, class_: str) -> None:
        """Add a straight line."""
        self.shape("line", class_, x1=x1, y1=y1, x2=x2, y2=y2)

    def beside(self, words: str, y: float, class_: str | None = None) -> None:
        """Write at the left of the drawing, in the middle of `y`; too long a name is cut."""
        top = f"margin-top:{y - LINE / 2:.0f}px"
        self._beside.append(element("span", words, class_=class_, style=top, title=words))

    def label(self, words: str, left: float, right: float, y: float, class_: str) -> None:
        """Write below `y`, between `left` and `right`, if the words fit there."""
        box = f"left:{_percent(left)};width:{_percent(right - left)};top:{y:.0f}px"
        self._labels.append(element("div", element("span", words), class_=class_, style=box))

    def flag(self, words: str, x: float, y: float, room: tuple[float, float]) -> float:
        """Write beside a line at `x`, on the side where more of the `room` is; return the right
        end of what is taken."""
        left, right = room
        if right - x >= x - left:
            self.label(words, x, right, y, "flag")
            return right
        self.label(words, left, x, y, "flag end")
        return x

    def value_axis(self, scale: Scale, ticks: Sequence[Tick]) -> None:
        """Add values at the left, and a faint line across for each."""
        for tick in ticks:
            y = scale(tick.value)
            self.line(0, y, WIDE, y, "grid")
            self.beside(tick.label, y)

    def time_axis(self, scale: Scale, ticks: Sequence[Tick], top: float, base: float) -> None:
        """Add times below `base`, and a faint line up to `top` for each."""
        self.line(0, base, WIDE, base, "axis")
        for tick in ticks:
            x = scale(tick.value)
            self.line(x, top, x, base + 4, "grid")
        self.ruler([(scale(tick.value), tick.label) for tick in ticks], base + 8)

    def ruler(self, labels: Sequence[tuple[float, str]], y: float) -> None:
        """Write labels below `y` that are equally far apart. As on a ruler each second one has
        twice the room, each fourth one four times, ...: the browser shows as many as it can."""
        apart = labels[1][0] - labels[0][0] if len(labels) > 1 else WIDE
        chars = max((len(words) for _, words in labels), default=0)
        for n, (x, words) in enumerate(labels):
            room = _percent(apart * ((n & -n) or len(labels)))
            edge = f"{_percent(2 * min(x, WIDE - x))} + {2 * ASIDE}px"
            box = f"left:{_percent(x)};width:min({room},{edge});top:{y:.0f}px"
            text = element("span", words, style=f"min-width:{chars}ch")
            self._labels.append(element("div", text, class_="tick", style=box))

    def render(self, words: str) -> Html:
        """Return the drawing; `words` are for whoever does not see it."""
        svg = element(
            "svg",
            self._shapes,
            viewBox=f"0 0 {WIDE} {self._height}",
            preserveAspectRatio="none",
            aria_hidden="true",
        )
        size = f"height:{self._height}px"
        return element(
            "div",
            element("div", self._beside, class_="beside"),
            element("div", svg, self._labels, class_="drawing", style=size),
            class_="plot",
            role="img",
            aria_label=words,
        )


def figure(
    slug: str, caption: str, description: str, drawing: Drawing, legend: Sequence[Node] = ()
) -> Html:
    """Return a figure with its caption; `description` is for whoever does not see it."""
    shown = drawing.render(f"{caption}. {description}")
    keys = element("span", legend, class_="legend") if legend else None
    return element("figure", shown, element("figcaption", caption, keys), id=slug)


def key(class_: str, words: str) -> Html:
    """Return an entry of a legend: a sample of a class of shapes, and what it is."""
    return element("span", element("i", class_=f"key {class_}"), words)


def _percent(x: float) -> str:
    return f"{number(x * 100 / WIDE)}%"
