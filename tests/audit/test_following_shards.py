"""The delivery audit that is kept running, of a cluster with shards: what one has covered says
nothing of another's messages.

Source: docs/design/audit.md, "Shards".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cluster_settings import LANES
from pyspark.sql import SparkSession
from record_rows import row_of
from test_following import ROLES, SETTINGS, Follower, Log, T

from delayd.audit.following.batch_context import GRACE_MS
from delayd.audit.reading.shard_records import frontier_in, text_of
from replication.rank import Rank
from replication.record import FrontierRecord, StepCounts, encode, record_key
from replication.settings import Settings
from replication.shards import first_of_shard

SHARDS = 2
OF_SHARDS = replace(SETTINGS, partitions=SHARDS, shards=SHARDS)
TOPICS = ("t", "d-receipts", "d-dead", "d-buffer", "d-frontier")


@dataclass
class ShardLog(Log):
    """As another log; what is appended goes to one partition of each topic."""

    partition: int = 0
    """And what is asked there is of the shard with the same number."""
    settings: Settings = OF_SHARDS
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    steps: list[int] = field(default_factory=lambda: [0] * SHARDS)

    def append(self, topic: str, at_ms: int, **parts: Any) -> int:
        place = (topic, self.partition)
        offset = self.ends.get(place, 0)
        self.ends[place] = offset + 1
        row = row_of(
            *(ROLES.get(topic, "target"), topic, self.partition, offset, at_ms),
            *(parts.get("key"), parts.get("value"), parts.get("headers", [])),
            log_ms=at_ms,
        )
        self.rows.append(row)
        return offset

    def record(self, shard: int, cursor_ms: int) -> bytes:
        """The next frontier record of a shard: all that was asked there is below O."""
        self.steps[shard] += 1
        reached = [0] * SHARDS
        reached[shard] = self.ends.get(("d-buffer", shard), 0)
        frontier = replace(
            first_of_shard(shard, SHARDS, SHARDS, LANES),
            cursors=(Rank(cursor_ms, 0, 0),) * LANES,
            offsets=tuple(reached),
            step=self.steps[shard],
        )
        return encode(FrontierRecord(frontier, "n/1", cursor_ms, StepCounts(), 0, self.settings))

    def step_of(self, shard: int, cursor_ms: int, *, at_ms: int, key: int | None = None) -> None:
        """A step of a shard, in its partition; `key`: of another one."""
        self.partition = shard
        key_of = record_key(shard if key is None else key)
        self.append("d-frontier", at_ms, key=key_of, value=self.record(shard, cursor_ms))

    def batch(
        self,
        at_ms: int,
        settled: Mapping[str, int] | None = None,
        unread: Mapping[str, Sequence[int]] | None = None,
    ) -> list[tuple[Any, ...]]:
        next_offsets = {
            topic: tuple(self.ends.get((topic, number), 0) for number in range(SHARDS))
            for topic in TOPICS
        }
        return self.batch_to(at_ms, next_offsets, (0,) * SHARDS, settled, unread)


def test_what_a_shard_has_covered_is_lost_and_what_another_has_not_is_pending(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = ShardLog()
    asked = []
    for shard in range(SHARDS):
        log.partition = shard
        asked.append(log.ask(T + 1_000))
        log.ask(T + 90_000)
    log.watch = text_of([log.record(shard, T).decode() for shard in range(SHARDS)])
    follower = Follower(spark, tmp_path, log)
    assert follower.judge(0, log.batch(T + 100)) == []

    # Neither comes out. Only shard 0 says that it is over; what is not of shard 1 says nothing.
    log.step_of(0, T + 2_000, at_ms=T + 2_000)
    log.step_of(1, T + 2_000, at_ms=T + 2_001, key=0)
    log.partition = 1
    log.append("d-frontier", T + 2_002, key=record_key(1), value=log.record(0, T + 2_000))
    assert follower.judge(1, log.batch(T + 2_100)) == []
    late_ms = T + 2_100 + GRACE_MS
    log.step_of(0, T + 3_000, at_ms=late_ms - 50)
    assert follower.judge(2, log.batch(late_ms)) == [("lost", f"0/{asked[0]}")]
    assert follower.metric("delayd_audit_pending") == 3

    follower.start()
    log.step_of(1, T + 2_000, at_ms=late_ms + 1_000)
    assert follower.judge(3, log.batch(late_ms + 1_100)) == []
    log.step_of(0, T + 4_000, at_ms=late_ms + 2_000)
    assert follower.judge(4, log.batch(late_ms + 2 * GRACE_MS)) == [("lost", f"1/{asked[1]}")]
    assert follower.metric("delayd_audit_pending") == 2


def test_what_was_over_in_a_shard_when_watching_began_is_nobodys_business(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = ShardLog()
    asked = []
    for shard in range(SHARDS):
        log.partition = shard
        asked.append(log.ask(T + 1_000))
    cursors = (T + 5_000, T)
    log.watch = text_of([log.record(shard, at).decode() for shard, at in enumerate(cursors)])
    follower = Follower(spark, tmp_path, log)
    assert frontier_in(log.watch).offsets == (1, 1)
    log.partition = 1
    log.append("d-frontier", T + 100, key=record_key(1), value=log.record(1, T + 5_000))
    assert follower.judge(0, log.batch(T + 200)) == []
    assert follower.judge(1, log.batch(T + 300 + GRACE_MS)) == [("lost", f"1/{asked[1]}")]
