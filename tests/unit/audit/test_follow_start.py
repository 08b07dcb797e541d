"""delayd.audit.follow: how it begins and ends, and what a line of it may hold."""

import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_settings import SETTINGS
from py4j.protocol import Py4JNetworkError

from delayd.audit import follow
from delayd.audit.errors import FollowFailedError
from delayd.audit.reading import session, stream
from delayd.audit.reading.access import Access
from delayd.audit.reading.plan import unplanned_file
from delayd.audit.reading.positions import Positions
from delayd.errors import KafkaUnreachableError
from replication.settings import Topic


def test_texts_of_others_cannot_forge_a_line_or_move_the_cursor() -> None:
    nasty = "x\x1b[2J\nalarm: lost: 0/1"
    alarm = {
        "fault": "unknown",
        "source": nasty,
        "id": nasty,
        "topic": nasty,
        "partition": 0,
        "offset": 7,
        "reason": nasty,
    }
    line = follow.line_of(alarm)
    assert line.isprintable() and "\\x1b[2J" in line
    plain = {**alarm, "source": "0/1", "id": "é", "topic": "t", "reason": "it came again"}
    assert follow.line_of(plain) == "alarm: unknown: 0/1 (id 'é') in t/0@7: it came again"
    assert follow.line_of({**plain, "id": None, "offset": None, "source": None}) == (
        "alarm: unknown:  in t: it came again"
    )


def test_a_folder_is_claimed_once_and_for_one_cluster(tmp_path: Path) -> None:
    follow.claim(tmp_path, SETTINGS)
    file = tmp_path / "cluster.json"
    written = file.stat()
    follow.claim(tmp_path, SETTINGS)
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    with pytest.raises(FollowFailedError, match="of another cluster"):
        follow.claim(tmp_path, replace(SETTINGS, buffer=Topic("delayd-buffer", "made again")))
    assert json.loads(file.read_text())["cluster"] == SETTINGS.cluster


def test_what_a_killed_follower_left_is_removed_at_the_start(tmp_path: Path) -> None:
    kept = tmp_path / "journal" / "3.json"
    left = [tmp_path / "access.json", tmp_path / "spark" / "tmp" / "blockmgr" / "x"]
    for file in (kept, *left):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    follow.remove_left(tmp_path)
    assert kept.exists() and not any(file.exists() for file in left)
    follow.remove_left(tmp_path)


def test_a_spark_that_ended_with_the_follower_is_no_failure() -> None:
    stop = threading.Event()
    stop.set()
    for failure in (Py4JNetworkError("gone"), ConnectionRefusedError(), BrokenPipeError()):
        with follow.ended_by_stop(stop):
            raise failure


def test_a_spark_that_ended_by_itself_is_a_failure_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "STOPPING_S", 0.0)
    with pytest.raises(FollowFailedError, match="memory"), follow.ended_by_stop(threading.Event()):
        raise Py4JNetworkError("gone")


def test_a_stop_is_heard_after_somebody_else_took_the_signal() -> None:
    before = signal.getsignal(signal.SIGINT)
    with follow.stop_asked() as asked:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        asked.listen()
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.wait(5)
    assert signal.getsignal(signal.SIGINT) is before


class Gone:
    """A JVM that was killed: everything fails but to wait for it."""

    def __init__(self) -> None:
        self.waited = False
        self._gateway = self
        self.proc = SimpleNamespace(stdin=self, wait=self.wait, kill=self.fail)

    def fail(self) -> Any:
        raise Py4JNetworkError("gone")

    stop = shutdown = fail

    def close(self) -> Any:
        raise BrokenPipeError

    def wait(self) -> None:
        self.waited = True


def test_the_end_of_a_session_whose_jvm_is_gone_is_silent() -> None:
    gone: Any = Gone()
    session._end(gone)
    assert gone.waited


def test_a_plan_that_could_not_be_made_leaves_word_until_one_could(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Planner:
        failure: KafkaUnreachableError | None = KafkaUnreachableError("no answer")

        def next(self, at: Any, _: Any) -> Any:
            if Planner.failure is not None:
                raise Planner.failure
            return at

        def close(self) -> None:
            pass

    start = Positions(1, "", 1, (), {}, {}, {}).to_json()
    targets = tmp_path / "targets"
    reader = stream.FollowReader(Access("b:1").write(tmp_path / "access"), {}, targets)
    monkeypatch.setattr(reader, "_planner", Planner)
    limit: Any = None
    assert reader.latestOffset(start, limit) == start
    assert unplanned_file(targets).read_text() == "no answer"
    Planner.failure = None
    assert reader.latestOffset(start, limit) == start
    assert not unplanned_file(targets).exists()
