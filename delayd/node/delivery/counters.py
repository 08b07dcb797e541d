"""Counters of a running node: numbers in memory, since its process began.

The delivery threads write, one at a time, and any thread reads without a lock: each number is right
by itself, two of them may be of different moments. Not here: how they are shown
(`delayd.node.monitoring.metrics`), and what is only looked up when somebody asks
(`delayd.node.monitoring.node_view`).

Invariant: bounded, whatever names the requests bring: TOPICS_MAX topics, all others are OTHER.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping
from threading import Lock
from typing import Final, NamedTuple

TOPICS_MAX: Final = 100
"""Topics with a histogram of their own, those that were delivered to first: about 2,000 samples."""

OTHER: Final = "other"
"""Stands for every further topic; one of that name is counted with them."""

LATENESS_BOUNDS_MS: Final = (
    *(5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000),
    *(60_000, 300_000, 3_600_000),
)
"""Upper bounds, each included. A healthy step takes some ms; an hour is a long night."""

STEP_BOUNDS_MS: Final = (2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)
"""Upper bounds, each included. A step is cut to take about 200 ms; its time-out is 5 s."""


RECENT_MS: Final = 300_000
"""What is said of late messages is of so long, and up to MARK_MS more."""
MARK_MS: Final = 60_000


class Histogram:
    """Counts durations by fixed bounds, and beyond the last one."""

    __slots__ = ("bounds_ms", "counts", "sum_ms")

    def __init__(self, bounds_ms: tuple[int, ...]) -> None:
        self.bounds_ms = bounds_ms
        self.counts = [0] * (len(bounds_ms) + 1)
        self.sum_ms = 0

    def add(self, duration_ms: int) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds_ms, duration_ms)] += 1
        self.sum_ms += duration_ms

    def add_since(self, times_ms: list[int], until_ms: int) -> None:
        """Count the time from each of these until then; sorts them.

        On the hot path: one search per bound that is reached, instead of one per message.
        """
        times_ms.sort()
        older = len(times_ms)
        self.sum_ms += older * until_ms - sum(times_ms)
        for place, bound_ms in enumerate(self.bounds_ms):
            if not older:
                return
            beyond = bisect_left(times_ms, until_ms - bound_ms, 0, older)
            self.counts[place] += older - beyond
            older = beyond
        self.counts[-1] += older


class Mark(NamedTuple):
    """What had been delivered at a time."""

    made_ms: int
    """Nothing that was counted later was delivered before."""
    last_ms: int
    """When the last message that was counted by then was delivered."""
    counts: dict[str, tuple[int, ...]]


class RecentLateness:
    """How late messages were lately, by target: what was counted since one of a few marks.

    One thread calls `note`, any thread `since`. Times are the broker's.
    """

    def __init__(self, histograms: Mapping[str, Histogram]) -> None:
        self._histograms = histograms
        self._marks: deque[Mark] = deque([Mark(0, 0, {})], 2 + RECENT_MS // MARK_MS)
        self._last_ms = 0

    def note(self, at_ms: int) -> None:
        """Before messages are counted that were delivered at this time."""
        if at_ms - self._marks[-1].made_ms >= MARK_MS:
            counts = {topic: tuple(each.counts) for topic, each in self._histograms.items()}
            self._marks.append(Mark(at_ms, self._last_ms, counts))
        self._last_ms = max(self._last_ms, at_ms)

    def since(self, now_ms: int) -> dict[str, list[int]]:
        """Return how many messages of the last RECENT_MS were how late, by target: counts for
        LATENESS_BOUNDS_MS, and beyond."""
        if self._last_ms <= now_ms - RECENT_MS:
            return {}
        marks = list(self._marks)
        before = [mark for mark in marks if mark.last_ms <= now_ms - RECENT_MS]
        base = (before or marks)[-1 if before else 0].counts
        found = {}
        for topic, histogram in list(self._histograms.items()):
            former = base.get(topic, (0,) * len(histogram.counts))
            counts = [now - then for now, then in zip(histogram.counts, former, strict=True)]
            if any(counts):
                found[topic] = counts
        return found


class StepCounters:
    """Counters of the steps of one node, over all its masterships. Delivery threads write."""

    def __init__(self) -> None:
        self.failed = 0
        """Steps that ended in an error: the mastership ended with them."""
        self.stale_reads = 0
        """First steps that were not committed because the read before them was stale."""
        self.drift_ms: int | None = None
        """How far the broker's clock was from this node's at the last step, beyond what the
        moments of sending and of the report explain; None before the first one."""
        self.committed_count = 0
        self.took = Histogram(STEP_BOUNDS_MS)
        self.messages: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.letters: Counter[str] = Counter()
        self.lateness: dict[str, Histogram] = {}
        """By target; a reader lists it at once, because it grows. So does the other one."""
        self.smoothing_lateness: dict[str, Histogram] = {}
        self.recent_lateness = RecentLateness(self.lateness)
        self._lock = Lock()

    def committed(
        self,
        *,
        took_ms: int,
        messages: Mapping[str, int],
        verdicts: Mapping[str, int],
        letters: Mapping[str, int],
    ) -> None:
        """Count a committed step: messages by fate, receipts by verdict, dead letters by reason."""
        with self._lock:
            self.committed_count += 1
            self.took.add(took_ms)
            self.messages.update(messages)
            self.verdicts.update(verdicts)
            self.letters.update(letters)

    def delivered(self, dues_ms: Mapping[str, list[int]], at_ms: int) -> None:
        """Count by target how late messages were at `at_ms`, given their due times; sorts the
        lists."""
        with self._lock:
            if any(dues_ms.values()):
                self.recent_lateness.note(at_ms)
            for topic, times_ms in dues_ms.items():
                if times_ms:
                    _of_topic(self.lateness, topic).add_since(times_ms, at_ms)

    def smoothed(self, sinces_ms: Mapping[str, list[int]], at_ms: int) -> None:
        """Count the same of messages that smoothing had deferred."""
        with self._lock:
            self._add_smoothed(sinces_ms, at_ms)

    def _add_smoothed(self, sinces_ms: Mapping[str, list[int]], at_ms: int) -> None:
        for topic, times_ms in sinces_ms.items():
            _of_topic(self.smoothing_lateness, topic).add_since(times_ms, at_ms)


def _of_topic(histograms: dict[str, Histogram], topic: str) -> Histogram:
    found = histograms.get(topic)
    if found is None:
        name = topic if len(histograms) < TOPICS_MAX else OTHER
        found = histograms.setdefault(name, Histogram(LATENESS_BOUNDS_MS))
    return found
