"""`make wheel-damage`: flips bits and tears tails in the files of a stopped wheel.

    python -m crashes.damage --flips 1000 --tails 500 [--seed 7]

Each round damages a copy of one wheel in one place, verifies it, opens it and reads all of it. The
result is one of OUTCOMES. A wheel that opens, reads, and equals none of its checkpoints is silently
wrong: `silent`, whatever `verify` says, because no node runs `verify` before it starts. The exit
code is 1 if a wheel is silently wrong, or if reading fails where `verify` finds nothing.
"""

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from secrets import randbelow
from typing import Any, Final, NamedTuple

from wheel_disks import flip
from wheel_reading import split_all

from crashes.fed_log import PARTITIONS, FedLog
from crashes.feeding import FedWheel
from crashes.model import frames_of
from crashes.worker import make_small
from delayd.commands.examine.verifying import verify
from delayd.errors import ConfigError, CorruptionError, DiskError
from delayd.wheel.hours import SPARSE_BYTES_MAX
from delayd.wheel.storage import Wheel
from replication.rank import SLOT_MS, slot_of
from replication.record import decode

OUTCOMES: Final = {
    "refused": "opening fails, with the reason",
    "unread": "it opens; reading reports the damage",
    "same": "it holds what it held",
    "earlier": "it is what it was at an earlier checkpoint: the buffer has the rest",
    "silent": "it holds something else, and nothing reports it",
}
CHECKPOINTS: Final = 8
RECORDS: Final = 90
"""Between two checkpoints."""
NOT_READ: Final = frozenset({"LOCK", "LOG", "LOG.old"})
"""Files of LevelDB that hold no data."""

Held = dict[str, Any]


class Damage(NamedTuple):
    """One damaged place."""

    file: str
    place: int
    what: str
    """As for people: a bit, or how a tail was torn."""


@dataclass(slots=True)
class Report:
    """What a run has done and found."""

    seed: int
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By kind of file and outcome."""
    verified: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """By outcome, and whether `verify` reported it."""
    problems: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Return how many damages were done."""
        return sum(self.outcomes.values())


