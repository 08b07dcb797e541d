"""The reports that a node keeps, on a real disk.

Source: docs/reference/http.md, "Audits".
"""

import errno
import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from manual_clock import ManualClock
from published_audits import MADE_MS, PAGE, body_of, published, report

from delayd.cluster.audit_reports import id_of
from delayd.node.monitoring.api import kept_audits
from delayd.node.monitoring.api.kept_audits import AHEAD_MAX_MS, AUDITS_MAX, KeptAudits
from delayd.node.monitoring.api.problems import MalformedError, NotKeptError, NotKnownError

ROOM = 10**9


class Shelf:
    """A node's folder, opened anew for each step, as after a restart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "audits"
        self.room = ROOM

    @property
    def kept(self) -> KeptAudits:
        return KeptAudits(self.folder, "c", ManualClock(MADE_MS), lambda: self.room)

    def ids(self) -> list[str]:
        return [each.id for each in self.kept.summaries()]

    def keep(self, said: dict[str, Any], page: str = PAGE) -> str:
        id, body = published(said, page)
        assert self.kept.keep(id, body)
        return id


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_a_report_is_listed_and_read_as_it_was_sent(shelf: Shelf) -> None:
    assert shelf.ids() == []
    said = report(verdict="failed", found={"lost": 2, "early": 1})
    id = shelf.keep(said, "<p>Größe</p>")
    [listed] = shelf.kept.summaries()
    assert (listed.id, listed.made_ms, listed.verdict) == (id, MADE_MS, "failed")
    assert listed.found == {"lost": 2, "early": 1} and listed.messages == 20_000
    assert (listed.nodes, listed.compared, listed.notes) == (2, 1, 1)
    assert (listed.wall_ms, listed.version) == (9_000, "0.2.0")
    assert shelf.kept.read(id) == (said, "<p>Größe</p>")
    assert not shelf.kept.keep(*published(said, "<p>Größe</p>")), "it is there"
    with pytest.raises(NotKnownError):
        shelf.kept.read("../" + id)


def test_the_newest_are_kept_in_whatever_order_they_come(shelf: Shelf) -> None:
    times = [MADE_MS - number for number in range(AUDITS_MAX + 5)]
    for made_ms in (*times[5:], *times[:5]):
        shelf.keep(report(made_ms))
    assert [each.made_ms for each in shelf.kept.summaries()] == times[:AUDITS_MAX]
    assert len(list(shelf.folder.iterdir())) == AUDITS_MAX
    with pytest.raises(MalformedError, match="newer reports") as refused:
        shelf.keep(report(times[-1]))
    assert refused.value.answered == 409
    assert len(shelf.ids()) == AUDITS_MAX


def test_a_node_that_runs_on_keeps_the_newest(shelf: Shelf) -> None:
    running = shelf.kept
    for number in range(AUDITS_MAX + 5):
        assert running.keep(*published(report(MADE_MS - AUDITS_MAX + number)))
    assert len(running.summaries()) == len(list(shelf.folder.iterdir())) == AUDITS_MAX


def test_large_ones_leave_room_for_fewer(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_audits, "BYTES_MAX", 30_000)
    ids = [shelf.keep(report(MADE_MS - 9 + number), "x" * 9_000) for number in range(5)]
    assert shelf.ids() == ids[:1:-1]


@pytest.mark.parametrize("made_ms", [MADE_MS + AHEAD_MAX_MS + 1, 10**13, 0])
def test_a_report_of_no_time_that_can_be_is_refused(shelf: Shelf, made_ms: int) -> None:
    with pytest.raises(MalformedError):
        shelf.keep(report(made_ms))
    assert shelf.ids() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"verdict": "fine"},
        {"verdict": "ok", "found": {"lost": 1}},
        {"verdict": "failed"},
        {"found": {"<b>lost</b>": 1}},
        {"accepted": -1},
        {"accepted": "7"},
        {"nodes": None},
        {"version": "v" * 101},
        {"lateness_ms": float("nan")},
        {"cluster": "another"},
    ],
)
def test_what_is_no_report_of_this_cluster_is_refused(shelf: Shelf, wrong: dict[str, Any]) -> None:
    with pytest.raises(MalformedError) as refused:
        shelf.keep(report(**wrong))
    assert refused.value.answered == (409 if "cluster" in wrong else 422)
    assert not shelf.folder.exists()


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b"[" * 100_000, b'{"report": {}}', b'{"report": {}, "page": "\\ud800"}'],
)
def test_what_is_no_json_of_this_form_is_refused(shelf: Shelf, body: bytes) -> None:
    with pytest.raises(MalformedError):
        shelf.kept.keep(id_of(MADE_MS, body), body)


def test_an_id_of_another_body_is_refused(shelf: Shelf) -> None:
    """What is proved is the id; so it must prove the body."""
    id, _ = published(report())
    with pytest.raises(MalformedError, match="the id is not that"):
        shelf.kept.keep(id, body_of(report(accepted=1)))


@pytest.mark.parametrize("at", ["first byte", "middle", "last byte", "cut", "longer", "empty"])
def test_a_damaged_report_is_passed_over_and_may_be_published_again(shelf: Shelf, at: str) -> None:
    said = report()
    other, id = shelf.keep(report(MADE_MS - 1)), shelf.keep(said)
    running = shelf.kept
    assert running.read(id).report == said
    file = shelf.folder / id
    content = bytearray(file.read_bytes())
    places = {"first byte": 0, "middle": len(content) // 2, "last byte": -1}
    if at in places:
        content[places[at]] ^= 1
    ends = {"cut": content[:-1], "longer": content + b"x", "empty": b""}
    file.write_bytes(bytes(ends.get(at, content)))
    with pytest.raises(NotKnownError):
        running.read(id)
    for kept in (running, shelf.kept):
        assert [each.id for each in kept.summaries()] == [other]
    assert shelf.kept.keep(*published(said))
    assert shelf.ids() == [id, other] and shelf.kept.read(id).report == said


def test_a_report_that_a_person_removes_is_known_no_more(shelf: Shelf) -> None:
    other, id = shelf.keep(report(MADE_MS - 1)), shelf.keep(report())
    running = shelf.kept
    assert len(running.summaries()) == 2
    (shelf.folder / id).unlink()
    with pytest.raises(NotKnownError):
        running.read(id)
    assert [each.id for each in running.summaries()] == [other]


def test_files_of_a_future_clock_or_another_cluster_take_no_place(shelf: Shelf) -> None:
    shelf.folder.mkdir()
    for number in range(AUDITS_MAX):
        for said in (report(MADE_MS + 2 * AHEAD_MAX_MS + number), report(cluster=f"c{number}")):
            id, body = published(said)
            (shelf.folder / id).write_bytes(body)
    id = shelf.keep(report(MADE_MS - 1))
    assert shelf.ids() == [id]


def test_what_a_killed_process_did_not_let_go_goes_at_the_start(shelf: Shelf) -> None:
    ids = [shelf.keep(report(MADE_MS - number)) for number in range(AUDITS_MAX)]
    newest, body = published(report(MADE_MS + 1))
    (shelf.folder / newest).write_bytes(body)
    assert shelf.ids() == [newest, *ids[:-1]]
    assert len(list(shelf.folder.iterdir())) == AUDITS_MAX


def test_an_old_report_that_stays_on_the_disk_does_not_undo_the_new_one(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(AUDITS_MAX):
        shelf.keep(report(MADE_MS - number))
    running = shelf.kept

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "unlink", refuse)
    id, body = published(report(MADE_MS + 1))
    assert running.keep(id, body)
    assert running.summaries()[0].id == id and len(running.summaries()) == AUDITS_MAX


def test_a_later_release_may_say_more(shelf: Shelf) -> None:
    body = json.dumps({"report": report(), "page": PAGE, "more": 7}).encode()
    id = id_of(MADE_MS, body)
    assert shelf.kept.keep(id, body)
    assert shelf.kept.read(id) == (report(), PAGE)


def test_foreign_files_are_left_alone(shelf: Shelf) -> None:
    id = shelf.keep(report())
    (shelf.folder / "notes.txt").write_text("of a person")
    (shelf.folder / published(report(MADE_MS - 2))[0]).mkdir()
    shelf.keep(report(MADE_MS - 1))
    assert shelf.ids()[0] == id and len(shelf.ids()) == 2
    assert (shelf.folder / "notes.txt").read_text() == "of a person"


def test_a_disk_that_lacks_the_room_is_told_and_stays_as_it_is(shelf: Shelf) -> None:
    id = shelf.keep(report(MADE_MS - 1))
    for room in (-5, len(body_of(report())) - 1):
        shelf.room = room
        with pytest.raises(NotKeptError, match="the disk room for"):
            shelf.keep(report())
    assert shelf.ids() == [id] == [file.name for file in shelf.folder.iterdir()]


def test_a_disk_that_fills_up_meanwhile_is_told_and_nothing_is_left(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = shelf.keep(report(MADE_MS - 1))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotKeptError, match="No space left"):
        shelf.keep(report())
    assert [id] == [file.name for file in shelf.folder.iterdir()]


def _killed_before_the_rename(folder: Path) -> None:
    def end(draft: Path, file: Path) -> Path:
        os.kill(os.getpid(), signal.SIGKILL)
        return file

    Path.replace = end  # type: ignore[method-assign,assignment]
    Shelf(folder).keep(report())


def test_a_kill_between_write_and_rename_leaves_what_was_there(
    shelf: Shelf, tmp_path: Path
) -> None:
    id = shelf.keep(report(MADE_MS - 1))
    process = multiprocessing.get_context("fork").Process(
        target=_killed_before_the_rename, args=(tmp_path,)
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert len(list(shelf.folder.iterdir())) == 2, "there is a draft"
    assert shelf.ids() == [id]
    newer = shelf.keep(report(MADE_MS + 1))  # another draft than the one that was left
    assert shelf.ids() == [newer, id]
    assert len(list(shelf.folder.iterdir())) == 2, "the draft is gone"
