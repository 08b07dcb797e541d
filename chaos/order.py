"""Order of deliveries, judged by the frontier's own history. Pure: records in, faults out.

Per target partition, the messages that were there in time come in the order of their ranks, which
are (due, partition, offset). Excepted are continuations and what they continue, and late arrivals:
those whose lane's cursor had passed them when the offsets did.

Not here, because judge.py finds them: records that no request explains, or that came twice.
Source: docs/design/frontier.md, "Order".
"""

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from zlib import crc32

from chaos.records import Logged

Rank = tuple[int, int, int]


def order_faults(
    requests: Iterable[Logged], delivered: Iterable[Logged], frontiers: Sequence[Logged]
) -> list[str]:
    """Return a sentence for each message behind one of a higher rank."""
    history = _History(frontiers)
    asked = {record.place: record for record in requests}
    continued = {
        f"{record.partition}/{record.header('delayd-continues')}"
        for record in asked.values()
        if record.header("delayd-origin") is not None
    }
    records = sorted(delivered, key=lambda record: (record.topic, record.partition, record.offset))
    times = Counter(record.header("delayd-source") for record in records)
    highest: dict[tuple[str, int], tuple[Rank, str]] = {}
    faults = []
    for record in records:
        source = record.header("delayd-source") or ""
        request = asked.get(source)
        is_alone = request is not None and request.header("delayd-origin") is None
        if request is None or not is_alone or source in continued or times[source] > 1:
            continue
        due_ms = max(int(request.header("delayd-due") or ""), request.append_ms)
        rank = (due_ms, request.partition, request.offset)
        if history.is_late(record.topic, rank):
            continue
        where = (record.topic, record.partition)
        before = highest.get(where)
        if before is not None and rank < before[0]:
            faults.append(
                f"{source}: {record.topic} {record.place}: it ranks by {rank[0]} and came after"
                f" {before[1]}, which ranks by {before[0][0]}"
            )
        else:
            highest[where] = (rank, source)
    return faults


def failovers_of(frontiers: Iterable[Logged]) -> int:
    """Return how often one master followed another. A takeover from itself is no failover."""
    steps = [json.loads(record.value or b"") for record in frontiers]
    owners = {step["term"]: step["owner"] for step in steps if step["term"] > 0}
    masters = [owner for _, owner in sorted(owners.items())]
    return sum(before != after for before, after in pairwise(masters))


class _History:
    def __init__(self, frontiers: Sequence[Logged]) -> None:
        ordered = sorted(frontiers, key=lambda record: record.offset)
        self._steps = [json.loads(record.value or b"") for record in ordered]
        partitions = len(self._steps[0]["offsets"]) if self._steps else 0
        self._passed = [
            [step["offsets"][partition] for step in self._steps] for partition in range(partitions)
        ]

    def is_late(self, topic: str, rank: Rank) -> bool:
        """Return whether the cursor had passed it when the offsets did. A message that no step has
        passed is not late."""
        _, partition, offset = rank
        first = bisect_right(self._passed[partition], offset)
        if first == len(self._steps) or first == 0:
            return False
        before = self._steps[first - 1]
        lane = str(crc32(topic.encode()) % before["settings"]["lanes"])
        cursor = before["lanes"].get(lane, before["cursor"])
        return rank < tuple(cursor)
