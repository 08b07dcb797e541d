"""Deliveries, leadership and lateness over time: three panels above one time axis."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from delayd.audit.report import Failover, Moment, Reign, Report
from delayd.audit.showing.building.drawing import LINE, WIDE, Drawing, figure, key
from delayd.audit.showing.building.elements import Html, Node, number
from delayd.audit.showing.building.scales import (
    Scale,
    count_ticks,
    intervals,
    late_ticks,
    linear,
    logarithmic,
    time_ticks,
)
from delayd.audit.showing.words import (
    count_text,
    duration_text,
    gap_text,
    owner_name,
    second_text,
    short_count,
    span_text,
    time_text,
)

DELIVERIES_TOP, DELIVERIES_BASE = 40, 200
MASTER_TOP, MASTER_BASE = 240, 264
LATENESS_TOP, LATENESS_BASE = 304, 424
HEIGHT: Final = 450
MANY: Final = 12
"""Failovers, of which no more are marked through all panels."""
MOMENTS_MAX: Final = 260
REIGNS_MAX: Final = 200
MARKS_MAX: Final = 100
"""Failovers that are drawn."""
OWNERS: Final = 6
"""Colours of nodes in style.css; more nodes take them again."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """The data that the panels share."""

    moments: Sequence[Moment]
    interval_ms: int
    low_ms: int
    high_ms: int
    reigns: Sequence[Reign]
    failovers: Sequence[Failover]
    owners: Mapping[str, int]
    shards: int
    """The masters of each have a row."""

    def rate(self, moment: Moment) -> float:
        """Return deliveries per second."""
        return moment.delivered * 1000 / self.interval_ms


def timeline(report: Report) -> Html | None:
    """Return the figure; None if nothing was delivered and nobody led."""
    shown = _shown(report)
    if shown is None:
        return None
    return figure(
        "over-time",
        f"Deliveries, leadership and lateness, {span_text(shown.low_ms, shown.high_ms)}",
        _description(shown),
        _panels(shown),
        _legend(shown),
    )


def _shown(report: Report) -> _Shown | None:
    moments, interval = moments_within(report.timeline)
    if moments:
        low, high = moments[0].at_ms, moments[-1].at_ms + interval
        aside = max((high - low) // 20, interval)  # what led up to the first, and what came after
        times = [time for reign in report.reigns for time in (reign.from_ms, reign.to_ms)]
        low = max(low - aside, min([low, *times]))
        high = min(high + aside, max([high, *times]))
    elif report.reigns:
        low = min(reign.from_ms for reign in report.reigns)
        high = max(reign.to_ms for reign in report.reigns) + 1
    else:
        return None
    owners = sorted({owner_name(reign.owner) for reign in report.reigns})
    within = [each for each in report.failovers if low <= each.at_ms <= high]
    return _Shown(
        moments=moments,
        interval_ms=interval,
        low_ms=low,
        high_ms=high,
        reigns=_reigns_within(report.reigns, low, high),
        failovers=within[:MARKS_MAX],
        owners={owner: n % OWNERS for n, owner in enumerate(owners)},
        shards=max(1, len(report.cut.shards)),
    )


def _panels(shown: _Shown) -> Drawing:
    drawing = Drawing(HEIGHT)
    across = linear(shown.low_ms, shown.high_ms, 0, WIDE)
    ticks = time_ticks(shown.low_ms, shown.high_ms, 9)
    drawing.time_axis(across, ticks, DELIVERIES_TOP, LATENESS_BASE)
    _deliveries(drawing, shown, across)
    _lateness(drawing, shown, across)
    _masters(drawing, shown, across)
    _failovers(drawing, shown, across)
    return drawing


def _deliveries(drawing: Drawing, shown: _Shown, across: Scale) -> None:
    ticks = count_ticks(max(map(shown.rate, shown.moments), default=0), 4)
    up = linear(0, ticks[-1].value, DELIVERIES_BASE, DELIVERIES_TOP)
    drawing.label("Deliveries per second", 0, WIDE, 0, "panel")
    drawing.value_axis(up, ticks)
    outline, intervals = [], []
    for moment in shown.moments:
        left, right = across(moment.at_ms), across(moment.at_ms + shown.interval_ms)
        y = up(shown.rate(moment))
        outline.append(
            f"M{number(left)} {DELIVERIES_BASE}V{number(y)}H{number(right)}V{DELIVERIES_BASE}"
        )
        intervals.append((left, right, moment))
    drawing.path("deliveries", outline)
    height = LATENESS_BASE - DELIVERIES_TOP
    for left, right, moment in intervals:
        tip = _tip(moment, shown.interval_ms)
        drawing.rect(left, DELIVERIES_TOP, right - left, height, "hit", tip)


def _tip(moment: Moment, interval_ms: int) -> str:
    """Return what a browser shows where the mouse rests, over all panels."""
    return (
        f"{time_text(moment.at_ms)}, {duration_text(interval_ms)}: "
        f"{count_text(moment.delivered)} delivered, "
        f"p50 {duration_text(moment.late_p50)}, p99 {duration_text(moment.late_p99)}, "
        f"max {duration_text(moment.late_max)}"
    )


def _lateness(drawing: Drawing, shown: _Shown, across: Scale) -> None:
    late = [moment for moment in shown.moments if moment.delivered]
    ticks = late_ticks(max((moment.late_p99 for moment in late), default=0))
    up = logarithmic(1, ticks[-1].value, LATENESS_BASE, LATENESS_TOP)
    drawing.label("Lateness: median, p99 (log)", 0, WIDE, LATENESS_TOP - 24, "panel")
    drawing.value_axis(up, ticks)
    for class_, values in (
        ("p99", [moment.late_p99 for moment in late]),
        ("p50", [moment.late_p50 for moment in late]),
    ):
        path = []
        before = None
        for moment, value in zip(late, values, strict=True):
            left, right = across(moment.at_ms), across(moment.at_ms + shown.interval_ms)
            follows = before is not None and moment.at_ms - before <= shown.interval_ms
            path.append(f"{'L' if follows else 'M'}{number(left)} {number(up(value))}")
            path.append(f"H{number(right)}")
            before = moment.at_ms
        drawing.path(f"late {class_}", path)


def _masters(drawing: Drawing, shown: _Shown, across: Scale) -> None:
    height = (MASTER_BASE - MASTER_TOP) / shown.shards
    is_one = shown.shards == 1
    drawing.label("Master" if is_one else "Master by shard", 0, WIDE, MASTER_TOP - 22, "panel")
    drawing.rect(0, MASTER_TOP, WIDE, MASTER_BASE - MASTER_TOP, "nobody")
    for reign in shown.reigns:
        left, right = across(reign.from_ms), across(reign.to_ms)
        right = min(max(right, left + 2), WIDE)
        left = min(left, right - 2)
        name = owner_name(reign.owner)
        of_shard = "" if is_one else f"shard {reign.shard}, "
        top = MASTER_TOP + reign.shard * height
        tip = (
            f"{of_shard}term {reign.term}: {name}, "
            f"{time_text(reign.from_ms)} to {time_text(reign.to_ms)}, "
            f"{count_text(reign.steps)} steps, {count_text(reign.delivered)} delivered"
        )
        class_ = f"owner-{shown.owners[name]}"
        drawing.rect(left, top, right - left, height, class_, tip)
        if is_one:  # in rows there is no room for names
            drawing.label(name, left, right, top + (height - LINE) / 2, "in-band middle")


def _failovers(drawing: Drawing, shown: _Shown, across: Scale) -> None:
    """Draw a line through all panels for each failover, with its gap where there is room; of many
    only short ones, across the masters."""
    many = len(shown.failovers) > MANY
    failovers = sorted(shown.failovers, key=lambda each: each.at_ms)
    places = [*(across(each.at_ms) for each in failovers), WIDE]
    free_from = 0.0
    for failover, (x, after) in zip(failovers, pairwise(places), strict=True):
        if many:
            drawing.line(x, MASTER_TOP - 4, x, MASTER_BASE + 4, "failover")
            continue
        y = DELIVERIES_TOP - LINE - 2
        drawing.line(x, y, x, LATENESS_BASE, "failover")
        words = f"gap: {gap_text(failover.gap_ms)}"
        free_from = drawing.flag(words, x, y, (free_from, after))


def _legend(shown: _Shown) -> list[Node]:
    return [
        key("deliveries", f"delivered, by {duration_text(shown.interval_ms)}"),
        key("p50", "median lateness"),
        key("p99", "p99 lateness"),
        *(key(f"owner-{n}", f"{owner} leads") for owner, n in list(shown.owners.items())[:OWNERS]),
        key("failover", "failover") if shown.failovers else None,
    ]


def _description(shown: _Shown) -> str:
    parts = [f"From {span_text(shown.low_ms, shown.high_ms)}."]
    if shown.moments:
        most = max(shown.moments, key=lambda moment: moment.delivered)
        worst = max(shown.moments, key=lambda moment: moment.late_p99)
        parts.append(
            f"At most {short_count(shown.rate(most))} deliveries per second, at "
            f"{second_text(most.at_ms)}; the highest p99 lateness is "
            f"{duration_text(worst.late_p99)}, at {second_text(worst.at_ms)}."
        )
    if shown.reigns:
        terms, names = len(shown.reigns), len(shown.owners)
        parts.append(f"{terms} terms of {names} nodes, {len(shown.failovers)} failovers.")
    return " ".join(parts)


def moments_within(moments: Sequence[Moment], most: int = MOMENTS_MAX) -> tuple[list[Moment], int]:
    """Return the deliveries in at most `most` equal intervals, and how long each is, ms. Joined
    intervals have the sum of the deliveries, the mean of the medians, and the worst of the rest."""
    ordered = sorted(moments, key=lambda moment: moment.at_ms)
    if not ordered:
        return [], 1000
    start = ordered[0].at_ms
    interval, width = intervals([moment.at_ms for moment in ordered], MOMENTS_MAX, most)
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


def _reigns_within(reigns: Sequence[Reign], low_ms: int, high_ms: int) -> list[Reign]:
    """Return those that touch the time shown; of too many the longest."""
    seen = [reign for reign in reigns if reign.to_ms >= low_ms and reign.from_ms <= high_ms]
    longest = sorted(seen, key=lambda reign: (reign.from_ms - reign.to_ms, reign.term))
    return sorted(longest[:REIGNS_MAX], key=lambda reign: reign.term)
