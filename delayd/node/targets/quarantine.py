"""Quarantine: what the next steps send less of, or not at all, after a transaction was refused.

Targets are checked before a step, yet a broker can refuse a record that the checks let pass: rights
were just taken away, or only the broker finds the record wrong. The broker names a batch, not a
record, and the transaction is lost with all the innocent records in it. So:

    a refusal that is the topic's    the topic is quarantined
    a refusal of a single record     the record is quarantined: it is turned away; after some of
                                     them the topic is quarantined
    any other refusal                its lane is limited: its next step may hold a sixteenth of what
                                     was sent, then a sixteenth of that, at last one record

After two failures in a row a step sends only to topics that have taken records before (proven
ones), then to one other, then to two: targets that work go on while the broken ones of a crowd are
found. If the step in which one was tried fails, and the failure names no topic, the topic is
avoided for a while: its messages are deferred and do not count as tried, for it may be innocent.

The limit of a lane doubles with each of its steps that is committed, until the lane is whole again.
Other lanes are not limited. A quarantine ends some time after a step was committed: as long as
none is, all that was learnt is needed together. A topic that is quarantined again stays so for
twice as long, until it has taken a record. Pure: the time is given, and nothing is asked.

Not here: what becomes of a message that is turned away, which topics a failure names
(`ProducerError`).
Invariants: all is bounded and ends by itself, so that a wrong suspicion cannot last.
Source: docs/design/frontier.md, "Targets".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from delayd.runtime.bounded_dict import BoundedDict

DIVISOR: Final = 16
"""A failed transaction costs a takeover, so that few failures count for more than large steps:
4096 records are down to one after three."""

TOPIC_MS: Final = 10_000
"""How long a topic is quarantined at first; by then its description has been read again."""

TOPIC_MS_MAX: Final = 10 * 60 * 1000

TOPICS_MAX: Final = 1_000

TOPIC_RECORDS_MAX: Final = 3
"""So many quarantined records are the topic's fault: each costs everybody a transaction."""

RECORD_MS: Final = 60_000
"""A quarantined record leaves with the next step that is committed; this is for when none is."""

RECORDS_MAX: Final = 10_000

QUIET_MS: Final = 60_000
"""A lane that sent nothing for so long is limited no more."""

CAUTION_AFTER: Final = 2
"""So many failures in a row have more than one cause."""

UNPROVEN_MAX: Final = 64
"""With so many unproven topics in a step that was committed, caution ends."""

PROVEN_MAX: Final = 10_000

DEFER_MS: Final = 1_000
"""How long a message is deferred that could be in the way of others."""

DEFER_MS_MAX: Final = 10_000

FORGET_INTERVAL_MS: Final = 1_000

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


@dataclass(slots=True)
class _Case:
    problem: str
    term_ms: int
    until_ms: int | None = None
    """None until a step has been committed with it."""

    def holds(self, now_ms: int) -> bool:
        return self.until_ms is None or now_ms < self.until_ms


@dataclass(slots=True)
class _History:
    """What a topic has refused since it last took a record."""

    record_count: int = 0
    term_ms: int = TOPIC_MS
    """Of its next quarantine."""


@dataclass(slots=True)
class _Lane:
    limit: int
    whole: int
    """How many records its step had before it was limited."""
    last_ms: int


