"""`delayd import`: each row once, with its verdict, whatever kills the import.

Source: docs/guides/importing.md.
"""

import base64
import json
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from long_tests import long_ones

from delayd.client.asking import Ask
from delayd.client.changing import Changer
from delayd.client.errors import VerdictUnknownError
from delayd.client.outcomes import Verdict
from delayd.commands.importing import job as jobs
from delayd.commands.importing.files import FileRows
from delayd.commands.importing.job import Import, Requests, look
from delayd.commands.importing.journal import About, Journal
from delayd.commands.importing.mapping import Row, RowError, RowMapping, mapping_of
from delayd.commands.importing.sources import Given, source_of
from delayd.errors import ConfigError, DelaydError
from delayd.testing import InMemoryDelayd

START = datetime(2027, 1, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
HOUR_MS = 3_600_000
ROWS = 300
MAPPING = """
topic = "orders"
id = "old-{id}"
due = "{run_at}"
unit = "s"
"""
ABOUT = About("c", "s", "i", "m")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "map.toml").write_text(MAPPING)
    return tmp_path


def mapping(folder: Path, text: str = MAPPING) -> RowMapping:
    (folder / "map.toml").write_text(text)
    return mapping_of(folder / "map.toml")


def row(value: bytes | None = b"row", **fields: Any) -> Row:
    return Row("1", "line 1", fields, value)


def asked(folder: Path, more: str = "", **fields: Any) -> Ask:
    return mapping(folder, MAPPING + more).ask(
        row(**{"id": 7, "run_at": 1.5, **fields}), "b", START_MS
    )


def headers(ask: Ask) -> dict[str, bytes | None]:
    return dict(ask.headers)


def requests(folder: Path, text: str = MAPPING) -> Requests:
    return Requests(mapping(folder, text), "delayd-buffer", None, START_MS)


