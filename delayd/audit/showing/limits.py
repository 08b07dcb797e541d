"""The limits of what is shown of a report: lists are cut, series are joined. Pure.

A page stays below PAGE_BYTES_MAX: every list on it has a limit here, and every text one in words.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from delayd.audit.report import HeatCell, Moment, Reign, TopicHour
from delayd.audit.showing.building.scales import TIME_STEPS, interval_of

PAGE_BYTES_MAX: Final = 5_000_000
FINDINGS_MAX: Final = 500
"""Rows of findings: a report keeps 20 of each of some 25 faults."""
MOMENTS_MAX: Final = 260
HEAT_COLUMNS_MAX: Final = 120
HEAT_NODES_MAX: Final = 12
BINS_MAX: Final = 48
REIGNS_MAX: Final = 200
MARKS_MAX: Final = 100
"""Failovers that are drawn."""
HOURS_MAX: Final = 48
"""Hours of a topic in its little curve."""


def moments_within(moments: Sequence[Moment], most: int = MOMENTS_MAX) -> tuple[list[Moment], int]:
    """Return the deliveries in at most `most` equal intervals, and how long each is, ms. Joined
    intervals have the sum of the deliveries, the mean of the medians, and the worst of the rest."""
    ordered = sorted(moments, key=lambda moment: moment.at_ms)
    if not ordered:
        return [], 1000
    start = ordered[0].at_ms
    interval, width = _intervals([moment.at_ms for moment in ordered], MOMENTS_MAX, most)
    if width == interval:
        return ordered[:most], interval
    parts: dict[int, list[Moment]] = defaultdict(list)
    for moment in ordered:
        parts[(moment.at_ms - start) // width].append(moment)
    return [_joined(start + n * width, part) for n, part in parts.items()], width


def _joined(at_ms: int, part: Sequence[Moment]) -> Moment:
    delivered = sum(moment.delivered for moment in part)
    weighted = sum(moment.late_p50 * moment.delivered for moment in part)
    return Moment(
        at_ms=at_ms,
        delivered=delivered,
        late_p50=weighted // delivered if delivered else 0,
        late_p99=max(moment.late_p99 for moment in part),
        late_max=max(moment.late_max for moment in part),
    )


def heat_within(cells: Sequence[HeatCell], columns: int) -> tuple[list[HeatCell], int]:
    """Return the pending messages in at most `columns` columns and HEAT_NODES_MAX + 1 rows, the
    log's among them, and how long a column is, ms. Nodes that differ most are kept."""
    if not cells:
        return [], 1000
    times = sorted({cell.at_ms for cell in cells})
    start = times[0]
    _, width = _intervals(times, HEAT_COLUMNS_MAX, columns)
    differ: Counter[str] = Counter()
    for cell in cells:
        differ[cell.node] += cell.differ
    nodes = sorted(differ.keys() - {""}, key=lambda node: (-differ[node], node))
    kept = {"", *nodes[:HEAT_NODES_MAX]}
    sums: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    for cell in cells:
        if cell.node in kept:
            entry = sums[cell.node, (cell.at_ms - start) // width]
            entry[0] += cell.pending
            entry[1] += cell.differ
    return [
        HeatCell(start + column * width, node, pending, differing)
        for (node, column), (pending, differing) in sorted(sums.items())
    ], width


def _intervals(times: Sequence[int], usual: int, most: int) -> tuple[int, int]:
    """Return how long the intervals are whose starts, in order, are `times`, and how long those of
    at most `most`: as many of them as make the first of TIME_STEPS that is long enough."""
    interval = interval_of(times, usual)
    span = times[-1] - times[0] + interval
    if span <= interval * most:
        return interval, interval
    fits = (step for step in TIME_STEPS if step % interval == 0 and span <= step * most)
    return interval, next(fits, -(-span // (interval * most)) * interval)


def reigns_within(reigns: Sequence[Reign], low_ms: int, high_ms: int) -> list[Reign]:
    """Return those that touch the time shown; of too many the longest."""
    seen = [reign for reign in reigns if reign.to_ms >= low_ms and reign.from_ms <= high_ms]
    longest = sorted(seen, key=lambda reign: (reign.from_ms - reign.to_ms, reign.term))
    return sorted(longest[:REIGNS_MAX], key=lambda reign: reign.term)


def hours_by_topic(hours: Sequence[TopicHour]) -> dict[str, list[TopicHour]]:
    """Return the last HOURS_MAX hours of each topic, in order."""
    found: dict[str, list[TopicHour]] = defaultdict(list)
    for hour in sorted(hours, key=lambda hour: hour.hour_ms):
        found[hour.topic].append(hour)
    return {topic: own[-HOURS_MAX:] for topic, own in found.items()}
