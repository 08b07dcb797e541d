"""The id rules in SQL against `replication.ingest`, which nodes run, on random logs."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest
from cluster_settings import SETTINGS as CLUSTER
from pyspark.sql import SparkSession

from delayd.audit.judging.columns import table_of
from delayd.audit.judging.ids import logged_of
from delayd.audit.judging.request_counts import counts_of
from delayd.audit.tables import LOGGED, REQUESTS
from replication.ids import NOTHING, IdState
from replication.ingest import Asked, Known, LogState, Op, PendingReply, ingest
from replication.log_time import trail_ms_of
from replication.settings import DAY_MS, RULES_VERSION

SEED: Final = 6
LOGS: Final = 600
START_MS: Final = 1_700_000_000_000
ID_MEMORY_MS: Final = 60
SETTINGS = replace(
    CLUSTER,
    partitions=LOGS,
    lanes=64,
    max_delay_ms=1_000,
    record_bytes_max=900,
    id_memory_ms=ID_MEMORY_MS,
    rules_version=RULES_VERSION,
)
TRAIL_MS: Final = trail_ms_of(SETTINGS, RULES_VERSION)
ANSWERS: Final = {PendingReply.DUPLICATE: "duplicate", PendingReply.CONFLICT: "conflict"}

Row = dict[str, Any]


class Replay:
    """One partition's log, decided by what nodes run; as naive as can be around it."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.log = LogState(0, 0)
        self.states: dict[str, IdState] = defaultdict(lambda: NOTHING)
        self.redriven: dict[str, IdState] = defaultdict(lambda: NOTHING)
        self.killed_by: dict[int, int] = {}
        self.row_at: dict[int, Row] = {}

    def take(self, row: Row) -> None:
        """Decide a record; completes its row."""
        offset, id, digest = row["offset"], row["id"], row["sent_hash"]
        continued = row["continues"]
        if continued is not None:
            digest = self.row_at[continued]["digest"]
        row["digest"] = digest
        asked = Asked(
            Op[row["op"].upper()],
            row["rank_ms"] or 0,
            has_id=id is not None,
            digest=str(digest).encode(),
            continued_offset=-1 if continued is None else continued,
            origin=-1 if continued is None else row["origin"],
            continued_due_ms=0 if continued is None else self.row_at[continued]["rank_ms"],
            has_own_time=bool(row["has_own_time"]),
            max_wait_ms=row["max_wait_ms"] or 0,
            waits=row["op"] == "continue" and row["attempt"] == 0,
        )
        known = Known(
            NOTHING if id is None else self.states[id],
            NOTHING if row["redrive"] is None else self.redriven[row["redrive"]],
            None if continued is None else self.killed_by.get(continued),
        )
        decision = ingest(
            self.log,
            row["partition"],
            offset,
            row["append_ms"],
            asked,
            known,
            ID_MEMORY_MS,
            TRAIL_MS,
        )
        before = known.id
        self.log = decision.state
        row["log_ms"] = decision.state.as_of_ms(row["append_ms"])
        row["stored"] = decision.rank is not None
        row["answer"] = ANSWERS.get(decision.reply)
        if decision.repeats >= 0:
            first = self.row_at[decision.repeats]
            row |= {"answer": "duplicate", "repeats": first["offset"]}
            row["repeats_ms"] = first["log_ms"]
        row["is_refused"] = decision.is_refused
        row["killed"] = row["killed_before"] = None
        if row["op"] == "debounce":
            assert decision.rank is not None, "it is stored"
            row |= dict.fromkeys(("rank_ms", "due_ms", "planned_ms"), decision.rank.due_ms)
            row["is_quiet"] = decision.reply is PendingReply.NONE
        if row["op"] in ("cancel", "replace", "debounce"):
            row["killed"] = [message.offset for message in decision.killed]
            row["killed_before"] = [message.offset for message in before.killed]
        if decision.repeats >= 0:
            row |= {"killed": first["killed"], "killed_before": []}
        for message in decision.killed:
            self.killed_by[message.offset] = offset
        if decision.id is not None:
            self.states[id] = decision.id
        if decision.redriven is not None:
            self.redriven[row["redrive"]] = decision.redriven
        if continued is not None:
            self.row_at[continued]["continued_by"] = offset
        self.row_at[offset] = row
        self.rows.append(row)

    def finish(self) -> list[Row]:
        for offset, mark in self.killed_by.items():
            by = self.row_at[mark]
            killed = {"killed_by": mark, "killed_ms": by["append_ms"], "killed_op": by["op"]}
            self.row_at[offset] |= killed
        return self.rows


