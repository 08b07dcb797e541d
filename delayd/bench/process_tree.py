"""What a process and all that it started hold in memory, sampled while they run.

Linux only (`/proc`). Counted is the proportional set size: a page that several of them share, as
forked interpreters do, counts once.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

SAMPLE_S: Final = 0.5

_PROC: Final = Path("/proc")


class MemoryPeak:
    """The peak of some bytes over its life as a context manager; `peak_bytes` when it is left."""

    def __init__(self, held_bytes: Callable[[], int], every_s: float = SAMPLE_S) -> None:
        self._held_bytes = held_bytes
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)
        self.peak_bytes = 0

    @classmethod
    def of_tree(cls, root: int) -> Self:
        """Of a process and all that it started."""
        return cls(lambda: sum(map(pss_bytes, descendants(root))))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, self._held_bytes())
            if self._over.wait(self._every_s):
                return


def descendants(root: int) -> frozenset[int]:
    """The process and all that it, or one of them, started and that still runs."""
    parents = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text(errors="replace")
            except OSError:
                continue
            # proc(5): the command may hold spaces and parentheses; the parent is field 4.
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return frozenset(found)


def pss_bytes(pid: int) -> int:
    """What it holds; 0 if it is gone."""
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
