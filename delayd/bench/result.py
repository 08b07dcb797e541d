"""The result of a run of benchmarks, as JSON, as text for a terminal, and back.

{"bench", "machine", "sizes": {benchmark: {size: number}}, "figures": {slug: {...}}}
"""

import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.table import Table

from delayd import __version__
from delayd.bench.context import Sizes
from delayd.bench.figures import Figure, figure_from_json, rounded
from delayd.dev.jars import KAFKA_VERSION
from delayd.errors import DelaydError
from delayd.runtime import native
from delayd.runtime.java import find_java


class ResultError(DelaydError):
    """A file does not hold what `delayd bench --json` prints."""

    code = "bench-result"


@dataclass(frozen=True, slots=True)
class Result:
    """One run of one benchmark, or of all."""

    bench: str
    machine: Mapping[str, Any]
    sizes: Mapping[str, Mapping[str, int]]
    """By benchmark; sizes that are 0 are left out."""
    figures: tuple[Figure, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "bench": self.bench,
            "machine": dict(self.machine),
            "sizes": {name: dict(sizes) for name, sizes in self.sizes.items()},
            "figures": {figure.name: figure.to_json() for figure in self.figures},
        }


def sizes_said(sizes: Sizes) -> dict[str, int]:
    """Return those sizes that the benchmark has."""
    return {key: value for key, value in asdict(sizes).items() if value}


def result_from_json(text: str) -> Result:
    """Return the inverse of `Result.to_json`. Raises ResultError."""
    try:
        said = json.loads(text)
        return Result(
            str(said["bench"]),
            dict(said["machine"]),
            {str(name): dict(sizes) for name, sizes in said["sizes"].items()},
            tuple(figure_from_json(name, each) for name, each in said["figures"].items()),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ResultError(
            f"this is not what a benchmark printed: {error!r}",
            remedy="give the file that `delayd bench all --json` was written to",
        ) from error


def table_of(result: Result) -> Table:
    """Return a table for a terminal."""
    table = Table("figure", "median", "range", "unit", "ratio", "against")
    table.columns[0].no_wrap = True
    for figure in result.figures:
        table.add_row(
            figure.name,
            number_text(figure.value),
            range_text(figure),
            figure.unit,
            ratio_text(figure),
            figure.against,
        )
    return table


def number_text(value: float) -> str:
    """Return a number as people read it."""
    return f"{rounded(value):,}".removesuffix(".0")


def range_text(figure: Figure) -> str:
    """Return the range of the runs, from the smallest to the largest."""
    low, high = min(figure.runs), max(figure.runs)
    return number_text(low) if low == high else f"{number_text(low)} to {number_text(high)}"


def ratio_text(figure: Figure) -> str:
    """Return the ratio; nothing where there is nothing to compare with."""
    return "" if figure.ratio is None else f"{figure.ratio:.2f}"


def machine(*, has_own_brokers: bool = True) -> dict[str, Any]:
    """Return what matters of this machine for reading figures, and what the bench's own brokers run
    on."""
    found = {
        "delayd": __version__,
        "path": native.described,
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "memory_mib": psutil.virtual_memory().total // 2**20,
        "arch": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    if has_own_brokers:
        found |= {"kafka": KAFKA_VERSION, "java": _java()}
    return found


def _java() -> str:
    try:
        return str(find_java(os.environ).major)
    except DelaydError:
        return "unknown"


def _cpu() -> str:
    """Return the model's name, which psutil does not tell; not every kernel has it."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or "unknown"
