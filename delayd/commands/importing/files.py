"""Rows of a file: JSON lines, or CSV with a line of names.

Source: docs/guides/importing.md, "Files".
"""

import csv
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from delayd.commands.importing.mapping import Row
from delayd.errors import ConfigError

LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A longer line ends the import: no request is that large."""
HEAD_BYTES: Final = 64 * 1024
"""By these a file is known again, though it may have grown."""
BOM: Final = b"\xef\xbb\xbf"
CSV: Final = ".csv"
JSON_LINES: Final = (".jsonl", ".ndjson")


class FileRows:
    """The rows of one file. A position is a byte, the number of the line before it, and that line's
    length and CRC-32: `1024:17:60:3735928559`."""

    def __init__(self, path: Path) -> None:
        """ConfigError if there is no such file, or its name says no format."""
        self._path = path
        self._is_csv = path.suffix.lower() == CSV
        if not self._is_csv and path.suffix.lower() not in JSON_LINES:
            raise ConfigError(
                f"{path}: the end of its name says no format",
                remedy=f"name it {', '.join(JSON_LINES)} or {CSV}; other sources are kafka:TOPIC,"
                " zset:KEY, celery:QUEUE and rabbitmq:QUEUE",
            )
        self.name = str(path.resolve())
        self.start: str | None = None
        self.disarms = False
        with self._opened() as file:
            self._size_bytes = file.seek(0, 2)

    def identity(self, known: str | None = None) -> str:
        """Return by what the file is known again: equal to `known` if it is the file of then."""
        head_bytes = int(known.split(":")[0]) if known else min(self._size_bytes, HEAD_BYTES)
        with self._opened() as file:
            return f"{head_bytes}:{hashlib.sha256(file.read(head_bytes)).hexdigest()}"

    def disarm(self) -> None:
        """Do nothing: a file delivers nothing."""

    def kept(self) -> None:
        """Return None: only reading it tells how many rows it has."""

    def close(self) -> None:
        """Do nothing: it is opened for each reading."""

    def rows(self, after: str | None) -> Iterator[Row]:
        """Yield the rows behind a position. ConfigError if the file cannot be read on."""
        with self._opened() as file:
            lines = _Lines(file, self._path)
            if not self._is_csv:
                lines.go_on(after)
                yield from _json_rows(lines)
                return
            csv.field_size_limit(LINE_BYTES_MAX)
            reader = csv.reader(lines, strict=True)
            names = self._names(reader)
            lines.go_on(after)
            try:
                yield from _csv_rows(reader, names, lines)
            except (csv.Error, UnicodeDecodeError) as error:
                # Where the next record begins, nobody knows.
                raise ConfigError(
                    f"{self._path}: what ends in line {lines.number} is not CSV: {error}",
                    remedy="export it anew, with quotes doubled inside of quotes, in UTF-8",
                ) from error

    def _names(self, reader: Iterator[list[str]]) -> list[str]:
        try:
            names = next(reader, None)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ConfigError(f"{self._path}: its line of names cannot be read: {error}") from error
        if not names or len({*names}) != len(names):
            raise ConfigError(
                f"{self._path}: the first line does not name each column once",
                remedy="begin the file with a line of the columns' names",
            )
        return names

    def _opened(self) -> BinaryIO:
        try:
            return self._path.open("rb")
        except OSError as error:
            raise ConfigError(f"cannot read {self._path}: {error.strerror}") from error


class _Lines:
    """The lines of a file as text; `position` is behind the last one."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._at = len(BOM) if file.read(len(BOM)) == BOM else 0
        self._last = b""
        self.number = 0
        file.seek(self._at)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self.raw()
        if not line:
            raise StopIteration
        return line.decode()

    @property
    def position(self) -> str:
        return f"{self._at}:{self.number}:{len(self._last)}:{zlib.crc32(self._last)}"

    def go_on(self, after: str | None) -> None:
        """Go to a position; without one, stay. ConfigError if the line before it is another one."""
        if after is None:
            return
        self._at, self.number, length, crc = map(int, after.split(":"))
        self._file.seek(self._at - length)
        self._last = self._file.read(length)
        is_whole = self._last.endswith(b"\n") or not self._file.peek(1)  # type: ignore[attr-defined]
        if len(self._last) < length or zlib.crc32(self._last) != crc or not is_whole:
            raise ConfigError(
                f"{self._path}: line {self.number} is not what it was when it was imported",
                remedy="go on with the file as it was; one that grows must grow by whole lines",
            )

    def raw(self) -> bytes:
        """Return the next line, empty at the end. ConfigError if it is too long."""
        line = self._file.readline(LINE_BYTES_MAX + 1)
        if len(line) > LINE_BYTES_MAX:
            raise ConfigError(
                f"{self._path}: line {self.number + 1} is longer than {LINE_BYTES_MAX} bytes",
                remedy="is it JSON lines, one object a line?",
            )
        self._at += len(line)
        self.number += bool(line)
        self._last = line or self._last
        return line


def _json_rows(lines: _Lines) -> Iterator[Row]:
    while line := lines.raw():
        line = line.strip()
        if not line:
            continue
        name, fields, problem = f"line {lines.number}", {}, None
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict):
                fields, problem = {}, "it is no JSON object"
        except (ValueError, RecursionError) as error:
            problem = f"it is not JSON, one object a line: {error}"
        yield _row(lines, name, fields, line, problem)


def _csv_rows(reader: Iterator[list[str]], names: list[str], lines: _Lines) -> Iterator[Row]:
    while True:
        name = f"line {lines.number + 1}"
        cells = next(reader, None)
        if cells is None:
            return
        if not cells:
            continue
        if len(cells) != len(names):
            problem = f"it has {len(cells)} columns, the first line names {len(names)}"
            yield _row(lines, name, {}, None, problem)
            continue
        # An empty cell is a missing field: CSV has no other way to say so.
        fields = {column: cell or None for column, cell in zip(names, cells, strict=True)}
        value = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
        yield _row(lines, name, fields, value, None)


def _row(
    lines: _Lines, name: str, fields: dict[str, Any], value: bytes | None, problem: str | None
) -> Row:
    numbered = {"_line": lines.number, **fields}
    return Row(lines.position, name, numbered, value, problem=problem)
