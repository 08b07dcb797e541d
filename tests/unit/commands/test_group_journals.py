"""`delayd cancel`, `fire` and `reschedule` of a whole group: each id once, whatever kills the job.

Source: docs/guides/groups.md.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import pytest
import typer

from delayd.client.asking import Ask
from delayd.client.changing import Changer
from delayd.client.errors import (
    NotScheduledError,
    ReceiptsUnreadableError,
    VerdictUnknownError,
)
from delayd.client.outcomes import Verdict
from delayd.commands.groups import command
from delayd.commands.groups import journal as journals
from delayd.commands.groups.change import Change, Kind
from delayd.commands.groups.command import Where
from delayd.commands.groups.job import carry_out
from delayd.commands.groups.journal import Journal, Listed, listed_of
from delayd.errors import ConfigError, DelaydError, ExitCode
from delayd.testing import InMemoryDelayd

START = datetime(2027, 1, 1, tzinfo=UTC)
HOUR_MS = 3_600_000
IDS = 300
CANCEL = Change("cancel")
LATER = Change("reschedule", Kind.BY, HOUR_MS, "--by +1h")
SOON = Change("reschedule", Kind.AT, 5_000, "--in 1h")
FIRE = Change("fire")


def told(verdict: str) -> Verdict:
    return Verdict(verdict, (), None, 0, "", "0/0")


def unknown() -> DelaydError:
    return VerdictUnknownError("nothing came in time", remedy="ask again")


class Sender:
    """In place of a cluster: answers each request, in order, by a list that ends with itself."""

    def __init__(self, *answers: Verdict | DelaydError, ahead: int = 3) -> None:
        self._answers = iter(answers)
        self._ahead = ahead
        self.asked: list[tuple[str | None, int]] = []

    def __call__(self, asked: Iterable[Ask]) -> Iterator[Verdict | DelaydError]:
        requests = iter(asked)
        waiting = 0
        for each in requests:
            self.asked.append((each.id, each.asked_ms))
            waiting += 1
            if waiting == self._ahead:
                yield next(self._answers, told("done"))
                waiting -= 1
        for _ in range(waiting):
            yield next(self._answers, told("done"))


def listed(count: int = 10, *, is_series: bool = False) -> list[Listed]:
    return [Listed(f"id-{n}", f"t{n % 2}", 1_000 + n, is_series) for n in range(count)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job"


def test_a_journal_has_each_id_once_with_the_first_time(path: Path) -> None:
    with Journal(path, LATER, "g") as journal:
        journal.list_ids([*listed(), Listed("id-3", "t1", 77, False)])
        assert journal.targets() == {"t0": 5, "t1": 5} and journal.open_count() == 10
        rows = list(journal.open_rows())
        assert [(row.id, row.at_ms) for row in rows[:2]] == [
            ("id-0", HOUR_MS + 1_000),
            ("id-1", HOUR_MS + 1_001),
        ]
        assert rows[3].at_ms == HOUR_MS + 1_003


def test_what_would_be_due_before_time_is_due_at_once(path: Path) -> None:
    with Journal(path, Change("reschedule", Kind.BY, -HOUR_MS, "--by -1h"), "g") as journal:
        journal.list_ids(listed(1))
        assert [row.at_ms for row in journal.open_rows()] == [0]


def test_a_list_that_was_not_completed_is_made_anew(path: Path) -> None:
    def cut() -> Iterator[Listed]:
        yield from listed(3)
        raise KeyboardInterrupt

    with Journal(path, CANCEL, "g") as journal, pytest.raises(KeyboardInterrupt):
        journal.list_ids(cut())
    with Journal(path, CANCEL, "g") as journal:
        assert not journal.is_listed and journal.open_count() == 0
        journal.list_ids(listed(2))
        assert journal.is_listed


@pytest.mark.parametrize(
    ("change", "group", "cluster"),
    [(FIRE, "g", "c"), (CANCEL, "h", "c"), (LATER, "g", "c"), (CANCEL, "g", "d")],
    ids=["op", "group", "when", "cluster"],
)
def test_the_journal_of_another_job_is_refused(
    path: Path, change: Change, group: str, cluster: str
) -> None:
    with Journal(path, CANCEL, "g", "c"):
        pass
    with pytest.raises(ConfigError, match="another job: cancel --group g, in c"):
        Journal(path, change, group, cluster)


def test_two_runs_at_once_are_refused(path: Path) -> None:
    with Journal(path, CANCEL, "g"), pytest.raises(ConfigError, match="locked"):
        Journal(path, CANCEL, "g")
    with Journal(path, CANCEL, "g"):
        pass


def test_a_file_that_is_no_journal_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"somebody's notes" * 100)
    with pytest.raises(ConfigError, match="not a database"):
        Journal(path, CANCEL, "g")
    assert path.read_bytes() == b"somebody's notes" * 100


def test_a_delay_counts_from_the_first_run(path: Path) -> None:
    with Journal(path, SOON, "g"):
        pass
    with Journal(path, SOON._replace(ms=99_999), "g") as journal:
        assert journal.change.ms == 5_000


def test_each_verdict_is_counted(path: Path) -> None:
    sender = Sender(told("cancelled"), told("too-late"), told("cancelled"))
    with Journal(path, CANCEL, "g") as journal:
        journal.list_ids(listed(5))
        assert carry_out(journal, sender) is None
        assert journal.verdicts() == {"cancelled": 2, "too-late": 1, "done": 2}
        assert journal.open_count() == 0
    assert [id for id, _ in sender.asked] == [f"id-{n}" for n in range(5)]


def test_one_that_is_done_asks_for_nothing_more(path: Path) -> None:
    with Journal(path, CANCEL, "g") as journal:
        journal.list_ids(listed(5))
        carry_out(journal, Sender())
        again = Sender()
        assert carry_out(journal, again) is None and again.asked == []


def test_after_a_missing_answer_it_stops_and_a_second_run_goes_on(path: Path) -> None:
    with Journal(path, LATER, "g") as journal:
        journal.list_ids(listed(10))
        first = Sender(told("rescheduled"), unknown(), told("rescheduled"))
        assert isinstance(carry_out(journal, first), VerdictUnknownError)
        assert journal.verdicts()["unknown"] == 1 and len(first.asked) == 4
        assert journal.open_count() == 6
    with Journal(path, LATER, "g") as journal:
        second = Sender()
        assert carry_out(journal, second) is None
        assert journal.open_count() == 0 and "unknown" not in journal.verdicts()
    repeated = [each for each in second.asked if each in first.asked]
    assert [id for id, _ in repeated] == ["id-1"]
    assert {ms - HOUR_MS for _, ms in first.asked + second.asked} == {*range(1_000, 1_010)}


def test_what_kafka_does_not_take_stays_open(path: Path) -> None:
    refused = NotScheduledError("Kafka refused it", remedy="see why")
    with Journal(path, CANCEL, "g") as journal:
        journal.list_ids(listed(5))
        assert carry_out(journal, Sender(refused, ahead=1)) is refused
        assert journal.verdicts() == {} and journal.open_count() == 5


def test_a_series_that_may_have_been_fired_is_not_fired_again(path: Path) -> None:
    with Journal(path, FIRE, "g") as journal:
        journal.list_ids([Listed("series", "t", 1, True), Listed("once", "t", 1, False)])
        carry_out(journal, Sender(unknown(), unknown()))
        assert journal.verdicts() == {"unknown": 2}
        again = Sender()
        carry_out(journal, again)
        assert [id for id, _ in again.asked] == ["once"]
        assert journal.verdicts() == {"unknown": 1, "done": 1}


def test_of_one_that_was_killed_a_series_that_was_on_its_way_is_in_doubt(path: Path) -> None:
    with Journal(path, FIRE, "g") as journal:
        journal.list_ids(listed(4, is_series=True))
        rows = journal.open_rows()
        next(rows)
        left = Path(shutil.copy(path, path.with_name("left-by-the-killed-one")))
        rows.close()
    with Journal(left, FIRE, "g") as journal:
        again = Sender()
        carry_out(journal, again)
        assert again.asked == [] and journal.verdicts() == {"unknown": 4}


def test_a_series_that_was_not_fired_yet_when_the_job_stopped_is_fired_by_the_next_run(
    path: Path,
) -> None:
    refused = NotScheduledError("Kafka refused it", remedy="see why")
    with Journal(path, FIRE, "g") as journal:
        journal.list_ids(listed(20, is_series=True))
        first = Sender(told("fired"), refused, unknown())
        assert carry_out(journal, first) is not None and journal.left_count() == 17
    with Journal(path, FIRE, "g") as journal:
        second = Sender()
        assert carry_out(journal, second) is None
        assert journal.verdicts() == {"fired": 1, "unknown": 1, "done": 18}
    had_answers = {"id-0", "id-2", "id-3"}
    assert {id for id, _ in second.asked} == {f"id-{n}" for n in range(20)} - had_answers


def test_a_run_that_is_interrupted_leaves_what_it_did_not_send_to_the_next(path: Path) -> None:
    def interrupted(asked: Iterable[Ask]) -> Iterator[Verdict | DelaydError]:
        taken = [*islice(asked, 3)]
        yield told("fired")
        assert len(taken) == 3
        raise KeyboardInterrupt

    with Journal(path, FIRE, "g") as journal:
        journal.list_ids(listed(20, is_series=True))
        with pytest.raises(KeyboardInterrupt):
            carry_out(journal, interrupted)
        assert journal.left_count() == 17
    with Journal(path, FIRE, "g") as journal:
        assert carry_out(journal, Sender()) is None
        assert journal.verdicts() == {"fired": 1, "unknown": 2, "done": 17}


def test_an_error_before_anything_is_sent_leaves_no_doubt(path: Path) -> None:
    unread = ReceiptsUnreadableError("the receipts cannot be read; nothing was sent", remedy="")
    with Journal(path, FIRE, "g") as journal:
        journal.list_ids(listed(3, is_series=True))
        assert carry_out(journal, Sender(unread, ahead=1)) is unread
        assert journal.verdicts() == {} and journal.left_count() == 3


def test_a_run_that_had_no_answers_at_all_is_repeated(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a master nothing is answered: all is unknown, and the next run asks again."""

    class Answering:
        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> "Answering":
            return self

        def __exit__(self, *_: object) -> None: ...

        def change(self, asked: Iterable[Ask], timeout_ms: int) -> Iterator[Verdict]:
            return (told("cancelled") for _ in asked)

    where = Where("b:9092", "delayd-", None, None, None, None, "delayd")
    with Journal(path, CANCEL, "g", where.name) as journal:
        journal.list_ids(listed(3))
        carry_out(journal, Sender(unknown(), unknown(), unknown()))
        assert journal.verdicts() == {"unknown": 3}
        assert (journal.open_count(), journal.left_count()) == (0, 3)
    monkeypatch.setattr(command, "Changer", Answering)
    for is_meant in (False, True):
        with pytest.raises(typer.Exit) as ended:
            command.change_group(where, "g", CANCEL, path, is_meant, 1.0, as_json=True)
        said = json.loads(capsys.readouterr().out)
        assert ended.value.exit_code == ExitCode.FINE
        assert said["left"] == (0 if is_meant else 3)
    assert said["verdicts"] == {"cancelled": 3}


