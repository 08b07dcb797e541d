"""Sparing: partitions of targets whose leaders do not answer, and how long their messages wait.

A leader that hangs neither takes records nor refuses them. The step that sent it some times out,
and the driver names what was not acknowledged. Those partitions are *spared*: no step sends to
them, and their messages are deferred, their attempts unchanged, until each has answered a probe.
Meanwhile the other partitions that their brokers lead are *suspected*, and spared too, as soon as a
step has something for them: else each of them would cost a step of its own. One that answers is
spared no more, and not suspected again of the same.

All messages of a partition are deferred to the same moments, those that come back before those
that are deferred for the first time. So what comes from one partition of the buffer keeps its
order, and none leaves before the moment at which the sparing ends. The moments are the further
apart the longer the leader hangs: each deferral writes a record.

A partition that hangs again soon after a probe was answered is spared for longer, at least: there
are leaders that answer questions and take no records.

Not here: what asks (`delayd.node.target_probes`), whether a failure names partitions of targets
alone (`delayd.node.delivery.mastership`), who leads what (`checks.py`).
Invariants: what is remembered is bounded, and ends with the grant under which it was learnt; only
answers end a sparing, so a wrong suspicion ends as soon as it is probed.
Source: docs/design/frontier.md, "A leader that hangs".
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from delayd.runtime.bounded_dict import BoundedDict

Place: TypeAlias = tuple[str, int]
"""A target and the number of one of its partitions."""

FIRST_WAKE_MS: Final = 2_000
"""From the begin of a sparing to the first moment to which messages are deferred."""

WAKE_MS_MAX: Final = 60_000
"""How far apart the moments are at most. Up to there the time that is over doubles from one to the
next: a message waits about twice as long as its leader hangs, or a minute longer."""

AHEAD_MS: Final = 1_000
"""Least time from a deferral to its moment: all nodes have ingested it by then."""

TERM_MS: Final = 5_000
"""How long a partition is spared at least when it hangs for the first time."""

TERM_MS_MAX: Final = 10 * 60 * 1000

REMEMBERED_MS: Final = 2 * TERM_MS_MAX
"""How long after its end a sparing counts for the term of the next one."""

PLACES_MAX: Final = 10_000
"""Partitions that are remembered; a step sends to the oldest of more."""

SUSPECTS_MAX: Final = 5_000
"""No more partitions are suspected if so many are remembered: those that were silent have room."""


NO_BROKERS: Final[Mapping[Place, int]] = MappingProxyType({})


class SparedPartition(NamedTuple):
    """One line of `/status`. `since_ms` is Unix time."""

    topic: str
    partition: int
    since_ms: int


@dataclass(slots=True)
class _Case:
    """Times are `now` of steps, Unix ms."""

    since_ms: int
    term_ms: int
    """How long it was spared at least when it was silent last, by which the next term goes; 0 if it
    never was."""
    least_ms: int
    """How long it lasts at least: the term, or 0 for one that is only suspected."""
    broker: int | None = None
    """Which may hang as a whole."""
    until_ms: int | None = None
    """When the sparing ends; None until the leader has answered."""

    def is_over(self, now_ms: int) -> bool:
        return self.until_ms is not None and self.until_ms <= now_ms

    def moment_ms(self, now_ms: int) -> int:
        """Return to which moment messages are deferred now."""
        if self.until_ms is not None:
            return self.until_ms
        return self.since_ms + _moment_after(now_ms + AHEAD_MS - self.since_ms)


class Sparing:
    """Used by the delivery thread; `answered` and `report` by any."""

    def __init__(self, on_spared: Callable[[], object] = lambda: None) -> None:
        """`on_spared` is called when there is something to probe."""
        self._on_spared = on_spared
        self._cases: BoundedDict[Place, _Case] = BoundedDict(PLACES_MAX)
        """Those that are over are kept for a while, for the next term."""
        self._spared: dict[str, set[int]] = {}
        self._answered: set[SparedPartition] = set()
        """What has answered and was not taken note of."""
        self.hung_since_ms: Mapping[int, int] = {}
        """The brokers that may hang as a whole, with the begin of the last sparing for it."""
        self._turned_ms = 0
        self._look_ms = 0
        """When something is over next, if nothing answers before."""
        self.report: tuple[SparedPartition, ...] = ()
        """What is spared now."""

    def note_silent(
        self, now_ms: int, places: Iterable[Place], brokers: Mapping[Place, int] = NO_BROKERS
    ) -> None:
        """Spare these partitions: what a step sent them was not acknowledged. `brokers`: those that
        may hang as a whole, by partition."""
        for place in places:
            known = self._cases.get(place)
            term_ms = TERM_MS
            if known is not None and known.until_ms is not None:
                is_soon = now_ms - known.until_ms < 2 * known.term_ms
                term_ms = min(TERM_MS_MAX, 2 * known.term_ms) if is_soon else TERM_MS
            self._cases[place] = _Case(now_ms, term_ms, term_ms, brokers.get(place))
        self._list(now_ms)
        self._on_spared()

    def suspect(self, now_ms: int, broker: int, topic: str, numbers: Iterable[int]) -> None:
        """Spare partitions that a broker leads which may hang as a whole, until they answer."""
        since_ms, is_new = self.hung_since_ms[broker], False
        for number in numbers:
            known = self._cases.get((topic, number))
            is_judged = known is not None and (known.until_ms is None or known.until_ms > since_ms)
            if not is_judged and len(self._cases) < SUSPECTS_MAX:
                term_ms = 0 if known is None else known.term_ms
                self._cases[topic, number] = _Case(now_ms, term_ms, 0)
                is_new = True
        if is_new:
            self._list(now_ms)

    def answered(self, spared: SparedPartition) -> None:
        """Note that the leader of a partition answers, as spared as it was reported."""
        self._answered.add(spared)

    def turn(self, now_ms: int) -> None:
        """Let a step begin: end what is over by now."""
        is_set_back = now_ms < self._turned_ms
        self._turned_ms = now_ms
        if not self._answered and not is_set_back and now_ms < self._look_ms:
            return
        answered, self._answered = self._answered, set()
        for (topic, number), case in self._cases.items():
            if case.until_ms is not None:
                case.until_ms = min(case.until_ms, now_ms + AHEAD_MS + WAKE_MS_MAX)
            elif (
                SparedPartition(topic, number, case.since_ms) in answered
                and now_ms - case.since_ms >= case.least_ms
            ):
                case.until_ms = case.moment_ms(now_ms)
            if now_ms < case.since_ms:  # The clock was set back.
                case.since_ms = now_ms
        for place in [p for p, case in self._cases.items() if _is_forgotten(case, now_ms)]:
            del self._cases[place]
        self._list(now_ms)

    def end(self) -> None:
        """Forget all of it: the grant is over, and another node may be master."""
        self._cases.clear()
        self._answered = set()
        self._list(0)

    def partitions_of(self, topic: str) -> set[int]:
        """Return the partitions of a topic that are spared."""
        return self._spared.get(topic, _NONE)

    def defer_ms(self, now_ms: int, topic: str, partition: int, *, is_back: bool) -> int:
        """Return how long a message for a partition that is spared is deferred, at least 1.

        `is_back`: it was deferred before, so it precedes those that are deferred for the first
        time, even if these were met before.
        """
        moment_ms = self._cases[topic, partition].moment_ms(now_ms)
        return max(1, moment_ms - now_ms) + (not is_back)

    def _list(self, now_ms: int) -> None:
        """List what is spared, from the cases."""
        spared: dict[str, set[int]] = {}
        hung_since_ms: dict[int, int] = {}
        look_ms = _NEVER_MS
        for (topic, partition), case in self._cases.items():
            if case.broker is not None and case.until_ms is None:
                since_ms = hung_since_ms.get(case.broker, 0)
                hung_since_ms[case.broker] = max(since_ms, case.since_ms)
            if not case.is_over(now_ms):
                spared.setdefault(topic, set()).add(partition)
                look_ms = min(look_ms, _NEVER_MS if case.until_ms is None else case.until_ms)
            elif case.until_ms is not None:
                look_ms = min(look_ms, case.until_ms + REMEMBERED_MS)
        self._spared, self._look_ms = spared, look_ms
        self.hung_since_ms = hung_since_ms
        self.report = tuple(
            SparedPartition(topic, number, self._cases[topic, number].since_ms)
            for topic, numbers in sorted(spared.items())
            for number in sorted(numbers)
        )


_NONE: Final[set[int]] = set()
_NEVER_MS: Final = 1 << 62


def _moment_after(gone_ms: int) -> int:
    """Return the first moment that is no sooner than this, both in ms since the begin."""
    moment_ms = FIRST_WAKE_MS
    while moment_ms < gone_ms and moment_ms < WAKE_MS_MAX:
        moment_ms *= 2
    return moment_ms + max(0, -(-(gone_ms - moment_ms) // WAKE_MS_MAX)) * WAKE_MS_MAX


def _is_forgotten(case: _Case, now_ms: int) -> bool:
    return case.until_ms is not None and now_ms >= case.until_ms + REMEMBERED_MS
