"""The order in which frontier records of several shards were written, as far as it can be known."""

import json
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from delayd.bus import Record


class _Placed(NamedTuple):
    at_ms: int
    """Not before the record that is before it in its partition."""
    is_first: bool
    """Does its shard begin with it, because the cluster gets others?"""
    record: Record


def in_order(frontiers: list[Record]) -> list[Record]:
    """Return frontier records as they were written: those of a partition one by one, and those of
    several by their times, as far as clocks tell. The first records of other shards come together,
    behind all that was written of the shards before."""
    partitions = sorted({record.partition for record in frontiers})
    if partitions == [0]:
        return sorted(frontiers, key=lambda record: record.offset)
    queues = {p: deque(_placed(frontiers, p)) for p in partitions}
    found = []
    shards = _shards_of(queues[0][0].record)
    while any(queues.values()):
        heads = {partition: queue[0] for partition, queue in queues.items() if queue}
        ready = [(head.at_ms, p) for p, head in heads.items() if not head.is_first]
        if ready:
            found.append(queues[min(ready)[1]].popleft().record)
            continue
        # Each change of shards has a record in all partitions that had one, or get one.
        after = _shards_of(heads[0].record)
        together = heads.keys() & {*range(max(shards, after))}
        found += [queues[partition].popleft().record for partition in sorted(together)]
        shards = after
    return found


def _placed(frontiers: list[Record], partition: int) -> Iterator[_Placed]:
    latest_ms = 0
    shards = next(_shards_of(r) for r in frontiers if r.partition == 0)
    for record in sorted(frontiers, key=lambda r: r.offset):
        if record.partition == partition:
            latest_ms = max(latest_ms, record.append_ms)
            yield _Placed(latest_ms, _shards_of(record) != shards, record)
            shards = _shards_of(record)


def _shards_of(record: Record) -> int:
    return int(json.loads(record.value or b"")["settings"].get("shards", 1))
