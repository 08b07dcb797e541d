"""Sparing: partitions of targets whose leaders do not answer, and how long their messages wait.

A leader that hangs neither takes records nor refuses them. The step that sent it some times out,
and the driver names what was not acknowledged. That partition is *spared*: no step sends to it, and
its messages are deferred, their attempts unchanged, until it has answered a probe. All of them are
deferred to the same moments, so that what was deferred in rank order becomes due again in that
order, and none leaves before the moment at which the sparing ends.

A partition that hangs again soon after a probe was answered is spared for longer, at least: there
are leaders that answer questions and take no records.

Not here: what asks (`delayd.node.target_probes`), whether a failure names partitions of targets
alone (`delayd.node.delivery.mastership`).
Invariants: what is remembered is bounded; only answers end a sparing, so a wrong suspicion ends as
soon as it is probed.
Source: docs/design/frontier.md, "A leader that hangs".
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from delayd.runtime.bounded_dict import BoundedDict

Place: TypeAlias = tuple[str, int]
"""A target and the number of one of its partitions."""

WAKE_EVERY_MS: Final = 10_000
"""How far apart the moments are to which messages are deferred: each deferral writes a record."""

AHEAD_MS: Final = 1_000
"""Least time from a deferral to its moment: all nodes have ingested it by then."""

TERM_MS: Final = 5_000
"""How long a partition is spared at least when it hangs for the first time."""

TERM_MS_MAX: Final = 10 * 60 * 1000

PLACES_MAX: Final = 10_000
"""Partitions that are remembered; a step sends to the oldest of more."""


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
    until_ms: int | None = None
    """When the sparing ends; None until the leader has answered."""

    def moment_ms(self, now_ms: int) -> int:
        """Return to which moment messages are deferred now."""
        if self.until_ms is not None:
            return self.until_ms
        gone_ms = now_ms + AHEAD_MS - self.since_ms
        return self.since_ms + -(-gone_ms // WAKE_EVERY_MS) * WAKE_EVERY_MS


class Sparing:
    """Used by the delivery thread; `answered` and `report` by any."""

    def __init__(self, on_spared: Callable[[], object] = lambda: None) -> None:
        """`on_spared` is called when there is something to probe."""
        self._on_spared = on_spared
        self._cases: BoundedDict[Place, _Case] = BoundedDict(PLACES_MAX)
        """Those that are over are kept for a while, for the next term."""
        self._spared: dict[str, set[int]] = {}
        self._answered: set[str] = set()
        """Topics that have answered and were not taken note of."""
        self.report: tuple[SparedPartition, ...] = ()
        """What is spared now."""

    def note_silent(self, now_ms: int, places: Iterable[Place]) -> None:
        """Spare these partitions: what a step sent them was not acknowledged."""
        for place in places:
            known = self._cases.get(place)
            term_ms = TERM_MS
            if known is not None and known.until_ms is not None:
                is_soon = now_ms - known.until_ms < 2 * known.term_ms
                term_ms = min(TERM_MS_MAX, 2 * known.term_ms) if is_soon else TERM_MS
            self._cases[place] = _Case(now_ms, term_ms)
        self._list(now_ms)
        self._on_spared()

    def answered(self, topic: str) -> None:
        """Note that the leaders of all of a topic's partitions answer."""
        self._answered.add(topic)

    def turn(self, now_ms: int) -> None:
        """Let a step begin: end what is over by now."""
        if not self._cases:
            return
        answered, self._answered = self._answered, set()
        for (topic, _), case in self._cases.items():
            if now_ms < case.since_ms:  # The clock was set back.
                case.since_ms = now_ms
            if case.until_ms is None and topic in answered:
                if now_ms - case.since_ms >= case.term_ms:
                    case.until_ms = case.moment_ms(now_ms)
            elif case.until_ms is not None:
                case.until_ms = min(case.until_ms, now_ms + 2 * WAKE_EVERY_MS)
        for place in [p for p, case in self._cases.items() if _is_forgotten(case, now_ms)]:
            del self._cases[place]
        self._list(now_ms)

    def partitions_of(self, topic: str) -> set[int]:
        """Return the partitions of a topic that are spared."""
        return self._spared.get(topic, _NONE)

    def defer_ms(self, now_ms: int, topic: str, partition: int) -> int:
        """Return how long messages for a partition that is spared are deferred, at least 1."""
        return max(1, self._cases[topic, partition].moment_ms(now_ms) - now_ms)

    def _list(self, now_ms: int) -> None:
        """List what is spared, from the cases."""
        spared: dict[str, set[int]] = {}
        for (topic, partition), case in self._cases.items():
            if case.until_ms is None or now_ms < case.until_ms:
                spared.setdefault(topic, set()).add(partition)
        if spared != self._spared:
            self._spared = spared
            self.report = tuple(
                SparedPartition(topic, number, self._cases[topic, number].since_ms)
                for topic, numbers in sorted(spared.items())
                for number in sorted(numbers)
            )


_NONE: Final[set[int]] = set()


def _is_forgotten(case: _Case, now_ms: int) -> bool:
    return case.until_ms is not None and now_ms - case.until_ms > 2 * TERM_MS_MAX
