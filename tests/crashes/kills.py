"""`make wheel-kills`: kills a process that feeds a wheel with SIGKILL, over and over.

    python -m crashes.kills 500 [--seed 7] [--dir DIR]

After a kill it verifies and opens the wheel, and compares it with the model: frames (lost, doubled,
altered), replies, ids, counts. Then the next process goes on with the wheel. Half of the kills come
from outside, at a random moment; half come before a random call of the disk. One kill in four
follows the one before without a comparison, so that kills hit recovery too.

The exit code is 1 if anything was wrong; the directory is kept then.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from secrets import randbelow

from wheel_reading import split_all

from crashes.fed_log import FedLog
from crashes.feeding import FedWheel
from crashes.model import Model, Wrong
from crashes.worker import CHECKPOINT, Marker
from delayd.commands.examine.verifying import verify
from delayd.runtime.clock import SystemClock

OUTSIDE_MS_MAX = 120
"""The longest time from the begin of the opening to a kill from outside."""
SOON_MS_MAX = 12
"""The same for a kill that should hit recovery."""
INDEXED_SHARE = 0.5
"""The share of comparisons that index or split all hours before they read."""
CALLS_MAX = 800
SOON_CALLS_MAX = 60
START_MS_MAX = 60_000


@dataclass(slots=True)
class Report:
    """What a run has done and found."""

    seed: int
    kills: int = 0
    compared: int = 0
    records: int = 0
    lost: int = 0
    doubled: int = 0
    altered: int = 0
    stages: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    resumed: Counter[str] = field(default_factory=Counter)
    """Whether a wheel killed within a checkpoint went back to the older or to the newer one."""
    problems: list[str] = field(default_factory=list)

    @property
    def in_checkpoint(self) -> int:
        """Return the number of kills within a checkpoint."""
        return sum(self.stages[stage] for stage in CHECKPOINT)


class Killing:
    """One wheel, killed many times."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._wheel = directory / "wheel"
        self._marker = directory / "marker"
        self._log = FedLog(seed)
        self._model = Model(self._log)
        self._random = Random(seed)
        self._at_least = self._at_most = 0
        """Records in the checkpoint that is durable, and in the one that may be."""
        self.report = Report(seed)

    def run(self, kills: int, tell: Callable[[Report], None] = lambda report: None) -> Report:
        """Kill so many times, or until something is wrong; `tell` gets the report after each."""
        looked = True
        while self.report.kills < kills and not self.report.problems:
            self._kill(soon=not looked)
            looked = self.report.kills == kills or self._random.random() < 0.75
            if looked:
                self._look()
            tell(self.report)
        return self.report

    def _kill(self, *, soon: bool) -> None:
        Marker.clear(self._marker)
        from_outside = self._random.random() < 0.5
        arguments = [str(self._wheel), str(self._marker), str(self._log.seed)]
        if not from_outside:
            arguments.append(str(self._random.randrange(SOON_CALLS_MAX if soon else CALLS_MAX)))
        wait_s = self._random.random() * (SOON_MS_MAX if soon else OUTSIDE_MS_MAX) / 1000
        with subprocess.Popen(
            [sys.executable, "-m", "crashes.worker", *arguments],
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as process:
            try:
                if from_outside:
                    self._await_opening(process)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(wait_s)
                    process.kill()
                process.wait(START_MS_MAX / 1000)
            finally:
                process.kill()
            assert process.stderr is not None
            told = process.stderr.read().decode(errors="replace")
        marker = Marker.read(self._marker)
        if process.returncode != -signal.SIGKILL:
            self.report.problems.append(f"the process ended with {process.returncode}: {told}")
        self.report.kills += 1
        self.report.stages[marker.stage] += 1
        self.report.calls[marker.call] += 1
        if marker.stage not in ("starting", "opening"):
            if marker.finished < self._at_least:
                self.report.problems.append(f"{self._at_least} were durable: {marker}")
            self._at_least, self._at_most = marker.finished, marker.begun

    def _await_opening(self, process: "subprocess.Popen[bytes]") -> None:
        until_ms = SystemClock().monotonic_ms() + START_MS_MAX
        while Marker.read(self._marker).stage == "starting" and process.poll() is None:
            assert SystemClock().monotonic_ms() < until_ms, "the process does not begin"

    def _look(self) -> None:
        report = self.report
        if not any(self._wheel.glob("*")):
            assert self._at_least == 0, "the wheel is gone"
            return  # killed before there was anything
        findings, _ = verify(self._wheel, lambda done, total: None)
        if not findings.is_whole:
            report.problems.append(f"verify finds {findings.damage[:3]}")
            return
        fed = FedWheel(self._wheel, self._log)
        try:
            wrong = self._compare(fed)
        finally:
            fed.wheel.close()
        report.compared += 1
        report.records = fed.count
        report.lost += len(wrong.lost)
        report.doubled += len(wrong.doubled)
        report.altered += len(wrong.altered)
        if wrong:
            report.problems.append(f"behind {fed.count} records: {wrong}")

    def _compare(self, fed: FedWheel) -> Wrong:
        if fed.count not in (self._at_least, self._at_most):
            return Wrong(others=[f"it goes on there, not at {self._at_least} or {self._at_most}"])
        if self._at_least < self._at_most:
            self.report.resumed["newer" if fed.count == self._at_most else "older"] += 1
        self._at_least = self._at_most = fed.count
        self._model.go_to(fed.count)
        if self._random.random() < INDEXED_SHARE:
            split_all(fed.wheel)
        return self._model.compare(fed.wheel)


def main() -> int:
    """Run the command; return its exit code."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("kills", type=int, nargs="?", default=500)
    asked.add_argument("--seed", type=int, default=None, help="of the log, and of the moments")
    asked.add_argument("--dir", type=Path, default=None, help="a folder on the disk to test")
    chosen = asked.parse_args()
    seed = randbelow(10**6) if chosen.seed is None else chosen.seed
    directory = Path(tempfile.mkdtemp(prefix="delayd-kills-", dir=chosen.dir))
    report = Killing(directory, seed).run(chosen.kills, tell=_tell)
    print(*told(report), sep="\n")
    if report.problems:
        print(f"the wheel is kept: {directory}")
        return 1
    shutil.rmtree(directory)
    return 0


def _tell(report: Report) -> None:
    if report.kills % 50 == 0:
        print(f"{report.kills} kills, {report.records} records", file=sys.stderr, flush=True)


def told(report: Report) -> list[str]:
    """Return the report as lines of text."""
    lines = [
        f"seed {report.seed}: {report.kills} kills, {report.records} records, "
        f"compared {report.compared} times",
        f"lost {report.lost}, doubled {report.doubled}, altered {report.altered}",
        f"{report.in_checkpoint} kills within a checkpoint; the batch that was being written was "
        f"there {report.resumed['newer']} times, and {report.resumed['older']} times not",
    ]
    for name, counts in (("at", report.stages), ("before or after", report.calls)):
        found = ", ".join(f"{what} {count}" for what, count in counts.most_common())
        lines.append(f"killed {name}: {found}")
    return lines + [f"WRONG: {problem}" for problem in report.problems]


if __name__ == "__main__":
    sys.exit(main())
