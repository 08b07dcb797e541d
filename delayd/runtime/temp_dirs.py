"""Temporary folders of which nothing is left, though their process may be killed.

Whoever makes one first removes what processes that are gone have left under the same name. Each
holds a lock on its folder while it lives (flock(2)): the kernel lets go of it however it ends, and
it tells across containers that share the place, where process ids would mean nothing.

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
    """A new folder, removed at the end; by default where the environment wants such (TMPDIR)."""
    parent = Path(tempfile.gettempdir()) if where is None else where
    _remove_left(parent, prefix)
    made, descriptor = _make(parent, prefix)
    try:
        with made:
            yield made.name
    finally:
        os.close(descriptor)


def _make(parent: Path, prefix: str) -> tuple["tempfile.TemporaryDirectory[str]", int]:
    """A folder, and a descriptor that holds its lock."""
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