def test_nothing_is_listed_under_an_empty_name_or_by_a_node_that_knows_no_groups(
    path: Path,
) -> None:
    where = Where("b:9092", "delayd-", None, None, None, None, "delayd")
    with pytest.raises(ConfigError, match="an empty name is no group"):
        command.change_group(where, "", CANCEL, path, True, 1.0, as_json=False)
    message = {"source": "0/7", "id": "id-1", "topic": "t", "due_ms": 5, "group": "g"}
    assert listed_of(message, "g") == ("id-1", "t", 5, False)
    for other in ({"group": "h"}, {"group": None}, {"id": None}):
        with pytest.raises(ConfigError, match="0/7, which is not in g"):
            listed_of({**message, **other}, "g")
    del message["group"]
    with pytest.raises(ConfigError, match="nothing was sent"):
        listed_of(message, "g")


def test_memory_does_not_grow_with_the_ids(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more rows are read than are asked for soon."""
    monkeypatch.setattr(journals, "ROWS", 4)
    with Journal(path, CANCEL, "g") as journal:
        journal.list_ids(listed(50))
        rows = journal.open_rows()
        assert next(rows).id == "id-0"
        journal.note([("cancelled", number) for number in range(1, 45)])
        assert [row.id for row in rows] == [
            *("id-1", "id-2", "id-3"),
            *(f"id-{n}" for n in range(44, 50)),
        ]


class _KilledError(Exception):
    pass


@pytest.mark.parametrize("change", [CANCEL, LATER], ids=["cancel", "by"])
def test_killed_half_way_it_comes_to_the_same(path: Path, change: Change) -> None:
    """On a node in memory, which decides as any other does."""
    with InMemoryDelayd("orders", start=START) as kit:
        client = kit.client()
        for number in range(IDS):
            client.schedule("orders", "v", in_=10_000 + number, id=f"id-{number}", group="g")
        client.schedule("orders", "v", in_=10_000, id="other", group="other")
        before = {each.id: each.due_ms for each in kit.pending()}
        changer = Changer.over(kit._connection())

        def killed(asked: Iterable[Ask]) -> Iterator[Verdict | DelaydError]:
            yield from islice(changer.change(asked), IDS // 2)
            raise _KilledError

        def mine() -> list[Listed]:
            found = kit.pending(group="g")
            return [Listed(each.id or "", each.topic, each.due_ms, False) for each in found]

        with Journal(path, change, "g") as journal, pytest.raises(_KilledError):
            journal.list_ids(mine())
            carry_out(journal, killed)
        assert before != {each.id: each.due_ms for each in kit.pending()}
        for _ in range(2):
            with Journal(path, change, "g") as journal:
                assert journal.is_listed and carry_out(journal, changer.change) is None
                verdicts = Counter(journal.verdicts())
        after = {each.id: each.due_ms for each in kit.pending()}
        if change is CANCEL:
            assert after == {"other": before["other"]} and verdicts == {"cancelled": IDS}
        else:
            moved = {id: due + HOUR_MS * (id != "other") for id, due in before.items()}
            assert after == moved and verdicts == {"rescheduled": IDS}
