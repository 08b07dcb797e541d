"""Small disks for nodes: a tmpfs each, which needs root.

Invariant: whatever was mounted is unmounted by `release`, also if its node was killed.
"""

import os
import subprocess
from pathlib import Path
from typing import Final

import psutil

from chaos.backend import BackendError

SIZE_BYTES: Final = 256 << 20
FREE_MIN_BYTES: Final = 32 << 20
"""What nodes are told to keep free."""

_BALLAST: Final = "ballast"
_TIMEOUT_S: Final = 20


def mount(folder: Path) -> None:
    """A small disk of its own; BackendError without root."""
    folder.mkdir(parents=True, exist_ok=True)
    run_as_root("mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "chaos", str(folder))


def mounted_in(folder: Path) -> list[str]:
    """Return where something is mounted in a folder."""
    mounted = (each.mountpoint for each in psutil.disk_partitions(all=True))
    return [where for where in mounted if Path(where).is_relative_to(folder)]


def release(folder: Path) -> None:
    """Unmount everything in a folder; the content is lost."""
    for where in mounted_in(folder):
        run_as_root("umount", "--lazy", where)


def fill(folder: Path) -> None:
    """Take so much that half of what a node needs is left."""
    stat = os.statvfs(folder)
    taken = stat.f_bavail * stat.f_frsize - FREE_MIN_BYTES // 2
    if taken <= 0:
        raise BackendError(f"the disk at {folder} is full already")
    with (folder / _BALLAST).open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, taken)


def free(folder: Path) -> None:
    """Undo it."""
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
