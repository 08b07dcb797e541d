"""The header of a batch: its start, its end, its frontiers, and whether it continues the journal.

Spark counts batches anew when `checkpoint` was removed, and plans one again, with another end, if a
loss of power took the plan: a number alone says nothing.
"""

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from delayd.audit.errors import FollowFailedError
from delayd.audit.following.journal import Entry
from delayd.audit.reading.positions import Positions
from replication.record import FrontierFormatError, decode, record_key
from replication.settings import Settings

SAID_MAX: Final = 1_000
"""More than the reader takes of the frontier of a shard in one batch."""


class BatchHeader(NamedTuple):
    """The header of a batch (reading/stream.py): its start, its end, and what is unread: by topic
    the first offsets that were left."""

    start: Positions
    end: Positions
    unread: Mapping[str, tuple[int, ...]]


class SeenRecord(NamedTuple):
    """A frontier record, as in its topic."""

    shard: int
    text: str
    append_ms: int


def header_of(records: DataFrame, settings: Settings) -> tuple[BatchHeader, list[SeenRecord]]:
    """Return what the batch is, and the frontier records in it, those of a shard in order."""
    told = records.where(F.col("topic").isin("", settings.frontier.name)).select(
        "topic", "partition", "offset", "key", "value", "timestamp_ms"
    )
    rows = sorted(told.limit(SAID_MAX * settings.shards).collect(), key=lambda row: row["offset"])
    said = [json.loads(bytes(row["value"])) for row in rows if not row["topic"]]
    [of_batch] = [each for each in said if "end" in each]
    unread = {topic: tuple(firsts) for each in said for topic, firsts in each["unread"].items()}
    frontiers = [
        SeenRecord(row["partition"], bytes(row["value"]).decode(), row["timestamp_ms"])
        for row in rows
        if row["topic"] and _is_ours(row, settings)
    ]
    start, end = (Positions.from_json(of_batch[name]) for name in ("start", "end"))
    return BatchHeader(start, end, unread), frontiers


def _is_ours(row: Row, settings: Settings) -> bool:
    """Return whether it is a frontier record of the shard whose partition it is in."""
    shard = row["partition"]
    if shard >= settings.shards or row["key"] != record_key(shard):
        return False
    try:
        record = decode(bytes(row["value"] or b""))
    except FrontierFormatError:
        return False
    if record.settings.cluster != settings.cluster:
        return False
    if record.resharding or record.settings.shards != settings.shards:
        raise FollowFailedError(
            "the cluster gets other shards than it had when this began to follow",
            remedy="start it again with an empty folder once `delayd shards set` is done; an audit "
            "without --follow judges what was between",
        )
    return record.frontier.shard == int(shard)


def check_same(before: Entry, batch: int, records: DataFrame) -> None:
    """Raise FollowFailedError unless this is the last batch in the journal, with the same end."""
    [first] = records.where(F.col("topic") == "").limit(1).collect()
    end = json.loads(bytes(first["value"]))["end"]
    if batch != before.batch or Positions.from_json(before.positions) != Positions.from_json(end):
        raise _mismatch(before, batch)


def check_next(before: Entry | None, batch: int, start: Positions) -> None:
    """Raise FollowFailedError unless this batch begins where the last one in the journal ended."""
    number = 0 if before is None else before.batch + 1
    if batch != number or (before and Positions.from_json(before.positions) != start):
        raise _mismatch(before, batch)


def _mismatch(before: Entry | None, batch: int) -> FollowFailedError:
    known = "none" if before is None else f"batch {before.batch}"
    return FollowFailedError(
        f"batch {batch} of `checkpoint` is not what follows `journal`, whose last is {known}: one"
        " of them was removed, or a loss of power took its end",
        remedy="begin anew with an empty --work, from the newest frontier; keep its alarms.jsonl",
    )
