"""Order of deliveries, judged by the frontier's own history. Pure: records in, faults out.

Per target partition, the messages that were there in time come in the order of their ranks, which
are (due, partition, offset); with a window the planned time takes the place of the due time.
Excepted are continuations and what they continue, and late arrivals: those whose lane's cursor had
passed them when the offsets did.

Of several shards, each has an order of its own: records with the same key lie in one. There may
have come to be more of them or fewer; those of a partition that is a multiple of the most apart
were in one shard all the time.

Not here, because judge.py finds them: records that no request explains, or that came twice.
Source: docs/design/frontier.md, "Order".
"""

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any
from zlib import crc32

from chaos.asked import Rank, read_asked
from chaos.records import Logged

RESHARDER = "delayd-shards"
"""Owner of the records that change the shards: no master."""


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
    highest: dict[tuple[str, int, int], tuple[Rank, str]] = {}
    faults = []
    for record in records:
        source = record.header("delayd-source") or ""
        request = asked.get(source)
        is_alone = request is not None and request.header("delayd-origin") is None
        if request is None or not is_alone or source in continued or times[source] > 1:
            continue
        rank = read_asked(request, int(request.header("delayd-due") or "")).rank
        if history.is_late(record.topic, rank):
            continue
        where = (record.topic, record.partition, request.partition % history.shards_max)
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
    owners = {
        (step["shard"], step["term"]): step["owner"]
        for step in steps
        if step["term"] > 0 and step["owner"] != RESHARDER
    }
    masters = [(shard, owner) for (shard, _), owner in sorted(owners.items())]
    return sum(before[0] == after[0] and before != after for before, after in pairwise(masters))


class _History:
    def __init__(self, frontiers: Sequence[Logged]) -> None:
        ordered = sorted(frontiers, key=lambda record: record.offset)
        steps = [json.loads(record.value or b"") for record in ordered]
        self.shards_max = max((_shards_of(step) for step in steps), default=1)
        partitions = len(steps[0]["offsets"]) if steps else 0
        self._steps = [
            sorted((s for s in steps if p % _shards_of(s) == s["shard"]), key=partial(_place, p))
            for p in range(partitions)
        ]
        """By partition of the buffer: the steps of its shards, which only move forward there."""
        self._passed = [[step["offsets"][p] for step in self._steps[p]] for p in range(partitions)]

    def is_late(self, topic: str, rank: Rank) -> bool:
        """Return whether the cursor had passed it when the offsets did. A message that no step has
        passed is not late."""
        _, partition, offset = rank
        first = bisect_right(self._passed[partition], offset)
        steps = self._steps[partition]
        if first == len(steps) or first == 0:
            return False
        before = steps[first - 1]
        lane = str(crc32(topic.encode()) % before["settings"]["lanes"])
        cursor = before["lanes"].get(lane, before["cursor"])
        return rank < tuple(cursor)


def _shards_of(step: dict[str, Any]) -> int:
    return int(step["settings"].get("shards", 1))


def _place(partition: int, step: dict[str, Any]) -> tuple[int, list[int], int]:
    """By which the steps that have a partition are in order, whatever shard it belonged to."""
    return step["offsets"][partition], step["cursor"], step["step"]
