"""What a benchmark reports."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from delayd.bench.receipts import Faults

FAULTS: Final = ("-lost", "-doubled", "-early", "-altered", "-wrong")
"""Endings of the names of figures that must be 0."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity: a value per run, and the values that it is compared with, run by
    run."""

    name: str
    unit: str
    runs: tuple[float, ...]
    against: str = ""
    against_runs: tuple[float, ...] = ()

    @property
    def value(self) -> float:
        """Return the median."""
        return median(self.runs)

    @property
    def ratio(self) -> float | None:
        """Return the median of the ratios of paired runs; None where there is nothing to compare
        with.

        A value below 1, as a lateness of 0 ms may be, is compared with as if it were 1.
        """
        if not self.against_runs:
            return None
        pairs = zip(self.runs, self.against_runs, strict=True)
        return median(own / max(1, other) for own, other in pairs)

    def to_json(self) -> dict[str, Any]:
        """Return the figure, rounded to the precision of a measurement."""
        fields: dict[str, Any] = {
            "value": rounded(self.value),
            "unit": self.unit,
            "range": [rounded(min(self.runs)), rounded(max(self.runs))],
            "runs": [rounded(run) for run in self.runs],
        }
        if self.ratio is not None:
            fields["ratio"] = round(self.ratio, 3)
            fields["against"] = self.against
            fields["against_runs"] = [rounded(run) for run in self.against_runs]
        return fields

    @property
    def is_fault(self) -> bool:
        """Return whether it must be 0."""
        return self.name.endswith(FAULTS)


def figure_from_json(name: str, said: dict[str, Any]) -> Figure:
    """Return the inverse of `Figure.to_json`, as far as rounding allows."""
    return Figure(
        name,
        str(said["unit"]),
        tuple(map(float, said["runs"])),
        str(said.get("against", "")),
        tuple(map(float, said.get("against_runs", ()))),
    )


def is_wrong(figures: Iterable[Figure]) -> bool:
    """Return whether anything was lost, doubled, early, altered or otherwise wrong, in any run."""
    return any(any(figure.runs) for figure in figures if figure.is_fault)


class Measured:
    """The results of the runs, figure by figure."""

    def __init__(self) -> None:
        self._points: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
        self._said: dict[str, tuple[str, str]] = {}

    def add(
        self, name: str, unit: str, value: float, against: str = "", other: float | None = None
    ) -> None:
        """Add a run's value, and the value that it is compared with."""
        self._points[name].append((value, other))
        self._said[name] = (unit, against)

    def add_faults(self, name: str, *faults: Faults) -> None:
        """Add the faults of one run, summed over its loads: figures that must be 0."""
        for what, counts in zip(Faults._fields, zip(*faults, strict=True), strict=True):
            self.add(f"{name}-{what}", "messages", float(sum(counts)))

    def figures(self) -> list[Figure]:
        """Return all figures, in the order in which they were first measured."""
        found = []
        for name, points in self._points.items():
            unit, against = self._said[name]
            others = tuple(other for _, other in points if other is not None)
            found.append(Figure(name, unit, tuple(own for own, _ in points), against, others))
        return found


def rounded(value: float) -> float:
    """Return a value rounded to the precision of a measurement."""
    return round(value) if value >= 1000 else round(value, 1 if value >= 100 else 2)
