"""What a benchmark reports."""

import os
import platform
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity: a value per run, and what it is compared with, run by run."""

    name: str
    unit: str
    runs: tuple[float, ...]
    against: str = ""
    against_runs: tuple[float, ...] = ()

    @property
    def value(self) -> float:
        """The median."""
        return median(self.runs)

    @property
    def ratio(self) -> float | None:
        """The median of the ratios of paired runs; None where there is nothing to compare.

        What is compared with less than 1, as a lateness of 0 ms may be, is compared with 1.
        """
        if not self.against_runs:
            return None
        pairs = zip(self.runs, self.against_runs, strict=True)
        return median(own / max(1, other) for own, other in pairs)

    def to_json(self) -> dict[str, Any]:
        """Rounded to what the measurement can bear."""
        fields: dict[str, Any] = {
            "value": rounded(self.value),
            "unit": self.unit,
            "runs": [rounded(run) for run in self.runs],
        }
        if self.ratio is not None:
            fields["ratio"] = round(self.ratio, 3)
            fields["against"] = self.against
        return fields


def rounded(value: float) -> float:
    """To what a measurement can bear."""
    return round(value) if value >= 1000 else round(value, 1 if value >= 100 else 2)


def machine() -> dict[str, Any]:
    """The machine, as far as it matters for reading the figures."""
    return {
        "cpus": os.cpu_count(),
        "arch": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
