"""How far an import has come: a file of SQLite with one row.

    job   format, cluster (as it was named), source, identity, mapping (SHA-256 of the file, and of
          --payload and --ttl), begun_ms, position (null: at the start), rows,
          verdicts (JSON: how many of each), is_done

One process at a time has the file. Each `note` is durable when it returns.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple, Self

from delayd.commands.journals import opening
from delayd.errors import ConfigError

FORMAT: Final = 1

_COLUMNS: Final = (
    "format, cluster, source, identity, mapping, begun_ms, position, rows, verdicts, is_done"
)


class About(NamedTuple):
    """What is imported, and where to."""

    cluster: str
    source: str
    identity: str
    mapping: str


class Journal:
    """An open journal. A context manager; ConfigError if another process has it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with opening(path, "an import") as self._file:
            self._file.execute(f"create table if not exists job ({_COLUMNS})")
            row = self._file.execute(f"select {_COLUMNS} from job").fetchone()
        self.about: About | None = None
        """None in a new journal."""
        self.begun_ms = 0
        """When the first run began, Unix ms."""
        self.position: str | None = None
        self.rows = 0
        """Before the position."""
        self.verdicts: Counter[str] = Counter()
        self.is_done = False
        if row is not None:
            if row[0] != FORMAT:
                self._file.close()
                raise ConfigError(f"{path} is of another release", remedy="use that release")
            self.about = About(*row[1:5])
            self.begun_ms, self.position, self.rows = row[5:8]
            self.verdicts, self.is_done = Counter(json.loads(row[8])), bool(row[9])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def begin(self, about: About, start: str | None, now_ms: int) -> None:
        """Note what a new journal is about, and where its source begins. ConfigError if it is about
        something else."""
        if self.about is None:
            self.about, self.position, self.begun_ms = about, start, now_ms
            self._write()
        elif self.about != about:
            names = About._fields
            other = [n for n, was, now in zip(names, self.about, about, strict=True) if was != now]
            more = ", --payload or --ttl" if other[0] == "mapping" else ""
            raise ConfigError(
                f"{self._path} is the journal of another import: it has another"
                f" {other[0]}{more}, of {self.about.source} into {self.about.cluster}",
                remedy="name another file with --job, or run that import on as it was begun",
            )

    def note(self, position: str | None, verdicts: Counter[str], *, is_done: bool = False) -> None:
        """Add verdicts of the rows up to a position."""
        self.position = position if position is not None else self.position
        self.rows += verdicts.total()
        self.verdicts += verdicts
        self.is_done = is_done
        self._write()

    def _write(self) -> None:
        assert self.about is not None, "it was begun"
        counts = json.dumps(self.verdicts)
        place = (self.begun_ms, self.position, self.rows)
        row = (FORMAT, *self.about, *place, counts, self.is_done)
        with self._file:
            self._file.execute("begin")
            self._file.execute("delete from job")
            self._file.execute(f"insert into job values ({', '.join('?' * len(row))})", row)
