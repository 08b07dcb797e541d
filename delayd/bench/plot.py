"""The figures as a picture: an SVG file by itself, a pure function of a result.

Each figure has a row, with a scale of its own from 0: the runs as dots, their median as a bar, and
below it, hollow, the median of what it is compared with.
"""

from collections.abc import Iterable
from typing import Final

from delayd.audit.showing.building.elements import Html, element
from delayd.bench.figures import Figure
from delayd.bench.result import Result, number_text, range_text

WIDTH: Final = 960
ROW: Final = 44
TOP: Final = 34
LEFT: Final = 250
RIGHT: Final = 640
BAR: Final = 12
DOT: Final = 3.0

STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#1f2430}.faint{fill:#6b7280;font-size:11px}"
    ".bar{fill:#2f6fbb}.fault{fill:#c03030}.other{fill:none;stroke:#8a94a3}.dot{fill:#123a66}"
    ".back{fill:#fff}"
)


def plot(result: Result) -> str:
    """Return the picture."""
    drawn = [figure for figure in result.figures if not figure.is_fault or figure.value]
    height = TOP + ROW * len(drawn) + 8
    rows = [
        part for number, figure in enumerate(drawn) for part in _row(figure, TOP + ROW * number)
    ]
    title = f"delayd bench {result.bench}: median (bar), runs (dots), compared with (hollow)"
    picture = element(
        "svg",
        element("style", STYLE),
        element("rect", width=WIDTH, height=height, class_="back"),
        _text(title, 12, 20),
        rows,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        width=WIDTH,
        height=height,
        role="img",
    )
    return f"{picture}\n"


def _row(figure: Figure, y: int) -> Iterable[Html]:
    top = max(*figure.runs, *figure.against_runs, 1e-9)

    def across(value: float) -> float:
        return LEFT + (RIGHT - LEFT) * value / top

    yield _text(figure.name, 12, y + 14)
    yield _text(f"{number_text(figure.value)} {figure.unit}", RIGHT + 14, y + 14)
    kind = "fault" if figure.is_fault else "bar"
    yield _bar(across(figure.value), y + 3, kind)
    for run in figure.runs:
        yield element("circle", cx=across(run), cy=float(y + 3 + BAR / 2), r=DOT, class_="dot")
    if figure.ratio is None:
        yield _text(f"runs: {range_text(figure)}", RIGHT + 14, y + 29, "faint")
        return
    other = sorted(figure.against_runs)[len(figure.against_runs) // 2]
    yield _bar(across(other), y + 18, "other")
    said = f"{figure.ratio:.2f} of {figure.against}"
    yield _text(said, RIGHT + 14, y + 29, "faint")


def _bar(end: float, y: int, class_: str) -> Html:
    width = max(1.0, end - LEFT)
    return element("rect", x=float(LEFT), y=float(y), width=width, height=BAR, class_=class_)


def _text(words: str, x: int, y: int, class_: str | None = None) -> Html:
    return element("text", words, x=float(x), y=float(y), class_=class_)
