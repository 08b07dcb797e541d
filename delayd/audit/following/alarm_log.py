"""The log of alarms: reports each alarm once, in a file and to the caller.

    alarms.jsonl    one JSON object a line, with the batch and the alarm's number in it
    told            four numbers: the last batch, how many of its alarms were told, and the length
                    of alarms.jsonl before and after them

An alarm is in the file before it is told, and noted when it was told. After a crash the next run
goes on behind that note: an alarm can be told twice only if the crash was between it and its note,
some microseconds. (The note is synced once a batch: after a loss of power the alarms of that batch
may be told again; in the file they are once.)

Invariant: only alarms of the batch that the note names are cut off the file. Without a note, or if
somebody made the file shorter, they go behind what is there.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from delayd.audit.following.journal import Entry
from delayd.runtime.atomic_file import sync_folder


class _Note(NamedTuple):
    batch: int = -1
    told: int = 0
    before_bytes: int = 0
    after_bytes: int = 0


class AlarmLog:
    """A log of alarms, written batch after batch."""

    def __init__(self, folder: Path, tell: Callable[[Mapping[str, Any]], None]) -> None:
        self._file = folder / "alarms.jsonl"
        self._noted = folder / "told"
        self._tell = tell
        self.told = 0
        """Alarms told in this run."""

    def tell(self, entry: Entry) -> None:
        """Report the alarms of this batch that were not reported before."""
        last = self._last()
        if entry.batch < last.batch:
            return
        is_again = entry.batch == last.batch
        alarms = [
            {"batch": entry.batch, "number": number, **alarm}
            for number, alarm in enumerate(entry.alarms)
        ]
        size_bytes = self._file.stat().st_size if self._file.exists() else 0
        before_bytes = size_bytes
        if last.batch >= 0:
            before_bytes = min(size_bytes, last.before_bytes if is_again else last.after_bytes)
        told = last.told if is_again else 0
        if last.batch < 0 and alarms:  # or else nobody knows what to cut off after a crash
            self._note(_Note(entry.batch, told, before_bytes, before_bytes), is_synced=True)
        after_bytes = self._write(alarms, before_bytes)
        self._note(_Note(entry.batch, told, before_bytes, after_bytes), is_synced=bool(alarms))
        for number, alarm in enumerate(alarms[told:], told + 1):
            self._tell(alarm)
            self._note(_Note(entry.batch, number, before_bytes, after_bytes))
            self.told += 1

    def _write(self, alarms: list[dict[str, Any]], before_bytes: int) -> int:
        """Write alarms behind those of earlier batches, over what a crash left of them; return the
        length."""
        with self._file.open("ab") as file:
            file.truncate(before_bytes)
            for alarm in alarms:
                file.write(f"{json.dumps(alarm)}\n".encode())
            file.flush()
            if alarms:
                os.fsync(file.fileno())
            return file.seek(0, os.SEEK_END)

    def _last(self) -> _Note:
        """Return the note; that of no batch if there is none that can be read."""
        words = self._noted.read_bytes().split() if self._noted.exists() else []
        if len(words) != len(_Note._fields) or not all(word.isdigit() for word in words):
            return _Note()
        return _Note(*map(int, words))

    def _note(self, note: _Note, *, is_synced: bool = False) -> None:
        # In place and of one length: a process that is killed leaves the old note or the new one.
        is_new = not self._noted.exists()
        number = os.open(self._noted, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(number, b"%020d %020d %020d %020d\n" % note, 0)
            if is_synced:
                os.fsync(number)
        finally:
            os.close(number)
        if is_new:
            sync_folder(self._noted.parent)
