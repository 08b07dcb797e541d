"""A cluster's past, made by the real queue from a seed, as the tables that judgements read.

What arrives is ingested in pieces, so that some of it is late; steps are small, so that lanes are
cut; messages are cancelled in time and too late, requeued, given up; masters change.
"""

from collections import defaultdict
from dataclasses import replace
from random import Random
from typing import Any
from zlib import crc32

from cluster_settings import LANES, PARTITIONS
from cluster_settings import SETTINGS as CLUSTER
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from record_rows import bounds_at

from delayd.audit.bounds import Bounds
from delayd.audit.tables import LOGGED
from replication.delivery_queue import DeliveryQueue, Plan, StepLimits
from replication.entry import Entry
from replication.frontier import Frontier, begin_term, first_frontier
from replication.rank import Rank, lane_of
from replication.record import FrontierRecord, StepCounts, encode, record_key

TARGET_PARTITIONS = 2
START_MS = 1_785_000_000_000
TOPICS = ("orders", "mails", "bills", "texts")
OPEN_AHEAD_MS = 200
MESSAGE, MARK = 0, 1

SETTINGS = replace(CLUSTER, retry_delays_ms=(100, 300))

Row = dict[str, Any]


class Past:
    """`logged` and `deliveries` as rows, and the frontier `records` with their offsets and
    append times."""

    def __init__(self, seed: int, turns: int) -> None:
        self._chance = Random(seed)
        self.now_ms = START_MS
        self.logged: list[Row] = []
        self.deliveries: list[Row] = []
        self.records: list[tuple[int, int, FrontierRecord]] = []
        self._logs: list[list[Row]] = [[] for _ in range(PARTITIONS)]
        self._ends = [0] * PARTITIONS
        self._ingested = [0] * PARTITIONS
        self._target_ends: dict[tuple[str, int], int] = defaultdict(int)
        self._stored: list[Entry] = []
        self._marks: list[Entry] = []
        self._by_source: dict[tuple[int, int], Row] = {}
        self.frontier = first_frontier(0, PARTITIONS, LANES)
        self._owner = "topics-create"
        self._commit(self.frontier, StepCounts(), 0)
        self._take_over()
        for _ in range(turns):
            self._turn()

    def _turn(self) -> None:
        chance = self._chance
        self.now_ms += chance.choice([0, 1, 20, 150, 150, 400, 1_500])
        for _ in range(chance.choice([0, 2, 5, 12])):
            self._ask()
        self._ingest()
        if chance.random() < 0.04:
            self._take_over()
        self._step()

    def _ask(self) -> None:
        """A request arrives."""
        chance = self._chance
        live = [row for row in self._by_source.values() if row["id"] and self._is_live(row)]
        append_ms = self.now_ms - chance.randrange(3)
        if live and chance.random() < 0.15:
            target = chance.choice(live[-8:])
            row = self._append(target["partition"], append_ms, "cancel", stored=False)
            row["id"], row["killed"] = target["id"], [target["offset"]]
            target["killed_by"] = row["offset"]
            return
        due_ms = append_ms + chance.choice([-500, 0, 0, 3, 40, 40, 700, 700, 4_000, 60_000])
        topic = chance.choice(TOPICS)
        row = self._append(
            chance.randrange(PARTITIONS), append_ms, "schedule", topic=topic, due_ms=due_ms
        )
        row["id"] = f"id-{len(self.logged)}" if chance.random() < 0.4 else None
        row["target_partition"] = chance.randrange(TARGET_PARTITIONS)

    def _append(
        self,
        partition: int,
        append_ms: int,
        op: str,
        *,
        stored: bool = True,
        topic: str = "",
        due_ms: int = 0,
        next_due_ms: int | None = None,
    ) -> Row:
        self._ends[partition] += self._chance.choice([0, 0, 0, 1])  # a marker
        offset = self._ends[partition]
        self._ends[partition] += 1
        rank_ms = max(due_ms if next_due_ms is None else next_due_ms, append_ms)
        row: Row = {
            **dict.fromkeys(LOGGED.fieldNames()),
            "partition": partition,
            "offset": offset,
            "append_ms": append_ms,
            "op": op,
            "topic": topic,
            "due_ms": due_ms,
            "planned_ms": due_ms,
            "rank_ms": rank_ms,
            "stored": stored,
            "lane": lane_of(topic, LANES),
            "origin": offset,
            "is_refused": False,
            "payload_crc": offset * 7919 % 2**32,
        }
        self.logged.append(row)
        self._logs[partition].append(row)
        self._by_source[partition, offset] = row
        return row

    def _is_live(self, row: Row) -> bool:
        return bool(row["stored"]) and row["killed_by"] is None and row["continued_by"] is None

    def _ingest(self) -> None:
        for partition, end in enumerate(self._ends):
            before = self._ingested[partition]
            reached = end if self._chance.random() < 0.7 else self._chance.randint(before, end)
            for row in self._logs[partition]:
                if before <= row["offset"] < reached:
                    self._ingest_one(row)
            self._ingested[partition] = reached

    def _ingest_one(self, row: Row) -> None:
        if row["stored"]:
            entry = Entry(
                row["rank_ms"], row["partition"], row["offset"], row["lane"], MESSAGE, 0, 100
            )
            self._stored.append(entry)
            self._queue.arrived(entry)
        elif row["op"] == "cancel":
            mark = Entry(row["append_ms"], row["partition"], row["offset"], 0, MARK, 0, 100)
            self._marks.append(mark)
            self._queue.reply_arrived(mark)

    def _take_over(self) -> None:
        frontier = self.frontier
        answers = [m for m in self._marks if m.offset >= frontier.offsets[m.partition]]
        self._queue = DeliveryQueue(frontier, answers)
        for e in self._stored:
            if e < frontier.cursors[e.lane] and e.offset >= frontier.offsets[e.partition]:
                self._queue.arrived(e)
        # Now and then a master follows itself, after a failed step.
        if frontier.term == 0 or self._chance.random() < 0.7:
            self._owner = f"n{self._chance.randrange(3)}/{len(self.records)}"
        first = begin_term(frontier)
        self._queue.begin(Plan(frontier, first, self.now_ms))
        self._commit(first, StepCounts(), 0)

    def _step(self) -> None:
        queue = self._queue
        before = Rank(self.now_ms + OPEN_AHEAD_MS, 0, 0)
        if (wanted := queue.wanted(before)) is not None:
            queue.open(
                wanted, sorted(e for e in self._stored if wanted.since <= e < before), before
            )
        limits = StepLimits(records_max=self._chance.choice([2, 4, 30, 30]))
        plan = queue.plan(self.now_ms, tuple(self._ingested), limits)
        if plan.is_empty and self._chance.random() < 0.5:
            return
        queue.begin(plan)
        self._carry_out(plan)

    def _carry_out(self, plan: Plan) -> None:
        digest = 0
        fates = dict.fromkeys(("delivered", "killed", "retried", "dead"), 0)
        own_writes = list(plan.frontier.own_writes)
        for entry in plan.deliveries:
            row = self._by_source[entry.partition, entry.offset]
            killed_by = row["killed_by"]
            if killed_by is not None and killed_by < plan.frontier.offsets[entry.partition]:
                fate = "killed"
            elif row["topic"] == "mails" and self._chance.random() < 0.4:
                fate = self._requeued(row, own_writes)
            else:
                self._deliver(row)
                fate = "delivered"
                digest += crc32(f"{entry.partition}/{entry.offset}".encode())
            fates[fate] += 1
        frontier = replace(plan.frontier, own_writes=tuple(own_writes))
        if own_writes != list(plan.frontier.own_writes):
            self._queue.wrote(frontier.own_writes)
        self._commit(
            frontier, StepCounts(late=plan.late, answers=len(plan.replies), **fates), digest
        )

    def _requeued(self, row: Row, own_writes: list[int]) -> str:
        attempts = (row["attempt"] or 0) + 1
        if attempts > len(SETTINGS.retry_delays_ms):
            return "dead"
        again = self._append(
            row["partition"],
            self.now_ms,
            "continue",
            topic=row["topic"],
            due_ms=row["due_ms"],
            next_due_ms=self.now_ms + SETTINGS.retry_delays_ms[attempts - 1],
        )
        again |= {name: row[name] for name in ("id", "origin", "target_partition")}
        again |= {"attempt": attempts, "continues": row["offset"]}
        if row["killed_by"] is not None:
            again |= {"stored": False, "is_refused": True}
        row["continued_by"] = again["offset"]
        own_writes[row["partition"]] = again["offset"]
        return "retried"

    def _deliver(self, row: Row) -> None:
        place = (row["topic"], row["target_partition"])
        self._target_ends[place] += 1
        self.deliveries.append(
            {
                "topic": place[0],
                "partition": place[1],
                "offset": self._target_ends[place],
                "timestamp_ms": self.now_ms + 1,
                "is_append_time": True,
                "id": row["id"],
                "source": f"{row['partition']}/{row['offset']}",
                "attempt": row["attempt"],
                "source_partition": row["partition"],
                "source_offset": row["offset"],
                "due_ms": row["due_ms"],
                "fired_ms": self.now_ms,
            }
        )

    def _commit(self, frontier: Frontier, counts: StepCounts, digest: int) -> None:
        record = FrontierRecord(frontier, self._owner, self.now_ms, counts, digest, SETTINGS)
        self.records.append((2 * len(self.records), self.now_ms + 1, record))
        self.frontier = frontier

    def bounds(self, **changed: Any) -> Bounds:
        """The bounds of an audit that cuts at the newest frontier."""
        offset, append_ms, record = self.records[-1]
        targets = dict.fromkeys(TOPICS, TARGET_PARTITIONS)
        ends = tuple(self._ends)
        bounds = bounds_at(SETTINGS, record.frontier, offset, append_ms, ends, targets)
        return replace(bounds, **changed)

    def step_of(self, row: Row) -> tuple[int | None, bool | None]:
        """The offset of the frontier record that covered a message first, and whether it was late:
        as the definition has it, step by step."""
        rank = Rank(row["rank_ms"], row["partition"], row["offset"])
        before: Frontier | None = None
        for offset, _, record in self.records:
            if record.frontier.covers(row["lane"], rank):
                return offset, before is not None and rank < before.cursors[row["lane"]]
            before = record.frontier
        return None, None


def frame(spark: SparkSession, rows: list[Row], table: StructType) -> DataFrame:
    """Rows as a table; columns that they lack are null."""
    names = table.fieldNames()
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], table)


def frontier_rows(records: list[tuple[int, int, FrontierRecord]]) -> list[Row]:
    """Frontier records as rows of RECORDS."""
    return [record_row(offset, ms, encode(record)) for offset, ms, record in records]


def record_row(offset: int, append_ms: int, value: bytes | None) -> Row:
    """A record of the frontier topic with any value."""
    return {
        "topic": SETTINGS.frontier.name,
        "partition": 0,
        "offset": offset,
        "timestamp_ms": append_ms,
        "key": record_key(0),
        "value": value,
    }
