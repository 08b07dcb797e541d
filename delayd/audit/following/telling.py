"""Tells of what was found: every alarm once, in a file and to whoever listens.

    alarms.jsonl    one JSON object a line, with the batch and the alarm's number in it
    told.json       which batch was told last, and how long the file was after it

An alarm is in the file before it is told. After a crash the next run goes on where the last one
stopped; an alarm is told a second time only if the crash was between telling it and `told.json`.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from delayd.audit.following.journal import Entry, write_whole


class Teller:
    """Writes and tells the alarms of one batch after the other."""

    def __init__(self, folder: Path, tell: Callable[[Mapping[str, Any]], None]) -> None:
        self._file = folder / "alarms.jsonl"
        self._mark = folder / "told.json"
        self._tell = tell
        self.told = 0
        """Alarms told in this run."""

    def tell(self, entry: Entry) -> None:
        """The alarms of this batch, unless they were told before."""
        mark = json.loads(self._mark.read_text()) if self._mark.exists() else {}
        if entry.batch <= mark.get("batch", -1):
            return
        alarms = [
            {"batch": entry.batch, "number": number, **alarm}
            for number, alarm in enumerate(entry.alarms)
        ]
        size_bytes = self._write(alarms, mark.get("bytes", 0))
        for alarm in alarms:
            self._tell(alarm)
            self.told += 1
        write_whole(self._mark, json.dumps({"batch": entry.batch, "bytes": size_bytes}))

    def _write(self, alarms: list[dict[str, Any]], before_bytes: int) -> int:
        """Behind what was told; what a crash left behind that is written anew."""
        with self._file.open("ab") as file:
            file.truncate(before_bytes)
            for alarm in alarms:
                file.write(f"{json.dumps(alarm)}\n".encode())
            file.flush()
            os.fsync(file.fileno())
            return file.seek(0, os.SEEK_END)
