"""An import: each row is sent, and its answer counted.

What stops it: an answer that is missing, because there seems to be no master then, or a request
that Kafka does not take. A later run goes on behind the last row before which all are answered;
what is sent twice by that is delivered once, as long as the cluster remembers its id.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from delayd.client.asking import Ask, refuse_beyond
from delayd.client.errors import RequestRefusedError
from delayd.client.outcomes import Verdict
from delayd.commands.importing.journal import Journal
from delayd.commands.importing.mapping import Row, RowError, RowMapping
from delayd.errors import ConfigError, DelaydError
from delayd.request import RequestLimits

ROWS: Final = 1_000
"""Noted at once."""
MALFORMED: Final = "malformed"
"""In place of a verdict: nothing was sent."""
FINE: Final = "scheduled"
"""The verdict by which a row is where it should be."""
MALFORMED_MAX: Final = 10_000
"""If so many are none at the start, nothing is imported."""
CUT: Final = "see that it runs there; nothing is lost, and --resume goes on with what was begun"
"""What to do when the connection to a source is."""
REFUSED: Final = "mend what it refuses, and --resume if the import was begun"

Send: TypeAlias = Callable[[Iterable[Ask]], Iterator[Verdict | DelaydError]]
"""Sends requests and yields the answer to each, in order, as `Changer.change` does."""
Problem: TypeAlias = Callable[[str, str], None]
"""Takes where a row is, and what is wrong with it."""


class Kept(NamedTuple):
    """Messages that were taken from whoever delivered them, all of them, imported or not."""

    where: str
    messages: int
    rest: str = ""
    """What is where they were taken from, in words: it is not imported. Empty if nothing is."""


class Source(Protocol):
    """Where rows come from."""

    name: str
    start: str | None
    """Where it begins, if that is not plain."""
    disarms: bool
    """Whether an import takes the messages from whoever delivers them now."""

    def identity(self, known: str | None = None) -> str:
        """Return by what the source is known again."""

    def rows(self, after: str | None) -> Iterator[Row]:
        """Yield the rows behind a position; without one, what there is, wherever it is now."""

    def disarm(self) -> str | None:
        """Take the messages from whoever delivers them now; return the position before the first.

        Again after a crash, it does what is left. Once it has returned, rows stay as they are."""

    def kept(self) -> "Kept | None":
        """Return what was taken and is kept; None if the source disarms nothing."""

    def close(self) -> None:
        """Give back what it holds open."""


class Requests:
    """Makes requests of rows; what delayd would refuse is a problem of the row."""

    def __init__(
        self, mapping: RowMapping, buffer: str, limits: RequestLimits | None, now_ms: int
    ) -> None:
        """`limits`: None if nobody told them."""
        self._mapping = mapping
        self._buffer = buffer
        self.limits = limits
        self.now_ms = self.begun_ms = now_ms
        """Delays count from `begun_ms`."""

    def of(self, row: Row) -> Ask:
        """Return the request of a row. RowError."""
        try:
            asked = self._mapping.ask(row, self._buffer, self.begun_ms)
            if self.limits is not None:
                refuse_beyond(asked, self.limits, self.now_ms)
        except RequestRefusedError as error:
            raise RowError(str(error)) from error
        return asked


class Looked(NamedTuple):
    """What a dry run has seen."""

    rows: int
    malformed: int
    targets: Counter[str]
    overdue: int
    """Rows that are due already."""
    first_ms: int | None
    last_ms: int | None
    """When the first and the last of them are due."""

    def fields(self) -> dict[str, Any]:
        """Return it as JSON."""
        return self._asdict()


def look(rows: Iterable[Row], requests: Requests, problem: Problem) -> Looked:
    """Make the request of each row, and send none."""
    now_ms, count, malformed, overdue = requests.now_ms, 0, 0, 0
    targets: Counter[str] = Counter()
    first_ms = last_ms = None
    for row in rows:
        count += 1
        try:
            asked = requests.of(row)
        except RowError as error:
            malformed += 1
            problem(row.name, str(error))
            continue
        due_ms = asked.due_ms(now_ms)
        overdue += due_ms < now_ms
        first_ms = due_ms if first_ms is None else min(first_ms, due_ms)
        last_ms = due_ms if last_ms is None else max(last_ms, due_ms)
        targets[dict(asked.headers)["delayd-topic"].decode()] += 1  # type: ignore[union-attr]
    return Looked(count, malformed, targets, overdue, first_ms, last_ms)


def refuse_wrong_mapping(source: Source, requests: Requests) -> None:
    """Raise ConfigError if none of the first rows is a request: nothing is disarmed for that."""
    why = ""
    for row in islice(source.rows(None), ROWS):
        try:
            requests.of(row)
            return
        except RowError as error:
            why = why or f"{row.name}: {error}"
    if why:
        raise ConfigError(
            f"none of the first {ROWS:,} rows is a request, so nothing was taken: {why}",
            remedy="correct the mapping, and see --dry-run",
        )


@dataclass(slots=True)
class _Waiting:
    """A row that was sent; or rows, one behind the other, for which nothing was."""

    position: str
    name: str
    malformed: int = 0


class Import:
    """One run. Use it once."""

    def __init__(
        self,
        journal: Journal,
        source: Source,
        requests: Requests,
        problem: Problem,
        tell: Callable[[int], None] = lambda rows: None,
    ) -> None:
        """`tell` gets how many rows are behind it, now and then."""
        self._journal = journal
        self._source = source
        self._requests = requests
        self._problem = problem
        self._tell = tell
        self._waiting: deque[_Waiting] = deque()
        self._stopped_by: DelaydError | None = None
        self._counted: Counter[str] = Counter()
        self._behind: str | None = None

    def run(self, send: Send) -> DelaydError | None:
        """Send the rows behind the journal's position; return the error that stopped it, None if
        none did."""
        is_done = False
        try:
            for answer in send(self._asked()):
                self._take_malformed()
                if self._stopped_by is None:
                    self._take_answer(answer)
            if self._stopped_by is None:
                self._take_malformed()
                is_done = True
        finally:
            self._journal.note(self._behind, self._counted, is_done=is_done)
        return self._stopped_by

    def _asked(self) -> Iterator[Ask]:
        made = self._journal.rows
        for row in self._source.rows(self._journal.position):
            if self._stopped_by is not None:
                return
            try:
                ask = self._requests.of(row)
            except RowError as error:
                self._note_malformed(row, str(error), is_first=not made)
                continue
            made += 1
            self._waiting.append(_Waiting(row.position, row.name))
            yield ask

    def _note_malformed(self, row: Row, why: str, is_first: bool) -> None:
        """Raise ConfigError for many at the start: the mapping is not of this source."""
        self._problem(row.name, why)
        if not self._waiting or not self._waiting[-1].malformed:
            self._waiting.append(_Waiting(row.position, row.name))
        last = self._waiting[-1]
        last.position, last.malformed = row.position, last.malformed + 1
        if is_first and last.malformed == MALFORMED_MAX:
            self._waiting.clear()
            remedy = "correct the mapping, see --dry-run, and remove the journal"
            if self._source.disarms:
                remedy = "correct the mapping, and import what was taken itself with another --job"
            raise ConfigError(
                f"none of the first {MALFORMED_MAX:,} rows is a request: {why}", remedy=remedy
            )

    def _take_answer(self, answer: Verdict | DelaydError) -> None:
        if not isinstance(answer, Verdict):
            self._stopped_by = answer  # this row and those behind it are sent again
            return
        if answer.verdict != FINE:
            self._problem(self._waiting[0].name, f"{answer.verdict}: {answer.detail}")
        self._count(answer.verdict, 1)

    def _take_malformed(self) -> None:
        while self._waiting and (count := self._waiting[0].malformed):
            self._count(MALFORMED, count)

    def _count(self, verdict: str, rows: int) -> None:
        self._behind = self._waiting.popleft().position
        self._counted[verdict] += rows
        if self._counted.total() >= ROWS:
            self._journal.note(self._behind, self._counted)
            self._counted = Counter()
            self._tell(self._journal.rows)
