"""The start of a node that a trimmed buffer does not reach: its disk is empty, or its checkpoint
lies before the buffer's start. It rebuilds its wheel from the kept records, where that is provable.

Source: docs/design/trimmed.md.
"""

import contextlib
from collections.abc import Mapping, Sequence

import structlog

from delayd.bus import Bus, Cluster
from delayd.bus.reading import read_between
from delayd.cluster.frontier_log import SeenFrontier
from delayd.errors import BufferTrimmedError
from delayd.node.replica.replica import Replica
from delayd.node.replica.unknown_past import told_at
from delayd.runtime.clock import Clock
from replication.settings import Settings
from replication.trimmed import UNTRIMMED, Beginning, horizon_of, missing

log = structlog.get_logger()

FIRST_RECORDS = 10
"""So many are asked for to see the first one."""


def starts_beyond(bus: Bus, replica: Replica, timeout_ms: int) -> dict[int, int]:
    """Return where the buffer begins, by partition, if it was trimmed beyond what a replica has
    read of some partition; else nothing."""
    with contextlib.closing(bus.cluster()) as kafka:
        starts = kafka.start_offsets(replica.settings.buffer.name, timeout_ms)
    reached = replica.reached
    return starts if any(start > reached[p] for p, start in starts.items()) else {}


def begin_at(replica: Replica, beginnings: Sequence[Beginning], seen: SeenFrontier) -> None:
    """Let a replica without a wheel begin where a trimmed buffer begins."""
    replica.begin_at(beginnings, seen.record.barriers)
    log.info(
        "rebuild_from_trimmed_buffer",
        begins={p: b.offset for p, b in enumerate(beginnings) if b.offset},
        cursor=told_at(seen.record.frontier.lowest_cursor.due_ms),
    )


def provable_beginnings(
    bus: Bus,
    settings: Settings,
    starts: Mapping[int, int],
    seen: SeenFrontier,
    clock: Clock,
    timeout_ms: int,
) -> tuple[Beginning, ...]:
    """Return where the log of each partition begins, `starts` being its first offset.

    Raises BufferTrimmedError, which says what is missing, unless the last frontier proves that
    everything before is done, and decides nothing that is still to come.
    """
    frontier, rules = seen.record.frontier, seen.record.rules
    found = dict.fromkeys(starts, UNTRIMMED)
    with contextlib.closing(bus.cluster()) as kafka:
        ends = kafka.end_offsets(settings.buffer.name, timeout_ms, committed=True)
        letters = kafka.end_offsets(settings.dead.name, timeout_ms, committed=False)
        for partition, start in starts.items():
            beginning: Beginning | None = UNTRIMMED
            if start > 0:
                first_ms = _first_append_ms(
                    bus, settings, partition, (start, ends[partition]), clock, timeout_ms
                )
                beginning = None
                if first_ms is not None:
                    beginning = Beginning(start, first_ms, start, any(letters.values()))
                    beginning = _with_sure_offset(beginning, partition, settings, kafka, timeout_ms)
                lack = missing(partition, start, beginning, frontier, rules, settings)
                if lack is not None:
                    raise _not_provable(settings, partition, start, lack.what, lack.until_ms)
            assert beginning is not None, "what is missing was said"
            found[partition] = beginning
    return tuple(found[partition] for partition in range(settings.partitions))


def _with_sure_offset(
    beginning: Beginning, partition: int, settings: Settings, kafka: Cluster, timeout_ms: int
) -> Beginning:
    name, after_ms = settings.buffer.name, horizon_of(beginning, settings).due_ms + 1
    sure = kafka.offsets_since(name, after_ms, timeout_ms).get(partition)
    if sure is None:
        sure = kafka.end_offsets(name, timeout_ms, committed=False)[partition]
    return beginning._replace(sure_offset=sure)


def _first_append_ms(
    bus: Bus,
    settings: Settings,
    partition: int,
    between: tuple[int, int],
    clock: Clock,
    timeout_ms: int,
) -> int | None:
    """Return the append time of the first committed record of a partition between two offsets;
    None if there is none."""
    runs = read_between(
        bus,
        settings.buffer.name,
        {partition: between[0]},
        {partition: between[1]},
        clock,
        records_max=FIRST_RECORDS,
        timeout_ms=timeout_ms,
    )
    with contextlib.closing(runs):
        return next((run[0].append_ms for run in runs if run), None)


def _not_provable(
    settings: Settings, partition: int, start: int, what: str, until_ms: int | None
) -> BufferTrimmedError:
    later = "" if until_ms is None else f"; provable from {told_at(until_ms)} on"
    return BufferTrimmedError(
        f"this node has not read what was trimmed: {settings.buffer.name}/{partition} now begins "
        f"at offset {start}, and cannot rebuild its wheel from the buffer alone: {what}{later}",
        remedy="unless on_damage is stop it copies another node's wheel; see "
        "docs/operations.md, 'A trimmed buffer'",
    )
