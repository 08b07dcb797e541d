"""Quarantine: what to send less of, and what no more, after a broker refused a whole transaction.

Targets are checked before a step, yet a broker can refuse what the checks had let pass: rights that
were just taken away, a record that only the broker finds wrong. It names a batch, not a record, and
the transaction is lost with all that was innocent in it. So:

    a refusal that is the topic's    the topic is barred
    a refusal of a single record     the record is guilty, and is turned away; after some of them
                                     the topic is barred
    any other                        its lane is suspect: its next step may hold a sixteenth of
                                     what was sent, then a sixteenth of that, at last one record

After two failures in a row only topics that have taken records before are sent to, then one other
at a time, then two: who works goes on while the broken ones of a crowd are found. If the step in
which one was tried fails, and the failure names nobody, it is avoided for a while: what waits for
it is put off, but has not been tried, for it may be innocent.

A suspect lane's limit doubles with each of its steps that is committed, until it is whole again.
Other lanes are not limited. A bar or a guilt ends some time after a step was committed: as long as
none is, what was learnt is needed together. A topic that has to be barred again is barred for
twice as long, until it has taken a record. Pure: time is given, nothing is asked.

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
"""How long a topic is spared at first; by then its description has been read again."""

BARRED_MS_MAX: Final = 10 * 60 * 1000

GUILTY_RECORDS_MAX: Final = 3
"""So many guilty records are the topic's fault: each costs everybody a transaction."""

BARRED_MAX: Final = 1_000

GUILTY_MS: Final = 60_000
"""A guilty record leaves with the next step that is committed; this is for when none is."""

GUILTY_MAX: Final = 10_000

QUIET_MS: Final = 60_000
"""A lane that sent nothing for so long is suspect no more."""

CAUTION_AFTER: Final = 2
"""So many failures in a row are more than one culprit."""

UNPROVEN_MAX: Final = 64
"""With so many unproven topics in a step that was committed, caution ends."""

PROVEN_MAX: Final = 10_000

PUT_OFF_MS: Final = 1_000
"""How long a message is put off that could be in the way of others."""

PUT_OFF_MS_MAX: Final = 10_000

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
class _Verdict:
    problem: str
    term_ms: int
    until_ms: int | None = None
    """None until a step has been committed with it."""

    def holds(self, now_ms: int) -> bool:
        return self.until_ms is None or now_ms < self.until_ms


@dataclass(slots=True)
class _Record:
    """What a topic has been found guilty of since it last took a record."""

    guilty_count: int = 0
    term_ms: int = BARRED_MS


@dataclass(slots=True)
class _Lane:
    limit: int
    whole: int
    """How many records its step had when it became suspect."""
    last_ms: int


