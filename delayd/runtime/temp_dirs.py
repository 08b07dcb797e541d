"""Temporary directories that are removed even after kill -9.

A process that makes one first removes those that dead processes left under the same name. Each
process holds a lock (flock(2)) on its directory while it lives. The kernel releases the lock
however the process ends. Unlike process ids, locks work across containers that share the place.

Invariant: a folder is removed by its own process, or by one that holds its lock.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def temporary_folder(prefix: str, where: Path | None = None) -> Iterator[str]:
    """Yield a new folder, removed at the end; by default where TMPDIR says."""
    parent = Path(tempfile.gettempdir()) if where is None else where
    _remove_left(parent, prefix)
    made, descriptor = _make(parent, prefix)
    try:
        with made:
            yield made.name
    finally:
        os.close(descriptor)


def _make(parent: Path, prefix: str) -> tuple["tempfile.TemporaryDirectory[str]", int]:
    """Return a folder, and a descriptor that holds its lock."""
    while True:
        made = tempfile.TemporaryDirectory(prefix=prefix, dir=parent)
        with suppress(FileNotFoundError):
            descriptor = _opened(made.name)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if Path(made.name).exists():
                return made, descriptor
            os.close(descriptor)
        made.cleanup()  # Another process took it for left, before it was locked.


def _remove_left(parent: Path, prefix: str) -> None:
    for path in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # It is a file, gone by now, somebody else's, or in use.
            descriptor = _opened(str(path))
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
            finally:
                os.close(descriptor)


def _opened(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
