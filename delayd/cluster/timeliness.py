"""What nodes measured of time, put together: lateness by target, the last failovers, clocks. Pure.

Each node tells what it measured itself (`GET /status`), in the shapes of docs/reference/http.md; a
node of an older release tells nothing.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Final

FAILOVERS_MAX: Final = 20
QUANTILES: Final = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}


def lateness_of(nodes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return by target how many messages were delivered lately, and how late they were: for each
    quantile the upper bound of the bucket that it is in, None beyond the last bound. The latest
    targets come first. Nodes whose buckets differ from those of the first are left out."""
    bounds: list[int] | None = None
    counted: dict[str, list[int]] = {}
    for node in nodes:
        told = node.get("lateness") or {}
        if not told.get("targets") or told["bounds_ms"] != (bounds := bounds or told["bounds_ms"]):
            continue
        for topic, counts in told["targets"].items():
            former = counted.get(topic, [0] * len(counts))
            counted[topic] = [a + b for a, b in zip(former, counts, strict=True)]
    found = [
        {
            "topic": topic,
            "messages": sum(counts),
            **{name: quantile_ms(bounds or [], counts, of) for name, of in QUANTILES.items()},
        }
        for topic, counts in counted.items()
    ]
    return sorted(found, key=_latest_first)


def quantile_ms(bounds_ms: list[int], counts: list[int], quantile: float) -> int | None:
    """Return the upper bound of the bucket in which this part of all lies; None beyond the last.
    `counts` has one more than bounds, and is not all zeros."""
    totals = list(accumulate(counts))
    place = bisect_left(totals, quantile * totals[-1])
    return bounds_ms[place] if place < len(bounds_ms) else None


def failovers_of(nodes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the last changes of master that any node has seen, newest first. What only the new
    master knows of one, how late its first messages were, is taken from it."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for node in nodes:
        for each in node.get("failovers") or ():
            # Nodes of 0.1.0 know no shards.
            known = found.setdefault((each.get("shard", 0), each["term"]), dict(each))
            if known["gap_ms"] is None:
                known["gap_ms"] = each["gap_ms"]
    last_first = sorted(found.values(), key=lambda each: (each["begun_ms"], each["term"]))
    return last_first[::-1][:FAILOVERS_MAX]


def clocks_of(nodes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return how far the clocks of the nodes that answered are apart."""
    return [
        {
            "node": node["node"],
            "offset_ms": node["clock_offset_ms"],
            "broker_drift_ms": node.get("clock_drift_ms"),
        }
        for node in nodes
        if "clock_offset_ms" in node
    ]


def _latest_first(each: Mapping[str, Any]) -> tuple[float, int, str]:
    late_ms = each["p99_ms"]
    return (-(float("inf") if late_ms is None else late_ms), -each["messages"], each["topic"])