class Quarantine:
    """Times are monotonic ms. `source` is a message's `partition/offset` in the buffer."""

    def __init__(self) -> None:
        self._barred: OrderedDict[str, _Verdict] = OrderedDict()
        self._guilty: OrderedDict[str, _Verdict] = OrderedDict()
        self._avoided: OrderedDict[str, _Verdict] = OrderedDict()
        self._lanes: dict[int, _Lane] = {}
        self._records: OrderedDict[str, _Record] = OrderedDict()
        self._forgot_ms = 0
        self._unserved: list[_Verdict] = []
        """Those whose term begins with the next step that is committed."""
        self._proven: OrderedDict[str, None] = OrderedDict()
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
        """A transaction was lost because topics refused records.

        `refusals` holds by topic Kafka's name of the error, `sent` by topic its lane and the
        sources of the records that the transaction had for it.
        """
        sent_counts: dict[int, int] = {}
        for topic, error_code in refusals.items():
            lane, sources = sent[topic]
            barred = self._barred.get(topic)
            if barred is not None and barred.holds(now_ms):
                continue
            if error_code in TOPIC_WIDE:
                self._bar(topic, f"topic {topic} refuses records: {error_code}, {text}")
            elif len(sources) == 1:
                problem = f"topic {topic} refused the record: {error_code}, {text}"
                self._put(self._guilty, sources[0], _Verdict(problem, GUILTY_MS), GUILTY_MAX)
                record = self._record(topic)
                record.guilty_count += 1
                if record.guilty_count >= GUILTY_RECORDS_MAX:
                    self._bar(topic, problem)
            else:
                sent_counts[lane] = sent_counts.get(lane, 0) + len(sources)
        for lane, count in sent_counts.items():
            known = self._lanes.get(lane)
            whole = count if known is None else max(count, known.whole)
            self._lanes[lane] = _Lane(max(1, count // DIVISOR), whole, now_ms)

    def note_committed(self, now_ms: int, sent: Mapping[str, tuple[int, Sequence[str]]]) -> None:
        """A transaction was committed; `sent` as in `note_refused`."""
        sent_lanes = {lane for lane, sources in sent.values() if sources}
        self._failures = 0
        if self._unproven_max is not None:
            doubled = max(1, self._unproven_max * 2)
            self._unproven_max = doubled if doubled < UNPROVEN_MAX else None
        for topic in [topic for topic, (_, sources) in sent.items() if sources]:
            self._records.pop(topic, None)
            self._proven[topic] = None
            self._proven.move_to_end(topic)
        while len(self._proven) > PROVEN_MAX:
            self._proven.popitem(last=False)
        for verdict in self._unserved:
            verdict.until_ms = now_ms + verdict.term_ms
        self._unserved.clear()
        for lane in [lane for lane in self._lanes if lane in sent_lanes]:
            suspect = self._lanes[lane]
            suspect.limit *= 2
            suspect.last_ms = now_ms
            if suspect.limit >= suspect.whole:
                del self._lanes[lane]

    def note_failed(self, tried: set[str]) -> None:
        """A transaction was lost, whatever the cause; `tried` are the unproven topics in it."""
        self._failures += 1
        if self._unproven_max is not None and len(tried) == 1:
            [topic] = tried
            self._put(self._avoided, topic, self._sentence(topic, "it may be broken"), BARRED_MAX)
        if self._failures >= CAUTION_AFTER or self._unproven_max is not None:
            self._unproven_max = 0

    @property
    def are_none(self) -> bool:
        """Is nothing held against any target or record?"""
        return self._unproven_max is None and not (self._barred or self._guilty or self._avoided)

    def put_off_ms(self, now_ms: int, topic: str, tried: set[str]) -> int:
        """How long this step should put off what is for the topic; 0 if it may send to it.

        `tried` are the unproven topics that it has sent to; this one is added.
        """
        if self._avoided and (avoided := self._avoided.get(topic)) and avoided.holds(now_ms):
            left_ms = PUT_OFF_MS if avoided.until_ms is None else avoided.until_ms - now_ms
            return max(PUT_OFF_MS, min(left_ms, PUT_OFF_MS_MAX))
        if self._unproven_max is None or topic in self._proven or topic in tried:
            return 0
        if len(tried) >= self._unproven_max:
            return PUT_OFF_MS
        tried.add(topic)
        return 0

    def problem(self, now_ms: int, topic: str, source: str) -> str | None:
        """Why this message is not to be sent now; None if nothing is held against it."""
        if not self._barred and not self._guilty:
            return None
        verdict = self._barred.get(topic)
        if verdict is None or not verdict.holds(now_ms):
            verdict = self._guilty.get(source)
        return verdict.problem if verdict is not None and verdict.holds(now_ms) else None

    def lane_limits(self, now_ms: int) -> Mapping[int, int]:
        """By suspect lane the largest number of records in its next step, at least 1."""
        self._forget(now_ms)
        return {
            lane: suspect.limit
            for lane, suspect in self._lanes.items()
            if now_ms - suspect.last_ms <= QUIET_MS
        }

    def _record(self, topic: str) -> _Record:
        record = self._records.setdefault(topic, _Record())
        self._records.move_to_end(topic)
        if len(self._records) > BARRED_MAX:
            self._records.popitem(last=False)
        return record

    def _bar(self, topic: str, problem: str) -> None:
        self._put(self._barred, topic, self._sentence(topic, problem), BARRED_MAX)

    def _sentence(self, topic: str, problem: str) -> _Verdict:
        """Longer from time to time, until the topic takes a record."""
        self._proven.pop(topic, None)
        record = self._record(topic)
        term_ms, record.term_ms = record.term_ms, min(BARRED_MS_MAX, record.term_ms * 2)
        return _Verdict(problem, term_ms)

    def _forget(self, now_ms: int) -> None:
        if now_ms - self._forgot_ms < FORGET_INTERVAL_MS:
            return
        self._forgot_ms = now_ms
        for verdicts in (self._barred, self._guilty, self._avoided):
            for name in [n for n, verdict in verdicts.items() if not verdict.holds(now_ms)]:
                del verdicts[name]
        for lane in [
            n for n, suspect in self._lanes.items() if now_ms - suspect.last_ms > QUIET_MS
        ]:
            del self._lanes[lane]

    def _put(
        self, verdicts: OrderedDict[str, _Verdict], name: str, verdict: _Verdict, most: int
    ) -> None:
        verdicts[name] = verdict
        verdicts.move_to_end(name)
        self._unserved.append(verdict)
        if len(verdicts) > most:
            verdicts.popitem(last=False)
