"""What the kernel says of processes (Linux): memory, processor time, bytes written."""

import os
import resource
from pathlib import Path
from typing import Final, NamedTuple

from delayd.bench.process_tree import MemoryPeak, descendants

SAMPLE_S: Final = 0.005
TREE_SAMPLE_S: Final = 0.1
DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")


class Memory(NamedTuple):
    """Bytes in memory."""

    anon: int
    """Its own: RssAnon."""
    file: int
    """Pages of mapped files, which the kernel takes back when it wants: RssFile."""


def memory_of(pid: int | None = None) -> Memory:
    """Of a process, or of this one. Zero if it is gone."""
    try:
        lines = Path(f"/proc/{pid or os.getpid()}/status").read_text().splitlines()
    except (OSError, ValueError):
        return Memory(0, 0)
    found = dict(line.split(":", 1) for line in lines)
    # Of a process that has ended and is not waited for there are no such lines.
    anon, file = (1024 * int(found.get(name, "0").split()[0]) for name in ("RssAnon", "RssFile"))
    return Memory(anon, file)


def written_bytes() -> int:
    """What this process had, or will have, written to block devices: pages made dirty, less those
    that were thrown away before. The file system's own journal and inodes are not in it."""
    lines = Path("/proc/self/io").read_text().splitlines()
    found = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
    return found["write_bytes"] - found["cancelled_write_bytes"]


def cpu_s() -> float:
    """What this process has used of processors, in user mode and in the kernel for it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def forget_caches(directory: Path) -> str:
    """Have the kernel forget what it remembers of these files; says what it forgot.

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


def anon_peak(pid: int) -> MemoryPeak:
    """The peak of another process's own memory, to be entered."""
    return MemoryPeak(lambda: memory_of(pid).anon, SAMPLE_S)


def tree_memory(root: int) -> Memory:
    """Of a process and all that it started: their sums, in bytes."""
    held = [memory_of(pid) for pid in descendants(root)]
    return Memory(sum(each.anon for each in held), sum(each.file for each in held))


def tree_cpu_s(root: int) -> float:
    """What a process and all that it started have used of processors; those that have ended count
    if they were waited for."""
    ticks = 0
    for pid in descendants(root):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            continue
        # proc(5): the command may hold spaces; utime, stime, cutime and cstime are fields 14 to 17.
        ticks += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def tree_anon_peak(root: int) -> MemoryPeak:
    """The peak of what a process and all that it started hold of their own, to be entered."""
    return MemoryPeak(lambda: tree_memory(root).anon, TREE_SAMPLE_S)