def written(folder: Path, rows: Iterable[Any], name: str = "rows.jsonl") -> Path:
    path = folder / name
    lines = (each if isinstance(each, str) else json.dumps(each) for each in rows)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def some_rows(count: int = ROWS) -> list[dict[str, Any]]:
    return [{"id": n, "run_at": START_MS // 1000 + 60 + n, "name": f"n{n}"} for n in range(count)]


@contextmanager
def shallow() -> Iterator[None]:
    """Leave little of the stack, as a deep caller does."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(450)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


class Problems(list[tuple[str, str]]):
    def __call__(self, name: str, why: str) -> None:
        self.append((name, why))


# Mappings.


def test_a_row_becomes_a_request_that_asks_for_receipts(folder: Path) -> None:
    made = asked(
        folder,
        'key = "{who.name}"\nvalue = "{body}"\ngroup = "{who.id}"\nlate = "10m"\n'
        '[headers]\norigin = "old"\ntrace = "{trace}"\nkind = "k-{who.id}"\n',
        run_at=1_800_000_000,
        who={"name": "Ann", "id": 42},
        body={"a": [1, "ü"]},
    )
    found = headers(made)
    assert found["delayd-topic"] == b"orders" and found["delayd-id"] == b"old-7"
    assert found["delayd-due"] == b"1800000000000" and found["delayd-receipt"] == b"yes"
    assert (found["delayd-key"], found["delayd-group"]) == (b"Ann", b"42")
    assert (found["origin"], found["kind"]) == (b"old", b"k-42") and "trace" not in found
    assert made.value == '{"a":[1,"ü"]}'.encode()


@pytest.mark.parametrize(
    ("unit", "given", "due_ms"),
    [
        ("s", 1_800_000_000.0001, 1_800_000_000_001),
        ("s", "1800000000", 1_800_000_000_000),
        ("ms", 1_800_000_000_000, 1_800_000_000_000),
        ("us", 1_800_000_000_000_001, 1_800_000_000_001),
        ("ns", 1_800_000_000_000_000_001, 1_800_000_000_001),
    ],
)
def test_a_due_time_in_any_unit_is_never_early(
    folder: Path, unit: str, given: Any, due_ms: int
) -> None:
    text = MAPPING.replace('"s"', f'"{unit}"')
    made = mapping(folder, text).ask(row(id=1, run_at=given), "b", START_MS)
    assert headers(made)["delayd-due"] == str(due_ms).encode()


def test_a_due_time_may_be_a_text_or_a_delay(folder: Path) -> None:
    assert headers(asked(folder, run_at="2027-03-28T09:00:00Z"))["delayd-due"] == (
        b"2027-03-28T09:00:00Z"
    )
    with pytest.raises(RowError, match="has no offset"):
        asked(folder, run_at="2027-03-28T09:00")
    delayed = mapping(folder, 'topic = "t"\nid = "{id}"\ndelay = "{wait}s"\n')
    made = delayed.ask(row(id=1, wait=30), "b", START_MS)
    assert headers(made)["delayd-due"] == b"%d" % (START_MS + 30_000), "the same in each run"


def test_a_value_is_the_row_or_a_field_also_in_base64(folder: Path) -> None:
    assert asked(folder).value == b"row"
    with pytest.raises(RowError, match="absent} is missing"):
        asked(folder, 'value = "{absent}"\n')
    text = base64.b64encode(b"\0\xff").decode()
    encoded = 'value = "{body}"\nencoding = "base64"\n'
    assert asked(folder, encoded, body=text).value == b"\0\xff"
    with pytest.raises(RowError, match="not base64"):
        asked(folder, encoded, body="?")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"run_at": None}, "it has no due"),
        ({"id": None}, "the field id is missing"),
        ({"run_at": "1" * 50}, "more than 40 digits"),
        ({"run_at": "soon"}, "^bad-due"),
        ({"run_at": 10**12}, 'is no time in "s": is unit right'),
        ({"run_at": 1_800_000}, "is unit right"),
        ({"partition": "9" * 5_000}, "cannot be read"),
        ({"deep": json.loads("[" * 600 + "]" * 600)}, "cannot be read"),
        ({"deep": {"bytes": b"x"}}, "cannot be read"),
    ],
)
def test_a_row_that_is_no_request_says_why(folder: Path, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(RowError, match=why):
        text = MAPPING + 'partition = "{partition}"\nkey = "{deep}"\n'
        with shallow():
            requests(folder, text).of(row(**{"id": 7, "run_at": 1, **fields}))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('topic = "t"\nid = "{id}"\n', "exactly one of due and delay"),
        ('topic = "t"\ndue = "{d}"\n', "id: field required"),
        (MAPPING + 'tpoic = "t"\n', "tpoic"),
        (MAPPING + 'key = "{a!r}"\n', "the name of a field"),
        (MAPPING + 'key = "{a"\n', "expected '}'"),
        (MAPPING + "partition = 3\n", "partition"),
        (MAPPING + '[headers]\na = "{}"\n', "the name of a field"),
        ("topic", "not TOML"),
    ],
)
def test_a_mapping_that_makes_no_sense_is_refused(folder: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        mapping(folder, text)


# Files.


def test_rows_of_json_lines(folder: Path) -> None:
    path = written(folder, ["\ufeff" + '{"a": 1}', "", "[1]", "{", '{"a": 2}'])
    rows = list(FileRows(path).rows(None))
    assert [(each.name, each.fields.get("a")) for each in rows] == [
        *(("line 1", 1), ("line 3", None), ("line 4", None), ("line 5", 2)),
    ]
    assert rows[0].value == b'{"a": 1}'
    assert [bool(each.problem) for each in rows] == [False, True, True, False]
    assert "one object a line" in (rows[2].problem or "")
    assert [list(FileRows(path).rows(each.position)) for each in rows] == [
        rows[n + 1 :] for n in range(4)
    ]


def test_rows_of_csv(folder: Path) -> None:
    lines = ["id,a.text,due", '1,"two\nlines, and ""more""",5', "", "2,,6", "3,x", "4,y,7"]
    path = written(folder, lines, "r.csv")
    rows = list(FileRows(path).rows(None))
    assert [each.fields.get("a.text") for each in rows] == [
        *('two\nlines, and "more"', None, None, "y"),
    ]
    assert [each.name for each in rows] == ["line 2", "line 5", "line 6", "line 7"]
    assert rows[2].problem == "it has 2 columns, the first line names 3"
    assert json.loads(rows[1].value or b"") == {"id": "2", "a.text": None, "due": "6"}
    assert [list(FileRows(path).rows(each.position)) for each in rows] == [
        rows[n + 1 :] for n in range(4)
    ]
    named = mapping(folder, 'topic = "t"\nid = "{id}"\ndue = "{due}"\nvalue = "{a.text}"\n')
    assert named.ask(rows[3], "b", START_MS).value == b"y", "a column may have a dot in its name"


@pytest.mark.parametrize("line", [b'2,"a"b,6', b'2,"a\xff\n666,1,7\nb",6'])
def test_a_record_that_is_no_csv_ends_the_import(folder: Path, line: bytes) -> None:
    """What comes behind it might be a part of it."""
    path = folder / "r.csv"
    path.write_bytes(b"id,text,due\n1,a,5\n" + line + b"\n3,c,7\n")
    rows = FileRows(path).rows(None)
    assert next(rows).fields["id"] == "1"
    with pytest.raises(ConfigError, match="line 3 is not CSV"):
        next(rows)


def test_a_file_that_is_another_one_is_not_gone_on_with(folder: Path) -> None:
    path = written(folder, some_rows(5))
    whole = path.read_bytes()
    places = [each.position for each in FileRows(path).rows(None)]
    longer = whole + b'{"id": 9}\n'
    for content, is_known in (
        *((whole, True), (longer, True), (whole[:-1], False), (whole[:-1] + b"7\n", False)),
        *((b"", False), (whole.replace(b'"n4"', b'"x4"'), False)),
    ):
        path.write_bytes(content)
        following = FileRows(path).rows(places[-1])
        if is_known:
            assert [each.fields["id"] for each in following] == [9] * (content == longer)
        else:
            with pytest.raises(ConfigError, match="line 5 is not what it was"):
                next(following)


def test_a_last_line_that_was_not_whole_is_not_gone_on_with(folder: Path) -> None:
    path = folder / "r.jsonl"
    path.write_bytes(b'{"id": 1}')
    [only] = FileRows(path).rows(None)
    assert list(FileRows(path).rows(only.position)) == []
    path.write_bytes(b'{"id": 1}23\n')
    with pytest.raises(ConfigError, match="grow by whole lines"):
        next(FileRows(path).rows(only.position))


def test_a_file_without_a_format_or_names_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="says no format"):
        FileRows(written(folder, [], "rows.txt"))
    with pytest.raises(ConfigError, match="cannot read"):
        FileRows(folder / "none.jsonl")
    given = Given("b", None, None, None, None, False)
    for source, why in (("redis:a", "sources are kafka:TOPIC"), ("kafka:", "needs a name")):
        with pytest.raises(ConfigError, match=why):
            source_of(source, given)
    for names in ([], ["a,a"]):
        with pytest.raises(ConfigError, match="name each column once"):
            list(FileRows(written(folder, names, "r.csv")).rows(None))


def test_a_file_is_known_again_when_it_has_grown(folder: Path) -> None:
    path = written(folder, some_rows(3))
    known = FileRows(path).identity()
    path.write_text(path.read_text() + '{"id": 9}\n')
    assert FileRows(path).identity(known) == known
    path.write_text("{}" + path.read_text())
    assert FileRows(path).identity(known) != known


# Imports.


def imported(
    kit: InMemoryDelayd, folder: Path, path: Path, **more: Any
) -> tuple[Counter[str], Problems]:
    problems = Problems()
    send = Changer.over(kit._connection()).change
    with Journal(folder / "job") as journal:
        source = FileRows(path)
        journal.begin(ABOUT, source.start, START_MS)
        assert Import(journal, source, requests(folder), problems, **more).run(send) is None
        assert journal.is_done and journal.rows == journal.verdicts.total()
        return Counter(journal.verdicts), problems


def test_each_row_is_scheduled_with_its_own_due_time_and_delivered_then(folder: Path) -> None:
    with InMemoryDelayd("orders", start=START) as kit:
        verdicts, problems = imported(kit, folder, written(folder, some_rows()))
        assert verdicts == {"scheduled": ROWS} and not problems
        due = {each.id: each.due_ms for each in kit.pending()}
        assert due == {f"old-{n}": START_MS + 60_000 + n * 1_000 for n in range(ROWS)}
        kit.clock.advance("1h")
        values = [json.loads(each.value or b"") for each in kit.delivered("orders")]
        assert values == some_rows()


def test_what_is_refused_or_malformed_is_said_and_counted(folder: Path) -> None:
    rows = some_rows(6)
    rows[1]["run_at"] = None
    rows[3]["id"] = 2
    rows[4]["id"] = 0
    rows[4] = {**rows[0]}
    rows.append({"id": 99})
    with InMemoryDelayd("orders", start=START) as kit:
        verdicts, problems = imported(kit, folder, written(folder, rows))
    assert verdicts == {"scheduled": 4, "malformed": 2, "replaced": 1}
    assert sorted(name for name, _ in problems) == ["line 2", "line 4", "line 7"]
    assert [why for _, why in problems if why.startswith("replaced: ")]


class _KilledError(Exception):
    pass


@pytest.mark.parametrize("away_s", [0, 60 + ROWS // 2, 3_600])
@pytest.mark.parametrize("answered", [ROWS // 2, *long_ones(1, ROWS - 1)])
def test_killed_and_resumed_each_row_is_there_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, answered: int, away_s: int
) -> None:
    """Also those that were delivered before it was resumed."""
    monkeypatch.setattr(jobs, "ROWS", 7)
    with InMemoryDelayd("orders", start=START) as kit:
        path = written(folder, some_rows())
        changer = Changer.over(kit._connection())

        def killed(asks: Iterable[Ask]) -> Iterator[Verdict | DelaydError]:
            yield from islice(changer.change(asks), answered)
            raise _KilledError

        with Journal(folder / "job") as journal, pytest.raises(_KilledError):
            journal.begin(ABOUT, None, START_MS)
            Import(journal, FileRows(path), requests(folder), Problems()).run(killed)
        with Journal(folder / "job") as journal:
            assert not journal.is_done and journal.rows == answered
        kit.clock.advance(f"{away_s}s")
        verdicts, problems = imported(kit, folder, path)
        assert verdicts == {"scheduled": ROWS} and not problems
        kit.clock.advance("1h")
        assert [each.header("delayd-id") for each in kit.delivered("orders")] == [
            f"old-{n}" for n in range(ROWS)
        ]


def test_after_a_missing_answer_it_stops_and_goes_on_from_there(folder: Path) -> None:
    path = written(folder, some_rows(10))
    unknown = VerdictUnknownError("nothing came in time", remedy="ask again")

    def send(asks: Iterable[Ask]) -> Iterator[Verdict | DelaydError]:
        ahead: deque[int] = deque()
        for n, _ in enumerate(asks):
            ahead.append(n)
            if len(ahead) == 3:
                yield answer(ahead.popleft())
        yield from map(answer, ahead)

    def answer(n: int) -> Verdict | DelaydError:
        return unknown if n in (4, 5) else Verdict("scheduled", (), 0, 0, "", "0/0")

    with Journal(folder / "job") as journal:
        journal.begin(ABOUT, None, START_MS)
        run = Import(journal, FileRows(path), requests(folder), Problems())
        assert run.run(send) is unknown
        assert (journal.rows, journal.is_done) == (4, False)
        [following] = islice(FileRows(path).rows(journal.position), 1)
        assert following.fields["id"] == 4


@pytest.mark.parametrize("good", [0, 3])
def test_a_mapping_of_another_source_is_refused_but_not_a_run_of_bad_rows(
    folder: Path, monkeypatch: pytest.MonkeyPatch, good: int
) -> None:
    monkeypatch.setattr(jobs, "MALFORMED_MAX", 20)
    bad: list[Any] = [{"name": n} for n in range(100)]
    path = written(folder, [*some_rows(good), *bad, *some_rows(4)[3:]])
    with InMemoryDelayd("orders", start=START) as kit:
        if not good:
            with pytest.raises(ConfigError, match="none of the first 20 rows"):
                imported(kit, folder, path)
            return
        verdicts, problems = imported(kit, folder, path)
    assert verdicts == {"scheduled": 4, "malformed": 100} and len(problems) == 100


def test_what_was_taken_is_not_to_be_forgotten_with_its_journal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal alone knows where that is."""
    monkeypatch.setattr(jobs, "MALFORMED_MAX", 20)
    path = written(folder, [{"name": n} for n in range(100)])
    for disarms, remedy in ((False, "remove the journal"), (True, "import what was taken itself")):
        source = FileRows(path)
        source.disarms = disarms
        with Journal(folder / f"job-{disarms}") as journal:
            journal.begin(ABOUT, None, START_MS)
            run = Import(journal, source, requests(folder), Problems())
            with pytest.raises(ConfigError) as error:
                run.run(lambda asks: (pytest.fail("it is sent") for _ in asks))
            assert remedy in error.value.remedy


def test_a_dry_run_says_what_there_is_and_sends_nothing(folder: Path) -> None:
    rows = [*some_rows(5), {"id": 9, "run_at": START_MS // 1000 - 60}, {"id": 10}]
    problems = Problems()
    seen = look(FileRows(written(folder, rows)).rows(None), requests(folder), problems)
    assert (seen.rows, seen.malformed, seen.overdue) == (7, 1, 1)
    assert seen.targets == {"orders": 6} and [name for name, _ in problems] == ["line 7"]
    assert (seen.first_ms, seen.last_ms) == (START_MS - 60_000, START_MS + 64_000)


def test_the_journal_of_another_import_is_refused(folder: Path) -> None:
    with Journal(folder / "job") as journal:
        journal.begin(ABOUT, None, START_MS)
        with pytest.raises(ConfigError, match="cannot be used"):
            Journal(folder / "job")
    for name in About._fields:
        other = ABOUT._replace(**{name: "another"})
        with Journal(folder / "job") as journal, pytest.raises(ConfigError, match=name):
            journal.begin(other, None, START_MS)
