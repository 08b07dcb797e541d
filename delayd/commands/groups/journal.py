"""The journal of a job on a group: a file of SQLite.

    job   one row: format, cluster (as it was named), op, group, when (as it was given), kind and ms
          of a reschedule, whether the list is complete
    ids   number, id, topic, due_ms (as listed), at_ms (when it is to be due, null unless that
          is asked), is_series, is_sent, verdict (null: none yet)

Invariants: an id is there once; `at_ms` is written with the id and never changes, so a second run
asks for the same time; `is_sent` is on the disk before the request is sent, and stays unless it is
known that it was not; one process at a time has the file. Memory does not grow with the ids.
"""

from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from delayd.commands.groups.change import Change, Kind
from delayd.commands.journals import opening
from delayd.errors import ConfigError

FORMAT: Final = 1
ROWS: Final = 1_000
"""Read or written at once."""
UNKNOWN: Final = "unknown"
"""In place of a verdict: it may have been done or not."""

_TABLES: Final = """
create table job (
    format integer, cluster text, op text, "group" text, "when" text, kind text, ms integer,
    is_listed integer
);
create table ids (
    number integer primary key, id text unique, topic text, due_ms integer, at_ms integer,
    is_series integer, is_sent integer default 0, verdict text
);
"""


class Listed(NamedTuple):
    """A message of the group, as it was listed."""

    id: str
    topic: str
    due_ms: int
    is_series: bool


class Row(NamedTuple):
    """An id that has no verdict yet."""

    number: int
    id: str
    at_ms: int | None


class Journal:
    """An open journal. A context manager; ConfigError if another process has it."""

    def __init__(self, path: Path, change: Change, group: str, cluster: str = "") -> None:
        """Open the journal of this job, or make it. ConfigError if the file is another job's.
        `cluster` says which cluster it is about, in any words."""
        self._path = path
        self._cluster = cluster
        with opening(path, "a job") as self._file:
            self.change = self._opened(change, group)

    def _opened(self, change: Change, group: str) -> Change:
        """Return the change as the journal has it: a delay counts from when it was made."""
        file = self._file
        if not file.execute("select 1 from sqlite_master").fetchall():
            for statement in _TABLES.split(";"):
                file.execute(statement)
            kind = None if change.kind is None else change.kind.value
            row = (FORMAT, self._cluster, change.op, group, change.text, kind, change.ms, 0)
            file.execute("insert into job values (?, ?, ?, ?, ?, ?, ?, ?)", row)
            return change
        columns = 'format, cluster, op, "group", "when", kind, ms'
        *job, kind, ms = file.execute(f"select {columns} from job").fetchone()
        if job != [FORMAT, self._cluster, change.op, group, change.text]:
            _, cluster, op, of_group, when = job
            said = " ".join(filter(None, (f"{op} --group {of_group}", when)))
            raise ConfigError(
                f"{self._path} is the journal of another job: {said}, in {cluster}",
                remedy="name another file with --job, or run that job on",
            )
        _, _, op, _, when = job
        return Change(op, None if kind is None else Kind(kind), ms, when)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def is_listed(self) -> bool:
        """Return whether the list of ids is complete."""
        return bool(self._file.execute("select is_listed from job").fetchone()[0])

    def list_ids(self, messages: Iterable[Listed]) -> None:
        """Take the ids of all messages, in place of those of a list that was not completed."""
        with self._file as file:
            file.execute("begin")
            file.execute("delete from ids")
            file.executemany(
                "insert or ignore into ids (id, topic, due_ms, at_ms, is_series)"
                " values (?, ?, ?, ?, ?)",
                (
                    (each.id, each.topic, each.due_ms, self.change.at_ms(each.due_ms), each[3])
                    for each in messages
                ),
            )
            file.execute("update job set is_listed = 1")

    def targets(self) -> dict[str, int]:
        """Return how many ids there are by target."""
        return self._counted("select topic, count(*) from ids group by topic order by topic")

    def verdicts(self) -> Counter[str]:
        """Return how many ids have each verdict."""
        counted = "select verdict, count(*) from ids where verdict is not null group by verdict"
        return Counter(self._counted(f"{counted} order by verdict"))

    def open_count(self) -> int:
        """Return how many ids have no verdict."""
        found = self._file.execute("select count(*) from ids where verdict is null")
        return int(found.fetchone()[0])

    def left_count(self) -> int:
        """Return for how many ids another run would ask: `resume` opens them."""
        asked = f"(verdict is null and not (is_sent and {self._stays()}))"
        again = f"(verdict = ? and not {self._stays()})"
        query = f"select count(*) from ids where {asked} or {again}"
        return int(self._file.execute(query, (UNKNOWN,)).fetchone()[0])

    def latest_ms(self) -> int | None:
        """Return the latest time at which a message is to be due; None if none is asked."""
        found: int | None = self._file.execute("select max(at_ms) from ids").fetchone()[0]
        return found

    def resume(self) -> None:
        """Let what is unknown be asked for again; but what may have been sent and must not be sent
        twice stays or becomes `unknown`."""
        doubtful = f"verdict is null and is_sent and {self._stays()}"
        self._file.execute(f"update ids set verdict = ? where {doubtful}", (UNKNOWN,))
        again = f"verdict = ? and not {self._stays()}"
        self._file.execute(f"update ids set verdict = null where {again}", (UNKNOWN,))

    def _stays(self) -> str:
        """Return the condition under which what may have been sent is not sent again."""
        return "0" if self.change.may_repeat(is_series=True) else "is_series"

    def open_rows(self) -> Generator[Row, None, None]:
        """Yield the ids without a verdict, each marked as sent by then; those that nobody took are
        unmarked at the end."""
        last = -1
        while rows := self._file.execute(
            "select number, id, at_ms from ids where verdict is null and number > ?"
            " order by number limit ?",
            (last, ROWS),
        ).fetchall():
            first, last = rows[0][0], rows[-1][0]
            self._file.execute(
                "update ids set is_sent = 1 where verdict is null and number between ? and ?",
                (first, last),
            )
            taken = first - 1
            try:
                for row in rows:
                    taken = row[0]
                    yield Row(*row)
            finally:
                self._unmark(taken + 1, last)

    def unmark(self, number: int) -> None:
        """Note that the request for this id was not sent after all."""
        self._unmark(number, number)

    def _unmark(self, first: int, last: int) -> None:
        if first <= last:
            unsent = "update ids set is_sent = 0 where verdict is null and number between ? and ?"
            self._file.execute(unsent, (first, last))

    def note(self, verdicts: Iterable[tuple[str, int]]) -> None:
        """Write verdicts: each with the number of its id."""
        with self._file as file:
            file.execute("begin")
            file.executemany("update ids set verdict = ? where number = ?", verdicts)

    def _counted(self, query: str) -> dict[str, int]:
        with closing(self._file.execute(query)) as found:
            return {str(name): int(count) for name, count in found}


def listed_of(message: dict[str, Any], group: str) -> Listed:
    """Return a message as the HTTP API lists it. ConfigError if it is of another group: a node that
    knows no groups lists everything."""
    if message.get("group") != group or not message["id"]:
        raise ConfigError(
            f"the node lists {message['source']}, which is not in {group}; nothing was sent",
            remedy="upgrade the node, or name another one with --admin",
        )
    is_series = message.get("cron") is not None
    return Listed(message["id"], message["topic"], message["due_ms"], is_series)
