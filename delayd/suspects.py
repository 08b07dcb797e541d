"""Suspects: what to send less of, and what no more, after a broker refused a whole transaction.

Targets are checked before a step, yet a broker can refuse what the checks had let pass: rights that
were just taken away, a record that only the broker finds wrong. It names a batch, not a record, and
the transaction is lost with all that was innocent in it. So:

    a refusal that is the topic's    the topic is barred for a while
    a refusal of a single record     the record is guilty, and is turned away
    any other                        its lane is suspect: its next step may hold a sixteenth of
                                     what was sent, then a sixteenth of that, at last one record

A suspect lane's limit doubles with each of its steps that is committed, until it is whole again.
Other lanes are not limited. Pure: time is given, nothing is asked.

Not here: what becomes of what is turned away; which topics a failure names (`ProducerError`).
Invariants: all is bounded and ends by itself, so that a wrong suspicion cannot last.
Source: docs/design/frontier.md, "Targets".
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

DIVISOR: Final = 16
"""A failed transaction costs a takeover, so that few failures count for more than large steps:
4096 records are down to one after three."""

BARRED_MS: Final = 10_000
"""How long a topic is spared; by then its description has been read again."""

BARRED_MAX: Final = 1_000

GUILTY_MS: Final = 60_000
"""A guilty record leaves with the next step that is committed; this is for when none is."""

GUILTY_MAX: Final = 10_000

QUIET_MS: Final = 60_000
"""A lane that sent nothing for so long is suspect no more."""

TOPIC_WIDE: Final = frozenset(
    {
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "TOPIC_AUTHORIZATION_FAILED",
        "TOPIC_EXCEPTION",
        "UNKNOWN_TOPIC_ID",
        "UNKNOWN_TOPIC_OR_PART",
        "_UNKNOWN_TOPIC",
    }
)
"""Names of Kafka's errors that say nothing of a single record. Too few replicas may be a matter
of one partition only; its neighbours are spared with it, rather than tried one by one."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    problem: str
    until_ms: int


@dataclass(slots=True)
class _Lane:
    limit: int
    whole: int
    """How many records its step had when it became suspect."""
    last_ms: int


class Suspects:
    """Times are monotonic ms. `source` is a message's `partition/offset` in the buffer."""

    def __init__(self) -> None:
        self._barred: OrderedDict[str, _Verdict] = OrderedDict()
        self._guilty: OrderedDict[str, _Verdict] = OrderedDict()
        self._lanes: dict[int, _Lane] = {}

    def note_refused(
        self,
        now_ms: int,
        refusals: Mapping[str, str],
        text: str,
        sent: Mapping[str, tuple[int, Sequence[str]]],
    ) -> None:
        """A transaction was lost because topics refused records.

        `refusals` holds by topic Kafka's name of the error, `sent` by topic its lane and the
        sources of the records that the transaction had for it.
        """
        sent_counts: dict[int, int] = {}
        for topic, error_code in refusals.items():
            lane, sources = sent[topic]
            if error_code in TOPIC_WIDE:
                problem = f"topic {topic} refuses records: {error_code}, {text}"
                _put(self._barred, topic, _Verdict(problem, now_ms + BARRED_MS), BARRED_MAX)
            elif len(sources) == 1:
                problem = f"topic {topic} refused the record: {error_code}, {text}"
                _put(self._guilty, sources[0], _Verdict(problem, now_ms + GUILTY_MS), GUILTY_MAX)
            else:
                sent_counts[lane] = sent_counts.get(lane, 0) + len(sources)
        for lane, count in sent_counts.items():
            known = self._lanes.get(lane)
            whole = count if known is None else max(count, known.whole)
            self._lanes[lane] = _Lane(max(1, count // DIVISOR), whole, now_ms)

    def note_committed(self, now_ms: int, sent_lanes: Mapping[int, int]) -> None:
        """A transaction was committed that had so many records of each lane."""
        for lane in [lane for lane in self._lanes if sent_lanes.get(lane, 0) > 0]:
            suspect = self._lanes[lane]
            suspect.limit *= 2
            suspect.last_ms = now_ms
            if suspect.limit >= suspect.whole:
                del self._lanes[lane]

    def problem(self, now_ms: int, topic: str, source: str) -> str | None:
        """Why this message is not to be sent now; None if nothing is held against it."""
        if not self._barred and not self._guilty:
            return None
        verdict = self._barred.get(topic)
        if verdict is None or verdict.until_ms <= now_ms:
            verdict = self._guilty.get(source)
        return None if verdict is None or verdict.until_ms <= now_ms else verdict.problem

    def lane_limits(self, now_ms: int) -> Mapping[int, int]:
        """By suspect lane the largest number of records in its next step, at least 1."""
        self._forget(now_ms)
        return {lane: suspect.limit for lane, suspect in self._lanes.items()}

    def _forget(self, now_ms: int) -> None:
        for verdicts in (self._barred, self._guilty):
            # Equal terms in the order of their beginning: the oldest ends first.
            while verdicts and next(iter(verdicts.values())).until_ms <= now_ms:
                verdicts.popitem(last=False)
        for lane in [
            n for n, suspect in self._lanes.items() if now_ms - suspect.last_ms > QUIET_MS
        ]:
            del self._lanes[lane]


def _put(verdicts: OrderedDict[str, _Verdict], name: str, verdict: _Verdict, most: int) -> None:
    verdicts[name] = verdict
    verdicts.move_to_end(name)
    if len(verdicts) > most:
        verdicts.popitem(last=False)
