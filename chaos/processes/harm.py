"""Harm to a node's own files and calls, from outside: small disks that are full, a flipped byte,
fsyncs that fail.

A small disk is a tmpfs, which needs root. Invariant: `release_disks` unmounts everything that was
mounted, also if its node was killed.
"""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from chaos.backend import BackendError
from chaos.faults import wait_until

DISK_BYTES: Final = 256 << 20
FREE_MIN_BYTES: Final = 32 << 20
"""The nodes' `disk_free_min_bytes`."""

SLOT_SOON_S: Final = (4, 20)
"""Most of a slot that is due within these seconds is written, and no node has read it yet."""

END_TIMEOUT_S: Final = 10
_BALLAST: Final = "ballast"
_TIMEOUT_S: Final = 20


def mount_disk(folder: Path) -> None:
    """Mount a small disk on a folder; BackendError without root."""
    folder.mkdir(parents=True, exist_ok=True)
    run_as_root("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "chaos", str(folder))


def mounted_in(folder: Path) -> list[str]:
    """Return where something is mounted in a folder."""
    mounted = (each.mountpoint for each in psutil.disk_partitions(all=True))
    return [where for where in mounted if Path(where).is_relative_to(folder)]


def release_disks(folder: Path) -> None:
    """Unmount everything in a folder; the content is lost."""
    for where in mounted_in(folder):
        run_as_root("umount", "--lazy", where)


def fill_disk(folder: Path) -> None:
    """Fill the disk until half of what a node needs is left."""
    stat = os.statvfs(folder)
    taken = stat.f_bavail * stat.f_frsize - FREE_MIN_BYTES // 2
    if taken <= 0:
        raise BackendError(f"the disk at {folder} is full already")
    with (folder / _BALLAST).open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, taken)


def free_disk(folder: Path) -> None:
    """Undo `fill_disk`."""
    (folder / _BALLAST).unlink(missing_ok=True)


def run_as_root(*command: str) -> None:
    """Run a command of this machine; BackendError if it is not there or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except OSError as error:
        raise BackendError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise BackendError(f"{' '.join(command)}: {done.stderr.strip()} (needs root)")


def corrupt_slot(wheel: Path) -> None:
    """Flip a byte of a slot that is due soon; BackendError if there is none."""
    first, last = (int(time.time()) + after for after in SLOT_SOON_S)
    slots = [
        file
        for file in (wheel / "slots").glob("*/[0-9]*")  # not the files of whole hours
        if first <= int(file.name.partition(".")[0]) <= last and file.stat().st_size > 0
    ]
    if not slots:
        raise BackendError(f"{wheel} has no slot that is due soon")
    with max(slots, key=lambda file: file.stat().st_size).open("r+b") as slot:
        at = slot.seek(0, 2) // 2
        slot.seek(at)
        byte = slot.read(1)[0]
        slot.seek(at)
        slot.write(bytes([byte ^ 0x10]))


def fail_fsyncs(
    process_id: int, log: Path, is_running: Callable[[], bool], timeout_s: float
) -> bool:
    """Let each fsync of a process fail until it has ended; False if it has not in time."""
    calls = "fsync,fdatasync,syncfs,sync_file_range"
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-p", str(process_id)]
    command += ["-e", f"trace={calls}", "-e", f"inject={calls}:error=EIO"]
    with log.open("ab") as written:
        try:
            tracer = subprocess.Popen(command, stdout=written, stderr=written)
        except OSError as error:
            raise BackendError(f"strace, which fails fsyncs: {error}") from error
    try:
        return wait_until(lambda: not is_running(), timeout_s)
    finally:
        tracer.terminate()
        tracer.wait(END_TIMEOUT_S)