class Quarantine:
    """Times are monotonic ms. `source` is a message's `partition/offset` in the buffer."""

    def __init__(self) -> None:
        self._topics: BoundedDict[str, _Case] = BoundedDict(TOPICS_MAX)
        self._records: BoundedDict[str, _Case] = BoundedDict(RECORDS_MAX)
        """By source."""
        self._avoided: BoundedDict[str, _Case] = BoundedDict(TOPICS_MAX)
        """Topics that may be broken."""
        self._histories: BoundedDict[str, _History] = BoundedDict(TOPICS_MAX)
        self._lanes: dict[int, _Lane] = {}
        """Those that are limited."""
        self._forgot_ms = 0
        self._unserved: list[_Case] = []
        """Those whose term begins with the next step that is committed."""
        self._proven: BoundedDict[str, None] = BoundedDict(PROVEN_MAX)
        """Topics that have taken records, the latest last."""
        self._failures = 0
        """In a row."""
        self._unproven_max: int | None = None
        """How many other topics a step may send to; None for any number."""

    def note_refused(
        self,
        now_ms: int,
        refusals: Mapping[str, str],
        text: str,
        sent: Mapping[str, tuple[int, Sequence[str]]],
    ) -> None:
        """Note that a transaction was lost because topics refused records.

        `refusals` holds by topic Kafka's name of the error, `sent` by topic its lane and the
        sources of the records that the transaction had for it.
        """
        sent_counts: dict[int, int] = {}
        for topic, error_code in refusals.items():
            lane, sources = sent[topic]
            known = self._topics.get(topic)
            if known is not None and known.holds(now_ms):
                continue
            if error_code in TOPIC_WIDE:
                problem = f"topic {topic} refuses records: {error_code}, {text}"
                self._put(self._topics, topic, self._case(topic, problem))
            elif len(sources) == 1:
                problem = f"topic {topic} refused the record: {error_code}, {text}"
                self._put(self._records, sources[0], _Case(problem, RECORD_MS))
                history = self._history(topic)
                history.record_count += 1
                if history.record_count >= TOPIC_RECORDS_MAX:
                    self._put(self._topics, topic, self._case(topic, problem))
            else:
                sent_counts[lane] = sent_counts.get(lane, 0) + len(sources)
        for lane, count in sent_counts.items():
            limited = self._lanes.get(lane)
            whole = count if limited is None else max(count, limited.whole)
            self._lanes[lane] = _Lane(max(1, count // DIVISOR), whole, now_ms)

    def note_committed(self, now_ms: int, sent: Mapping[str, tuple[int, Sequence[str]]]) -> None:
        """Note that a transaction was committed; `sent` as in `note_refused`."""
        sent_lanes = {lane for lane, sources in sent.values() if sources}
        self._failures = 0
        if self._unproven_max is not None:
            doubled = max(1, self._unproven_max * 2)
            self._unproven_max = doubled if doubled < UNPROVEN_MAX else None
        for topic in [topic for topic, (_, sources) in sent.items() if sources]:
            self._histories.pop(topic, None)
            self._proven[topic] = None
        for case in self._unserved:
            case.until_ms = now_ms + case.term_ms
        self._unserved.clear()
        for lane in self._lanes.keys() & sent_lanes:
            limited = self._lanes[lane]
            limited.limit *= 2
            limited.last_ms = now_ms
            if limited.limit >= limited.whole:
                del self._lanes[lane]

    def note_failed(self, tried: set[str]) -> None:
        """Note that a transaction was lost; `tried` are the unproven topics in it."""
        self._failures += 1
        if self._unproven_max is not None and len(tried) == 1:
            [topic] = tried
            self._put(self._avoided, topic, self._case(topic, "it may be broken"))
        if self._failures >= CAUTION_AFTER or self._unproven_max is not None:
            self._unproven_max = 0

    @property
    def is_empty(self) -> bool:
        """True if nothing is quarantined or avoided."""
        return self._unproven_max is None and not (self._topics or self._records or self._avoided)

    def defer_ms(self, now_ms: int, topic: str, tried: set[str]) -> int:
        """Return how long this step defers messages for the topic; 0 if it may send them.

        `tried` are the unproven topics that it has sent to; this one is added.
        """
        if self._avoided and (avoided := self._avoided.get(topic)) and avoided.holds(now_ms):
            left_ms = DEFER_MS if avoided.until_ms is None else avoided.until_ms - now_ms
            return max(DEFER_MS, min(left_ms, DEFER_MS_MAX))
        if self._unproven_max is None or topic in self._proven or topic in tried:
            return 0
        if len(tried) >= self._unproven_max:
            return DEFER_MS
        tried.add(topic)
        return 0

    def problem(self, now_ms: int, topic: str, source: str) -> str | None:
        """Return why this message is turned away now; None if it is not."""
        if not self._topics and not self._records:
            return None
        case = self._topics.get(topic)
        if case is None or not case.holds(now_ms):
            case = self._records.get(source)
        return case.problem if case is not None and case.holds(now_ms) else None

    def lane_limits(self, now_ms: int) -> Mapping[int, int]:
        """Return by limited lane the largest number of records in its next step, at least 1."""
        self._forget(now_ms)
        return {
            number: lane.limit
            for number, lane in self._lanes.items()
            if now_ms - lane.last_ms <= QUIET_MS
        }

    def _history(self, topic: str) -> _History:
        history = self._histories[topic] = self._histories.get(topic) or _History()
        return history

    def _case(self, topic: str, problem: str) -> _Case:
        """Return a new case: a longer one each time, until the topic takes a record."""
        self._proven.pop(topic, None)
        history = self._history(topic)
        term_ms, history.term_ms = history.term_ms, min(TOPIC_MS_MAX, history.term_ms * 2)
        return _Case(problem, term_ms)

    def _put(self, cases: BoundedDict[str, _Case], name: str, case: _Case) -> None:
        cases[name] = case
        self._unserved.append(case)

    def _forget(self, now_ms: int) -> None:
        if now_ms - self._forgot_ms < FORGET_INTERVAL_MS:
            return
        self._forgot_ms = now_ms
        for cases in (self._topics, self._records, self._avoided):
            for name in [name for name, case in cases.items() if not case.holds(now_ms)]:
                del cases[name]
        for number in [n for n, lane in self._lanes.items() if now_ms - lane.last_ms > QUIET_MS]:
            del self._lanes[number]
