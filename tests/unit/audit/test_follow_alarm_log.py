"""delayd.audit.following.alarm_log: every alarm is reported once, whenever a follower dies."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from delayd.audit.following.alarm_log import AlarmLog
from delayd.audit.following.journal import Entry
from delayd.audit.following.watched_requests import Folders


def entry(number: int, *sources: str) -> Entry:
    alarms = tuple({"fault": "lost", "source": source} for source in sources)
    return Entry(number, Folders(), {}, "", 0, {}, (), alarms=alarms)


@pytest.mark.parametrize("died_after", range(4))
def test_alarms_are_told_once_whenever_the_follower_dies(tmp_path: Path, died_after: int) -> None:
    told: list[str] = []

    class Died(BaseException):
        pass

    def tell(alarm: Mapping[str, Any]) -> None:
        if len(told) == died_after:
            raise Died
        told.append(alarm["source"])

    AlarmLog(tmp_path, tell).tell(entry(0))
    with pytest.raises(Died):
        alarm_log = AlarmLog(tmp_path, tell)
        alarm_log.tell(entry(1, "0/1", "0/2", "0/3"))
        alarm_log.tell(entry(2, "0/4"))
    died_after = -1
    again = AlarmLog(tmp_path, tell)
    again.tell(entry(1, "0/1", "0/2", "0/3"))
    again.tell(entry(2, "0/4"))
    again.tell(entry(2, "0/4"))

    assert told == ["0/1", "0/2", "0/3", "0/4"]
    lines = (tmp_path / "alarms.jsonl").read_text().splitlines()
    assert [json.loads(line)["source"] for line in lines] == told


@pytest.mark.parametrize("note", [None, b"", b"1 2\n", b"\0" * 84])
def test_alarms_in_the_file_stay_when_the_note_is_gone(tmp_path: Path, note: bytes | None) -> None:
    told: list[str] = []
    AlarmLog(tmp_path, lambda alarm: told.append(alarm["source"])).tell(entry(0, "0/1", "0/2"))
    (tmp_path / "told").unlink()
    if note is not None:
        (tmp_path / "told").write_bytes(note)
    AlarmLog(tmp_path, lambda alarm: told.append(alarm["source"])).tell(entry(1, "0/3"))
    assert sources_in(tmp_path) == told == ["0/1", "0/2", "0/3"]


@pytest.mark.parametrize("number", [1, 2])
def test_a_file_that_somebody_emptied_is_not_filled_up(tmp_path: Path, number: int) -> None:
    AlarmLog(tmp_path, lambda _: None).tell(entry(0, "0/1"))
    AlarmLog(tmp_path, lambda _: None).tell(entry(1, "0/2"))
    (tmp_path / "alarms.jsonl").write_bytes(b"")
    AlarmLog(tmp_path, lambda _: None).tell(entry(number, "0/3"))
    assert sources_in(tmp_path) == ["0/3"]


def test_a_note_of_alarms_is_synced_behind_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def fsync(number: int) -> None:
        synced.append(Path(f"/proc/self/fd/{number}").readlink().name)
        sync(number)

    monkeypatch.setattr(os, "fsync", fsync)
    AlarmLog(tmp_path, lambda _: None).tell(entry(0))
    synced.clear()
    AlarmLog(tmp_path, lambda _: None).tell(entry(1))
    assert synced == [], "nothing to keep"
    AlarmLog(tmp_path, lambda _: None).tell(entry(2, "0/1"))
    assert synced == ["alarms.jsonl", "told"]


def sources_in(work: Path) -> list[str]:
    lines = (work / "alarms.jsonl").read_text().splitlines()
    return [json.loads(line)["source"] for line in lines]
