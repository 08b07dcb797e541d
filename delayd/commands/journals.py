"""Journals of commands that go on where they were killed: files of SQLite, each one process's.

Not here: what is in them (`groups.journal`, `importing.journal`).
"""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from delayd.errors import ConfigError


@contextmanager
def opening(path: Path, of: str) -> Iterator[sqlite3.Connection]:
    """Yield the file within a transaction that is committed behind the block; it stays open, and
    this process's. `of`: whose journal it is, such as `a job`.

    It is closed if the block raises. ConfigError if another process has it, or it is no journal.
    """
    try:
        with ExitStack() as unless_opened:
            file = sqlite3.connect(path, timeout=0, isolation_level=None)
            unless_opened.callback(file.close)
            file.execute("pragma locking_mode=exclusive")
            file.execute("begin exclusive")
            yield file
            file.execute("commit")
            unless_opened.pop_all()
    except sqlite3.Error as error:
        raise ConfigError(
            f"{path} cannot be used as the journal of {of}: {error}",
            remedy="name another file with --job, or end the run that has it",
        ) from error
