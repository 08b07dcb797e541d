"""What the kernel says of processes: memory, processor time, bytes written.

psutil says most of it; Linux only. Processes that have ended count as nothing.
"""

import contextlib
import os
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

import psutil

SAMPLE_S: Final = 0.005
DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")


class Memory(NamedTuple):
    """Bytes in memory."""

    anon: int
    """The process's own."""
    file: int
    """Pages of mapped files, which the kernel takes back when it wants."""


def memory_of(pid: int | None = None) -> Memory:
    """Return the memory of a process, or of this one; zero if it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        held = psutil.Process(pid).memory_info()
        return Memory(held.rss - held.shared, held.shared)
    return Memory(0, 0)


def written_bytes() -> int:
    """Return how many bytes this process has, or will have, written to block devices: pages made
    dirty, less those that were thrown away before, which psutil does not tell. The file system's
    own journal and inodes are not in it."""
    lines = Path("/proc/self/io").read_text().splitlines()
    found = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
    return found["write_bytes"] - found["cancelled_write_bytes"]


def cpu_s() -> float:
    """Return this process's processor time, in user mode and in the kernel for it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def forget_caches(directory: Path) -> str:
    """Make the kernel drop what it caches of these files. Return what it dropped, in words.

    As root: all caches of the machine, inodes and folders too. Otherwise the files' pages only.
    """
    os.sync()
    try:
        DROP_CACHES.write_text("3\n")
    except OSError:
        pass
    else:
        return "caches dropped"
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
    return "pages dropped, inodes kept: not root"


def tree_of(root: int) -> Iterator[psutil.Process]:
    """Yield a process and all that it, or one of them, started and that still run."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(root)
        yield parent
        yield from parent.children(recursive=True)


def tree_memory(root: int) -> Memory:
    """Return the sums over a process and all that it started."""
    held = [memory_of(process.pid) for process in tree_of(root)]
    return Memory(sum(each.anon for each in held), sum(each.file for each in held))


def tree_cpu_s(root: int) -> float:
    """Return the processor time of a process and all that it started. Children that have ended
    count if they were waited for."""
    used_s = 0.0
    for process in tree_of(root):
        with contextlib.suppress(psutil.NoSuchProcess):
            used = process.cpu_times()
            used_s += used.user + used.system + used.children_user + used.children_system
    return used_s


def tree_pss(root: int) -> int:
    """Return the proportional set size of a process and all that it started, in bytes: a page that
    several of them share, as forked interpreters do, counts once."""
    held = 0
    for process in tree_of(root):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            held += process.memory_full_info().pss
    return held


class MemoryPeak:
    """The peak of some bytes over its life as a context manager; `peak_bytes` when it is left."""

    def __init__(self, held_bytes: Callable[[], int], every_s: float) -> None:
        self._held_bytes = held_bytes
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)
        self.peak_bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, self._held_bytes())
            if self._over.wait(self._every_s):
                return


def anon_peak(pid: int) -> MemoryPeak:
    """Return a sampler of another process's own memory, to be entered."""
    return MemoryPeak(lambda: memory_of(pid).anon, SAMPLE_S)