class Target:
    """A stopped wheel, copied for each damage, and its content at each checkpoint."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.whole = directory / "whole"
        self._copy = directory / "copy"
        self._history: list[Held] = []
        self._sparse_bytes_max = 0
        log = FedLog(seed)
        fed = FedWheel(self.whole, log)
        self._history.append(held_by(fed.wheel))
        for number in range(CHECKPOINTS):
            fed.take(RECORDS)
            fed.checkpoint(lambda step: None)
            fed.split()
            self._history.append(held_by(fed.wheel))
            if number == CHECKPOINTS // 2:
                # Opened again, LevelDB makes a table of its log; the rest stays in the next log.
                fed.wheel.close()
                fed = FedWheel(self.whole, log)
        while fed.wheel.stats().files_to_unlink:
            fed.checkpoint(lambda step: None)
        self._history.append(held_by(fed.wheel))
        # A kill leaves bytes behind the last checkpoint.
        fed.take(RECORDS // 2)
        while fed.wheel.write_out():
            pass
        fed.wheel.close()
        self.files = sorted(
            path.relative_to(self.whole)
            for path in self.whole.rglob("*")
            if path.is_file() and path.name not in NOT_READ
        )

    def damaged(self, damage: Callable[[Path], None], file: Path) -> tuple[str, bool, str]:
        """Damage a copy. Return the outcome, whether `verify` reports it, and the message."""
        shutil.copytree(self.whole, self._copy)
        try:
            damage(self._copy / file)
            try:
                is_reported = not verify(self._copy, lambda done, total: None)[0].is_whole
            except (DiskError, ConfigError):
                is_reported = True
            outcome, told = self._open()
        finally:
            shutil.rmtree(self._copy)
        return outcome, is_reported, told

    def _open(self) -> tuple[str, str]:
        # Every other time, sparse hours are split too.
        self._sparse_bytes_max ^= SPARSE_BYTES_MAX
        try:
            wheel = Wheel.open(
                self._copy, partitions=PARTITIONS, sparse_bytes_max=self._sparse_bytes_max
            )
        except (CorruptionError, DiskError) as error:
            return "refused", error.message
        try:
            split_all(wheel)
            held = held_by(wheel)
        except CorruptionError as error:
            return "unread", error.message
        finally:
            wheel.close()
        if held == self._history[-1]:
            return "same", ""
        if held in self._history:
            return "earlier", ""
        return "silent", _difference(held, self._history[-1])


def held_by(wheel: Wheel) -> Held:
    """Return the content of a wheel, without forgotten frames, in a form that can be compared.
    Raise CorruptionError. Forgotten frames of a sparse hour stay in its file until the hour goes.
    """
    forgotten = wheel.progress.forgotten if wheel.progress else b""
    cursor_ms = decode(forgotten).frontier.lowest_cursor.due_ms if forgotten else 0
    floor_ms = slot_of(cursor_ms) * SLOT_MS
    frames = [frame for frame in frames_of(wheel) if frame.due_ms >= floor_ms]
    replies = wheel.pending_replies([0] * PARTITIONS)
    lines = {
        kind: [line for run in wheel._catalogue.lines(kind, kind) for line in run]
        for kind in (b"e", b"i", b"k")
    }
    return {
        "progress": wheel.progress,
        "frames": sorted(frames, key=lambda frame: frame[:3]),
        "replies": wheel.read(replies),
        "lines": lines,
    }


def _difference(held: Held, known: Held) -> str:
    differing = [name for name in held if held[name] != known[name]]
    lost = len(known["frames"]) - len(held["frames"])
    return f"other {', '.join(differing)}; {lost} frames fewer"


def flips(target: Target, seed: int, count: int) -> Report:
    """Flip so many single bits. Small files are as likely as large ones."""
    random = Random(seed)
    report = Report(seed)
    for file, size in _files(target, random, count):
        place, bit = random.randrange(size), random.randrange(8)
        harm = partial(flip, place=place, bit=bit)
        _judge(report, target, file, harm, f"bit {bit} of byte {place}")
    return report


def tails(target: Target, seed: int, count: int) -> Report:
    """Tear so many tails: cut them off, or fill them with zeros or with noise."""
    random = Random(seed)
    report = Report(seed)
    for file, size in _files(target, random, count):
        kept = size - random.randint(1, min(size, random.choice((8, 64, 4_096))))
        how = random.choice(("cut", "zeros", "noise"))
        fill = {"cut": b"", "zeros": bytes(size - kept), "noise": random.randbytes(size - kept)}
        _judge(report, target, file, _tearing(kept, fill[how]), f"{how} from byte {kept}")
    return report


def _files(target: Target, random: Random, count: int) -> Iterator[tuple[Path, int]]:
    """Yield up to so many files with their sizes; empty files are left out."""
    # Half of them are slot and hour files, half the few files that everything depends on.
    slots = [file for file in target.files if file.parts[0] == "slots"]
    others = [file for file in target.files if file.parts[0] != "slots"]
    for number in range(count):
        file = random.choice(others if number % 2 else slots)
        if size := (target.whole / file).stat().st_size:
            yield file, size


def _tearing(kept: int, fill: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:kept] + fill)

    return damage


def _judge(
    report: Report, target: Target, file: Path, damage: Callable[[Path], None], what: str
) -> None:
    outcome, is_reported, told = target.damaged(damage, file)
    report.outcomes[kind_of(file), outcome] += 1
    report.verified[outcome, is_reported] += 1
    said = f"seed {report.seed}, damage {report.count}: {file}, {what}"
    if outcome == "silent":
        report.problems.append(f"{said}: {told}; verify reports it: {is_reported}")
    if outcome == "unread" and not is_reported:
        report.problems.append(f"{said}: verify finds nothing, reading says {told}")


def kind_of(file: Path) -> str:
    """Return the kind of a file."""
    if file.parts[0] == "slots":
        return "hour" if file.name.startswith("hour") else "slot"
    return file.name.partition("-")[0] if not file.suffix else file.suffix.lstrip(".")


def main() -> int:
    """Run the command; return its exit code."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--flips", type=int, default=1000)
    asked.add_argument("--tails", type=int, default=500)
    asked.add_argument("--seed", type=int, default=None)
    asked.add_argument("--dir", type=Path, default=None, help="may be in memory: nothing is synced")
    chosen = asked.parse_args()
    seed = randbelow(10**6) if chosen.seed is None else chosen.seed
    make_small()
    problems = 0
    with tempfile.TemporaryDirectory(prefix="delayd-damage-", dir=chosen.dir) as folder:
        target = Target(Path(folder), seed)
        for name, made in (("flips", flips), ("tails", tails)):
            report = made(target, seed, getattr(chosen, name))
            print(*told(name, report), sep="\n", flush=True)
            problems += len(report.problems)
    return 1 if problems else 0


def told(name: str, report: Report) -> list[str]:
    """Return the report as lines of text."""
    lines = [f"seed {report.seed}: {report.count} {name}"]
    for outcome, meaning in OUTCOMES.items():
        by_kind = {kind: n for (kind, which), n in report.outcomes.items() if which == outcome}
        files = ", ".join(f"{kind} {n}" for kind, n in sorted(by_kind.items()))
        reported = report.verified[outcome, True]
        lines.append(
            f"{sum(by_kind.values()):6} {outcome}: {meaning} ({files}); verify reports {reported}"
        )
    return lines + [f"WRONG: {problem}" for problem in report.problems]


if __name__ == "__main__":
    sys.exit(main())
