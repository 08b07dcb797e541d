"""delayd.audit.judging.replicas: each node's export against the log, message by message."""

from collections import Counter
from hashlib import blake2b
from typing import Any

import pytest
from past import Past, Row, frame
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from delayd.audit.bounds import ShardCut
from delayd.audit.cut import NodeAddress
from delayd.audit.errors import AuditError
from delayd.audit.judging.figures import HEAT_BUCKETS_MAX, heat_of
from delayd.audit.judging.replicas import NODES_MAX, expected_pending, judge_replicas
from delayd.audit.reading.progress import Progress
from delayd.audit.report import NodeState
from delayd.audit.run import AuditOptions, run
from delayd.audit.table_loader import Source
from delayd.audit.tables import LOGGED, PENDING
from delayd.bus.confluent import ConfluentBus
from delayd.runtime.clock import SystemClock

PAST = Past(seed=4, turns=300)
MIDDLE = len(PAST.records) // 2
NODES = ("n0", "n1", "n2")


def pending_rows() -> list[Row]:
    """What is pending at a cut in the middle: message by message, by the definition."""
    record = PAST.records[MIDDLE][2]
    offsets = record.frontier.offsets
    rows = []
    for row in PAST.logged:
        is_stored = row["stored"] and row["offset"] < offsets[row["partition"]]
        step = PAST.step_of(row)[0] if is_stored else None
        is_over = step is not None and step <= PAST.records[MIDDLE][0]
        is_killed = row["killed_by"] is not None and row["killed_by"] < offsets[row["partition"]]
        if is_stored and not is_over and not is_killed:
            id: str | None = row["id"]
            digest = None if id is None else blake2b(id.encode(), digest_size=16).digest()
            names = ("partition", "offset", "lane", "topic", "append_ms", "id", "payload_crc")
            kept = {name: row[name] for name in names}
            due_ms = row["rank_ms"]
            rows.append(kept | {"due_ms": due_ms, "slot": due_ms // 1000, "digest": digest})
    return rows


PENDING_ROWS = pending_rows()
BOUNDS = PAST.bounds(
    frontier=PAST.records[MIDDLE][2].frontier,
    cuts=(ShardCut(*PAST.records[MIDDLE][:2]),),
)


@pytest.fixture(scope="module")
def expected(spark: SparkSession) -> DataFrame:
    return expected_pending(frame(spark, PAST.logged, LOGGED), BOUNDS).cache()


def states(**problems: str) -> list[NodeState]:
    return [NodeState(node, f"{node}:1", None, problems.get(node)) for node in NODES]


def exports(rows: list[Row]) -> list[Row]:
    return [row | {"node": node} for node in NODES for row in rows]


def test_what_the_log_expects_is_what_is_pending(expected: DataFrame) -> None:
    assert expected.schema.simpleString() == PENDING.simpleString()
    found = {(r.partition, r.offset, r.due_ms, r.slot, r.topic, r.id) for r in expected.collect()}
    assert found == {
        (r["partition"], r["offset"], r["due_ms"], r["slot"], r["topic"], r["id"])
        for r in PENDING_ROWS
    }
    assert len(found) > 40


def test_a_node_with_a_problem_is_one_finding_and_equal_ones_are_none(
    spark: SparkSession, expected: DataFrame
) -> None:
    rows = [row for row in exports(PENDING_ROWS) if row["node"] != "n1"]
    odd = rows[0] | {"node": "n1", "topic": "nonsense"}

    pending = frame(spark, [*rows, odd], PENDING)
    found = judge_replicas(expected, pending, states(n1="behind"), BOUNDS).collect()

    assert [(row.fault, row.node, row.reason) for row in found] == [
        ("replica-absent", "n1", "behind")
    ]


def test_each_difference_is_named(spark: SparkSession, expected: DataFrame) -> None:
    rows = {(row["node"], row["offset"], row["partition"]): row for row in exports(PENDING_ROWS)}
    with_id = [row for row in PENDING_ROWS if row["id"] is not None]
    plain = [row for row in PENDING_ROWS if row["id"] is None]
    wanted: dict[tuple[str, str, str], str] = {}

    def change(node: str, row: Row, says: str, **changed: Any) -> None:
        key = (node, row["offset"], row["partition"])
        rows[key] = rows[key] | changed
        wanted["replica-changed", node, source(row)] = says

    def source(row: Row) -> str:
        return f"{row['partition']}/{row['offset']}"

    change("n0", plain[0], "the payload", payload_crc=1)
    change("n1", plain[1], "the due time", due_ms=plain[1]["due_ms"] + 1)
    change("n2", plain[2], "the topic", topic="other")
    change("n0", plain[3], "the slot", slot=1)
    change("n1", plain[4], "the append time", append_ms=1)
    change("n2", plain[5], "the lane", lane=99)
    change("n0", plain[6], "the id, the digest", id="x", digest=b"x" * 16)
    change("n1", plain[7], "the digest", digest=b"x" * 16)
    change("n2", with_id[0], "the digest", digest=b"x" * 16)
    change("n0", with_id[1], "the digest", digest=None)
    change("n1", with_id[2], "the id", id="y")
    for node in NODES:
        change(node, with_id[3], "the payload", payload_crc=2)
    del rows["n1", plain[8]["offset"], plain[8]["partition"]]
    wanted["replica-missing", "n1", source(plain[8])] = "lacks it"
    extra = plain[9] | {"offset": 10**6, "node": "n2"}
    wanted["replica-extra", "n2", source(extra)] = "not pending"
    over = next(row for row in PAST.logged if row["stored"] and PAST.step_of(row)[0] == 20)
    impossible = plain[9] | {"offset": over["offset"], "partition": over["partition"]}
    for node in NODES:
        wanted["replica-extra", node, source(impossible)] = "not pending"
    twice = plain[10] | {"node": "n0"}
    wanted["replica-extra", "n0", source(twice)] = "more than once"
    all_rows = [*rows.values(), extra, twice, *(impossible | {"node": n} for n in NODES)]
    pending = frame(spark, all_rows, PENDING).cache()

    judged = judge_replicas(expected, pending, states(), BOUNDS).cache()
    found = judged.collect()

    assert {(row.fault, row.node, row.source) for row in found} == wanted.keys()
    assert len(found) == len(wanted)
    for row in found:
        assert row.reason.endswith(wanted[row.fault, row.node, row.source]), row.reason
        assert row.reason.startswith("slot ")

    cells = heat_of(expected, pending, judged).collect()
    held = Counter(row["node"] for row in all_rows) + Counter({"": len(PENDING_ROWS)})
    differ = Counter(row.node for row in found)
    assert _sums(cells, "pending") == held
    assert _sums(cells, "differ") == differ
    assert len({cell.at_ms for cell in cells}) <= HEAT_BUCKETS_MAX


def _sums(cells: list[Any], name: str) -> Counter[str]:
    sums: Counter[str] = Counter()
    for cell in cells:
        sums[cell.node] += cell[name]
    return +sums


def test_what_kafka_has_trimmed_is_not_too_much(spark: SparkSession, expected: DataFrame) -> None:
    first = min(PENDING_ROWS, key=lambda row: int(row["offset"]))
    start = first["offset"] + 1
    bounds = PAST.bounds(buffer_starts=(start, start), frontier=BOUNDS.frontier)
    pending = frame(spark, exports(PENDING_ROWS), PENDING)

    left = expected.where(f"offset >= {start}")
    assert judge_replicas(left, pending, states(), bounds).collect() == []


def test_more_nodes_than_can_be_compared_are_refused_before_anything_is_read() -> None:
    nodes = [NodeAddress(f"n{number}", None) for number in range(NODES_MAX + 1)]
    nowhere = Source(ConfluentBus("127.0.0.1:1"), "127.0.0.1:1", SystemClock())

    with pytest.raises(AuditError, match=r"63 nodes are known.* at most 62"):
        run(nowhere, nodes, AuditOptions(), Progress(Console(quiet=True)))
