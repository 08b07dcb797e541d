"""The reading of a follower's batch: all between two positions that Kafka still has.

A batch's end is fixed before it is read, and it may be read much later: after a crash, or an
outage. *Unread* is what is before the end and will never be read: deleted meanwhile, of a target
that was made again, or of one that cannot be read when the batch has waited for it for HOLD_MS.

Not here: where a batch ends (plan.py); what follows from the unread (following/rules.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from delayd.audit.errors import AuditError
from delayd.audit.reading.plan import TARGET_TIMEOUT_MS, TIMEOUT_MS, is_leaderless
from delayd.audit.reading.positions import Positions
from delayd.audit.reading.ranges import Range
from delayd.audit.spans import listed
from delayd.bus import Cluster, Survey
from delayd.errors import DelaydError

HOLD_MS: Final = 120_000
"""How long a batch that was planned waits for a target that cannot be read since: as long as a
broker takes to come back. Then it goes on without."""

FRONTIER_OFFSETS_MAX: Final = 200
"""Only the newest frontier counts; the last record is found among so many offsets."""

PORTION_OFFSETS_MAX: Final = 100_000
"""Of a range."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a batch reads, and what it cannot."""

    ranges: tuple[Range, ...]
    unread: Mapping[str, tuple[int, ...]]
    """Topics of which something before the batch's end is never read, with the first offsets that
    Kafka still had (empty: not known)."""


def is_late(after: Positions, now_ms: int) -> bool:
    """Return whether a batch has waited long enough for its targets. `now_ms` is Unix ms."""
    return now_ms - after.at_ms > HOLD_MS


def reading_of(
    kafka: Cluster, topics: Mapping[str, str], before: Positions, after: Positions, now_ms: int
) -> Reading:
    """Return what to read between two positions; `topics` are delayd's own, by role.

    AuditError, KafkaUnreachableError while a target should be readable soon; then ask again.
    """
    moved = [topic for topic in after.next if _is_moved(before, after, topic)]
    own = {*topics.values()}
    survey = _survey(kafka, [topic for topic in moved if topic not in own], after, now_ms)
    unread: dict[str, tuple[int, ...]] = dict.fromkeys(after.compacted, ())
    ranges: list[Range] = []
    for topic in moved:
        firsts = None
        if topic in own:
            firsts = listed(kafka.start_offsets(topic, TIMEOUT_MS))
        elif not _is_back(before, after, topic):
            firsts = _firsts_of_target(kafka, survey, after, topic, now_ms)
        if firsts is None:
            unread[topic] = ()
            continue
        if topic != topics["frontier"] and _is_cut_short(before, after, topic, firsts):
            unread[topic] = firsts
        ranges += _ranges(before, after, topic, firsts, topics)
    return Reading(tuple(ranges), unread)


def _survey(kafka: Cluster, targets: list[str], after: Positions, now_ms: int) -> Survey:
    try:
        return kafka.survey(targets, TIMEOUT_MS)
    except DelaydError:  # of none; if it is Kafka as a whole, delayd's own topics will say
        if not is_late(after, now_ms):
            raise
        return Survey({}, {}, frozenset(targets))


def _firsts_of_target(
    kafka: Cluster, survey: Survey, after: Positions, topic: str, now_ms: int
) -> tuple[int, ...] | None:
    """Return the first offsets that Kafka still has; None if it cannot be read."""
    state = survey.states.get(topic)
    if state is not None and (state.may_read is False or after.is_other(topic, state.topic_id)):
        return None
    try:
        if topic in survey.silent or (state is not None and is_leaderless(state)):
            raise AuditError(f"{topic} has no leader", remedy="are all brokers up?")
        if state is not None:
            return listed(kafka.start_offsets(topic, TARGET_TIMEOUT_MS))
    except DelaydError:
        if not is_late(after, now_ms):
            raise
    return None


def _ranges(
    before: Positions,
    after: Positions,
    topic: str,
    firsts: tuple[int, ...],
    topics: Mapping[str, str],
) -> Iterable[Range]:
    begun = before.next.get(topic)
    if begun is None:  # found while planning, and not read yet
        return
    for number, end in enumerate(after.next[topic]):
        first = _at(firsts, number)
        start = max(_at(begun, number), first)
        if topic == topics["frontier"]:
            start = max(start, end - FRONTIER_OFFSETS_MAX)
        if topic != topics["buffer"]:
            first = start
        while start < end:
            stop = min(end, start + PORTION_OFFSETS_MAX)
            yield Range(topic, number, first, start, stop)
            start = stop


def _is_cut_short(before: Positions, after: Positions, topic: str, firsts: tuple[int, ...]) -> bool:
    """Return whether something was deleted that should have been read."""
    begun = before.next.get(topic)
    if begun is not None:
        return any(_at(begun, number) < first for number, first in enumerate(firsts))
    # It is to be read from a time on: if that is where it begins now, who knows since when.
    starts = after.next[topic]
    return any(0 < first >= _at(starts, number) for number, first in enumerate(firsts))


def _is_moved(before: Positions, after: Positions, topic: str) -> bool:
    is_other = before.is_other(topic, after.ids.get(topic, ""))
    return is_other or after.next[topic] != before.next.get(topic)


def _is_back(before: Positions, after: Positions, topic: str) -> bool:
    """Return whether it was made again or lost its end: then this batch only goes back in it."""
    is_other = before.is_other(topic, after.ids.get(topic, ""))
    return topic in before.next and (is_other or before.is_beyond(topic, after.next[topic]))


def _at(offsets: tuple[int, ...], number: int) -> int:
    """Return the offset of a partition; one that is new to the topic is read from its beginning."""
    return offsets[number] if number < len(offsets) else 0