def random_log(random: Random, partition: int, without: Sequence[str] = ()) -> list[Row]:
    """Few ids, all operations but those; continuations of what may be continued, as a master writes
    them."""
    replay = Replay()
    now_ms, offset = START_MS, 0
    is_crowded, is_long = partition % 10 == 0, partition % 100 == 7
    length = 300 if is_long else random.choice([1, 2, 3, 6, 12, 20, 40])
    length += 250 * (partition % 40 == 0)
    for _ in range(length):
        now_ms += random.randint(-20, 60)
        if random.random() < 0.01:
            now_ms += random.randint(0, 40) * DAY_MS // (40 if is_crowded else 1)
        offset += random.choice([1, 1, 1, 2])
        continuable = [r for r in replay.rows if r["stored"] and "continued_by" not in r]
        ops = ["schedule", "debounce", "cancel", "replace", "redrive", "continue", "reject"]
        weights = [40, 2, 3, 3, 300, 40, 10] if is_crowded else [6, 6, 3, 2, 2, 3, 1]
        if is_long:  # so many that the first are forgotten, and then a cancel marker
            weights = [180, 20, 1, 1, 4, 20, 1]
        op = random.choices(ops, weights)[0]
        if op in without:
            op = "schedule"
        id: str | None = "a" if is_long else random.choice(["a", "b"])
        row: Row = {
            **dict.fromkeys(LOGGED.fieldNames()),
            "partition": partition,
            "offset": offset,
            "append_ms": now_ms,
            "op": op,
            "asked_op": op,
            "origin": offset,
            "attempt": 0,
            "is_steady": True,
            "sent_hash": random.randint(1, 2),
        }
        row.pop("continued_by")
        delay_ms = random.choice([0, 10, 50, 100, 200])
        if is_crowded and random.random() < 0.9:
            delay_ms = 100_000_000
        if is_long:
            delay_ms = random.choice([0, 1])
        if op == "continue":
            if not continuable:
                continue
            continued = random.choice(continuable[-3:])
            row |= {"continues": continued["offset"], "origin": continued["origin"]}
            row |= {"sent_hash": None, "id": continued["id"], "attempt": random.choice([0, 1])}
        elif op == "redrive":
            # A source is redriven under one id, or under none; or under several, without conflicts.
            number = random.randint(1, 150 if is_crowded else 3)
            id = {0: None, 1: "a", 2: "b"}[number % 3]
            if not is_crowded and random.random() < 0.3:
                id = random.choice([None, "a", "b"])
            row |= {"redrive": f"{partition}/{number}", "id": id}
        elif op == "schedule" and random.random() < 0.2:
            row |= {"sent_hash": None}
        elif op == "reject":
            row |= {"id": id, "reason": "bad-due"}
        else:
            row |= {"id": id}
        if op not in ("cancel", "reject"):
            due_ms = now_ms + delay_ms
            row |= {"rank_ms": due_ms, "due_ms": due_ms, "planned_ms": due_ms}
        if op == "debounce":
            row |= {"max_wait_ms": delay_ms + random.choice([0, 10, 100])}
        if op == "replace":
            row |= {"has_own_time": offset % 3 > 0}
        replay.take(row)
    return replay.finish()


def logged_as_nodes_do(spark: SparkSession, rows: list[Row], *, is_counted: bool) -> None:
    """Judge a log by the rules of ids; `is_counted`: only by those about what it holds."""
    table = [tuple(row.get(name) for name in REQUESTS.fieldNames()) for row in rows]
    requests = table_of(spark, REQUESTS, table).repartition(2)
    counts = counts_of(requests, targets_max=100) if is_counted else None
    logged = logged_of(requests, SETTINGS, counts)
    assert logged.schema.fieldNames() == LOGGED.fieldNames()
    found = {(row["partition"], row["offset"]): row.asDict() for row in logged.collect()}
    assert len(found) == len(rows)
    for row in rows:
        wanted = {name: row.get(name) for name in LOGGED.fieldNames()}
        assert found[row["partition"], row["offset"]] == wanted, row


@pytest.mark.parametrize("there", [None, "debounce", "redrive", "continue"])
def test_rules_about_what_is_not_in_a_log_are_not_missed(
    spark: SparkSession, there: str | None
) -> None:
    """Of reschedules: `test_judging_moves.py`."""
    random = Random(SEED)
    without = {"debounce", "redrive", "continue"} - {there}
    rows = [
        row for partition in range(LOGS // 6) for row in random_log(random, partition, [*without])
    ]
    ops = Counter(row["op"] for row in rows)
    assert (there is None or ops[there]) and not without & ops.keys() and ops["replace"], ops
    logged_as_nodes_do(spark, rows, is_counted=True)


def test_ids_are_decided_in_sql_as_nodes_decide_them(spark: SparkSession) -> None:
    random = Random(SEED)
    rows = [row for partition in range(LOGS) for row in random_log(random, partition)]
    logged_as_nodes_do(spark, rows, is_counted=False)
    met: Counter[str] = Counter()
    for row in rows:
        met[f"{row['op']} {row['answer']} {row['is_refused']}"] += 1
        met["debounce in place of another"] += row["op"] == "debounce" and row["is_quiet"] is False
        met["debounce, and nobody is told"] += bool(row["is_quiet"] and row["killed"])
        met["killed"] += row.get("killed_by") is not None
        met["64 live"] += len(row["killed"] or ()) == 64
        met["more killed before"] += len(row["killed_before"] or ()) > 1
    assert met["killed"] and met["64 live"] and met["more killed before"], met
    assert met["debounce in place of another"] and met["debounce, and nobody is told"], met
    for outcome in (
        *("schedule None False", "schedule duplicate False", "schedule conflict False"),
        *("redrive None False", "redrive duplicate False", "redrive conflict False"),
        *("continue None False", "continue None True"),
        *("replace None False", "replace duplicate False"),
    ):
        assert met[outcome], f"seed {SEED}: {met}"
