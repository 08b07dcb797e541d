"""Quotas, as an audit sees them: what is refused for a full target is no finding; a gate that no
count justifies is, and a quota that is not as ordered.

Source: docs/design/audit.md, "Quotas".
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from audited import Tables, fates, findings_of, frontier_of, others_of, tables_of
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import Plan
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from world import START_MS, World
from written import LIMITS, History, Written

from delayd.audit.judging.quota_rates import counted_seconds
from delayd.bus import Headers
from delayd.request import quota_record
from delayd.request.quotas import gate_record
from replication.quotas import PENDING, RATE, Gate, Quota, QuotaOrder, rate_seconds

COUNT = 40
QUOTA = 6


def ordered(world: World, at_ms: int, max_pending: int, off_ms: int = 0, rate: int = 0) -> Written:
    order = QuotaOrder("orders", START_MS + at_ms - off_ms, max_pending, rate)
    limits = replace(LIMITS, shards=world.shards)
    for shard in range(world.shards):
        partition, key, value, headers = quota_record(order, limits, shard)
        written = world.send(at_ms, key, value, headers, partition)
    return written


def played(shards: int = 1) -> History:
    """A quota that is set, raised and cleared, with messages all the time, some of them cancelled
    and replaced; an order that came too late, and one without a proof."""
    world = World(shards=shards)
    plan = Plan(world)
    for number in range(COUNT):
        at_ms = 600 + 250 * number
        if number % 3:
            plan.schedule("plain", at_ms, at_ms + 3_000, key=None)
        else:
            plan.named("named", at_ms, f"id-{number}", at_ms + 3_000)
        plan.schedule("mails", at_ms, at_ms + 3_000, topic="mails")
        if number % 6 == 3:
            plan.named("cancelled", at_ms + 120, f"id-{number}", op="cancel")
        if number % 9 == 0:
            plan.named("replaced", at_ms + 120, f"id-{number}", at_ms + 4_000, op="replace")
    ordered(world, 500, QUOTA)
    ordered(world, 5_000, QUOTA + 3)
    ordered(world, 9_000, 0)
    ordered(world, 2_000, 1, off_ms=301_000)
    forged: Headers = [("delayd-quota", b"full/1/2/3/4/5/mails"), ("delayd-proof", b"0" * 64)]
    world.send(3_000, None, None, forged, 0)
    return world.run()


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Tables:
    """Of what was played, before anything is planted in it."""
    return tables_of(spark, played())


def said(history: History, kind: str) -> list[Written]:
    texts = [(each, each.header("delayd-quota") or "") for each in history.buffer]
    return [each for each, text in texts if text.startswith(kind)]


def test_what_is_refused_for_a_full_target_is_no_finding(tables: Tables) -> None:
    history = played()
    reasons = Counter(each.header("delayd-reason") or "" for each in history.dead)
    assert reasons["over-quota"] > 10 and reasons["bad-proof"] == 2
    assert len(said(history, "full/")) > 3 < len(said(history, "open/"))
    assert findings_of(tables, history) == set()
    assert others_of(tables, history) == []
    found = fates(tables)
    assert found["rejected"] == reasons.total() and "lost" not in found
    verdicts = [json.loads(each.value or b"")["verdict"] for each in history.receipts]
    assert "over-quota" in verdicts


def stated(each: Written) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(each.value or b"")
    return found


def changed(tables: Tables, change: Callable[[dict[str, Any]], object], full: bool) -> list[Row]:
    """What is found when a step says something else of quotas, one at which a target is full, or
    one at which it is open."""
    history = played()
    named = [each for each in history.frontier if "quotas" in stated(each)]
    like = [each for each in named if bool(stated(each)["quotas"]["orders"][3]) is full]
    each = like[len(like) // 2]
    fields = stated(each)
    change(fields)
    each.value = json.dumps(fields, separators=(",", ":")).encode()
    return frontier_of(tables, history)


def drop(fields: dict[str, Any]) -> None:
    del fields["quotas"], fields["needs"]
    fields["format"] = 2


def larger(fields: dict[str, Any]) -> None:
    fields["quotas"]["orders"][0] += 1_000


def other_order(fields: dict[str, Any]) -> None:
    fields["quotas"]["orders"][2] += 1_000


def other_topic(fields: dict[str, Any]) -> None:
    fields["quotas"]["mails"] = fields["quotas"]["orders"]


def more(fields: dict[str, Any]) -> None:
    fields["quotas"]["orders"][1] += 1_000


def none(fields: dict[str, Any]) -> None:
    fields["quotas"]["orders"][1] = 0


@pytest.mark.parametrize(
    ("change", "full", "text"),
    [
        (drop, False, "which has none there"),
        (larger, False, "says another number"),
        (other_order, False, "no order is there"),
        (other_topic, False, "no order is there"),
        (more, False, "and it is not full"),
        (none, True, "and it is full"),
    ],
)
def test_quotas_that_are_not_as_ordered_or_counted_are_found(
    tables: Tables, change: Callable[[dict[str, Any]], None], full: bool, text: str
) -> None:
    found = changed(tables, change, full)
    assert {row.fault for row in found} == {"frontier-quota"}
    assert any(text in row.reason for row in found), found


@pytest.mark.parametrize(
    "change", [lambda numbers: numbers.append(0), lambda numbers: numbers.pop()]
)
def test_a_quota_that_is_none_is_broken(
    tables: Tables, change: Callable[[list[int]], object]
) -> None:
    found = changed(tables, lambda fields: change(fields["quotas"]["orders"]), True)
    assert [row.fault for row in found] == ["frontier-broken"]
    assert "its quotas are none" in found[0].reason


def restated(history: History, pending: int) -> str:
    """Let the first step by which the target is full say in each partition that so many were
    pending; return when that was."""
    text = said(history, "full/")[0].header("delayd-quota") or ""
    _, at_ms, _, most, taken, rate, topic = text.split("/")
    gate = Gate(topic, int(at_ms), PENDING, pending, int(most), int(taken), int(rate))
    for each in said(history, "full/"):
        if each.header("delayd-quota") == text:
            each.headers[:] = gate_record(each.partition, gate, LIMITS).headers
    return at_ms


def test_a_gate_that_no_step_has_written_is_found(spark: SparkSession, tables: Tables) -> None:
    history = played()
    restated(history, 99)
    rows = frontier_of(tables_of(spark, history), history)
    reasons = [row.reason for row in rows if row.fault == "frontier-quota"]
    assert any("no step says so" in reason for reason in reasons), rows


def test_a_count_that_the_log_contradicts_is_found(spark: SparkSession) -> None:
    """A master that believes a target to be full that is not, and says so everywhere."""
    history = played()
    at_ms = restated(history, 99)
    for frontier in history.frontier:
        fields = stated(frontier)
        if fields["now_ms"] == int(at_ms):
            fields["quotas"]["orders"][1] = 99
            frontier.value = json.dumps(fields, separators=(",", ":")).encode()
    rows = frontier_of(tables_of(spark, history), history)
    assert any("by the log there were" in row.reason for row in rows), rows


def test_a_gate_that_is_missing_in_a_partition_is_found(spark: SparkSession) -> None:
    """What was refused behind it was refused for nothing."""
    history = played()
    [gate] = said(history, "full/")[:1]
    history.buffer.remove(gate)
    tables = tables_of(spark, history)
    rows = frontier_of(tables, history)
    assert any("it is not in every partition" in row.reason for row in rows), rows


def since_resharded(history: History) -> None:
    """Let the history begin where shards at rest became one: with a record, and one of a new term,
    that have the time of the last steps before, which wrote gates, and another count."""
    _, at_ms, *_ = (said(history, "full/")[0].header("delayd-quota") or "").split("/")
    its = next(n for n, e in enumerate(history.frontier) if stated(e)["now_ms"] == int(at_ms))
    history.frontier[:] = history.frontier[its - 1 :]
    for each in history.frontier[:2]:
        fields = stated(each)
        fields["now_ms"] = int(at_ms)
        fields["quotas"]["orders"][1] += 1
        each.value = json.dumps(fields, separators=(",", ":")).encode()


def test_gates_of_shards_that_are_no_more_are_judged_by_no_step(spark: SparkSession) -> None:
    history = played()
    since_resharded(history)
    rows = frontier_of(tables_of(spark, history), history)
    assert [row.reason for row in rows if row.fault.startswith("frontier")] == []


# Several shards: each master says in its own partitions what it has counted in all.

SHARDS = 2


@pytest.fixture(scope="module")
def shard_tables(spark: SparkSession) -> Tables:
    return tables_of(spark, played(SHARDS))


def test_masters_of_several_shards_that_count_alike_are_no_finding(shard_tables: Tables) -> None:
    history = played(SHARDS)
    reasons = Counter(each.header("delayd-reason") or "" for each in history.dead)
    assert reasons["over-quota"] > 10
    shut = {each.partition for each in said(history, "full/")}
    assert shut == {each.partition for each in said(history, "open/")} == {0, 1, 2, 3}
    assert findings_of(shard_tables, history) == set()
    assert others_of(shard_tables, history) == []


def of_shard(history: History, shard: int, *, full: bool) -> Written:
    """Return a step of a shard by which the target is full, or open."""
    steps = [each for each in history.frontier if each.partition == shard]
    named = [each for each in steps if "quotas" in stated(each)]
    quotas = [stated(each)["quotas"]["orders"] for each in named]
    like = [
        each
        for each, last, now in zip(named[1:], quotas, quotas[1:], strict=False)
        if bool(now[3]) is full and last[2] == now[2]  # what it obeys counts from the next step on
    ]
    return like[len(like) // 2]


@pytest.mark.parametrize(
    ("change", "full", "text"),
    [
        (drop, False, "which has none there"),
        (larger, False, "says another number"),
        (other_order, False, "no order is there"),
        (more, False, "and it is not full"),
        (none, True, "and it is full"),
    ],
)
def test_what_a_step_of_one_shard_says_is_judged_by_its_own_orders(
    shard_tables: Tables, change: Callable[[dict[str, Any]], None], full: bool, text: str
) -> None:
    history = played(SHARDS)
    each = of_shard(history, 1, full=full)
    fields = stated(each)
    change(fields)
    if change is drop:
        fields["needs"], fields["format"] = {"shards": "0.2.0"}, 3
    each.value = json.dumps(fields, separators=(",", ":")).encode()
    found = frontier_of(shard_tables, history)
    assert {(row.fault, row.partition) for row in found} == {("frontier-quota", 1)}
    assert any(text in row.reason for row in found), found


def recounted(history: History, shard: int, pending: int, *, is_said: bool) -> None:
    """Let the gates of a step say that so many were pending, and with `is_said` the step."""
    limits = replace(LIMITS, shards=SHARDS)
    own = [each for each in said(history, "full/") if each.partition % SHARDS == shard]
    text = own[0].header("delayd-quota") or ""
    _, at_ms, _, most, taken, rate, topic = text.split("/")
    gate = Gate(topic, int(at_ms), PENDING, pending, int(most), int(taken), int(rate))
    for each in own:
        if each.header("delayd-quota") == text:
            each.headers[:] = gate_record(each.partition, gate, limits).headers
    for frontier in history.frontier:
        fields = stated(frontier)
        if is_said and frontier.partition == shard and fields["now_ms"] == int(at_ms):
            fields["quotas"]["orders"][1] = pending
            frontier.value = json.dumps(fields, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("pending", "is_said", "text"),
    [
        (99, False, "no step says so"),
        (999, True, "by the log there were"),
    ],
)
def test_a_gate_is_judged_by_the_frontier_of_its_shard(
    spark: SparkSession, pending: int, is_said: bool, text: str
) -> None:
    history = played(SHARDS)
    recounted(history, 1, pending, is_said=is_said)
    rows = frontier_of(tables_of(spark, history), history)
    assert {row.partition for row in rows} == {1}
    assert any(text in row.reason for row in rows), rows


def test_fewer_than_its_own_partitions_hold_no_master_can_have_counted(
    spark: SparkSession,
) -> None:
    """What other shards have it need not know, and its own it has passed."""
    history = played(SHARDS)
    recounted(history, 0, 0, is_said=True)
    rows = frontier_of(tables_of(spark, history), history)
    assert any("by the log there were" in row.reason for row in rows), rows


# Rates.

SPAN_MS = 26_000
RATE_GIVEN = 1


def paced(
    takeovers: Mapping[int, int] | None = None, again_ms: int | None = None, shards: int = 1
) -> History:
    """A rate that is set, and ended at last, with more messages than it allows, and some under an
    id that are sent twice. `again_ms`: when the same rate is ordered once more."""
    end_ms, cut_ms = START_MS + SPAN_MS + 4_000, START_MS + SPAN_MS + 2_000
    world = World(end_ms=end_ms, cut_ms=cut_ms, takeovers=takeovers or {}, shards=shards)
    plan = Plan(world)
    for number in range(SPAN_MS // 400):
        at_ms = 600 + 400 * number
        if number % 4:
            plan.schedule("plain", at_ms, at_ms + 2_000, key=None)
        else:
            plan.named("named", at_ms, f"id-{number // 8}", at_ms + 2_000)
        plan.schedule("mails", at_ms, at_ms + 2_000, topic="mails")
    ordered(world, 500, 0, rate=RATE_GIVEN)
    if again_ms is not None:
        ordered(world, again_ms, 0, rate=RATE_GIVEN)
    ordered(world, SPAN_MS, 0)
    return world.run()


@pytest.fixture(scope="module")
def rate_tables(spark: SparkSession) -> Tables:
    return tables_of(spark, paced())


def restate(each: Written, **fields: int) -> None:
    """Let a step say something else of the rate."""
    said = stated(each)
    for name, value in fields.items():
        said["quotas"]["orders"][Quota._fields.index(name)] = value
    each.value = json.dumps(said, separators=(",", ":")).encode()


def test_what_is_refused_by_a_rate_is_no_finding(rate_tables: Tables) -> None:
    history = paced()
    reasons = Counter(each.header("delayd-reason") or "" for each in history.dead)
    assert reasons["over-quota"] > 20
    assert len(said(history, "fast/")) > 3 < len(said(history, "open/"))
    assert findings_of(rate_tables, history) == set()
    assert others_of(rate_tables, history) == []


def test_a_rate_of_all_shards_is_judged_in_each(spark: SparkSession) -> None:
    history = paced(shards=SHARDS)
    reasons = Counter(each.header("delayd-reason") or "" for each in history.dead)
    assert reasons["over-quota"] > 20
    tables = tables_of(spark, history)
    assert findings_of(tables, history) == set()
    late = [each for each in history.frontier if each.partition == 1]
    seconds = {stated(each)["now_ms"] // 1000: each for each in late if "quotas" in stated(each)}
    step = seconds[START_MS // 1000 + 16]
    restate(step, taken=0)
    found = frontier_of(tables, history)
    assert {(row.fault, row.partition) for row in found} == {("frontier-quota", 1)}
    assert any("fewer than the log has" in row.reason for row in found), found


def test_rates_that_are_not_as_ordered_or_counted_are_found(rate_tables: Tables) -> None:
    """Each in a step of its own; fewer requests in the last one of its second, once the master has
    counted for a window."""
    history = paced()
    named = [each for each in history.frontier if "quotas" in stated(each)]
    named = [each for each in named if stated(each)["now_ms"] < history.bounds.cuts[0].append_ms]
    quota_of = {id(each): stated(each)["quotas"]["orders"] for each in named}
    full = [each for each in named if quota_of[id(each)][7]][:10]
    seconds = {stated(each)["now_ms"] // 1000: each for each in named}
    late = [seconds[second] for second in sorted(seconds) if second >= START_MS // 1000 + 14]
    fewer = late[0]
    open_ = [each for each in named if each is not fewer and not quota_of[id(each)][7]]
    planted = (
        (open_[2], {"rate": 7}, "says another rate"),
        (full[5], {"taken": 0}, "and it is full"),
        (open_[4], {"taken": 10}, "and it is not full"),
        (full[8], {"over": 0}, "full by no limit"),
        (fewer, {"taken": 1}, "fewer than the log has"),
    )
    for each, fields, _ in planted:
        restate(each, **fields)
    found = frontier_of(rate_tables, history)
    assert {row.fault for row in found} == {"frontier-quota"}
    for _, _, text in planted:
        assert any(text in row.reason for row in found), (text, found)


def last_in(history: History, second: int) -> Written:
    """Return the last step of this second, from the start."""
    steps = [(each, (stated(each)["now_ms"] - START_MS) // 1000) for each in history.frontier]
    return [each for each, its_second in steps if its_second == second][-1]


def fewer_found(spark: SparkSession, history: History) -> list[str]:
    rows = frontier_of(tables_of(spark, history), history)
    return [row.reason for row in rows if "fewer than the log has" in row.reason]


def test_the_first_record_of_a_term_counts_nothing_yet(spark: SparkSession) -> None:
    """Its clock is that of its predecessor: what came since then its master need not know. A second
    later its master has counted for a window."""
    history = paced({0: 14_000})
    step = last_in(history, 24)
    term = stated(step)["term"]
    first = next(each for each in history.frontier if stated(each)["term"] == term)
    assert stated(first)["now_ms"] == START_MS + 14_000
    restate(step, taken=1)
    assert fewer_found(spark, history) == []
    restate(last_in(history, 25), taken=0)
    assert len(fewer_found(spark, history)) == 1


def test_the_step_that_obeys_an_order_counts_nothing_by_it_yet(spark: SparkSession) -> None:
    """It is committed before its master counts for the order: what comes in between it need not
    know."""
    history = paced(again_ms=15_000)
    step = last_in(history, 25)
    order = stated(step)["quotas"]["orders"][2]
    steps = [stated(each) for each in history.frontier if "quotas" in stated(each)]
    first = next(said for said in steps if said["quotas"]["orders"][2] == order)
    assert first["now_ms"] == START_MS + 15_000
    restate(step, taken=1)
    assert fewer_found(spark, history) == []


@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(0, 10**14), min_size=1, max_size=200))
def test_the_audit_counts_in_the_seconds_in_which_a_step_does(
    spark: SparkSession, nows_ms: list[int]
) -> None:
    """The window is written twice, for a step and for a column: both name the same seconds."""
    edges = [second * 1_000 + off for second in (0, 9, 10, 1_785_000_000) for off in (0, 1, 999)]
    rows = spark.createDataFrame([(now_ms,) for now_ms in (*nows_ms, *edges)], "now_ms bigint")
    counted = rows.select("now_ms", counted_seconds(F.col("now_ms")).alias("seconds")).collect()
    assert [row.seconds for row in counted] == [[*rate_seconds(row.now_ms)] for row in counted]


def test_a_gate_by_a_rate_that_the_log_does_not_justify_is_found(spark: SparkSession) -> None:
    """A master that believes in more requests than came, and says so everywhere."""
    history = paced()
    gate = said(history, "fast/")[0].header("delayd-quota") or ""
    _, at_ms, pending, most, _, rate, topic = gate.split("/")
    told = Gate(topic, int(at_ms), RATE, int(pending), int(most), 99, int(rate))
    for each in said(history, "fast/"):
        if each.header("delayd-quota") == gate:
            each.headers[:] = gate_record(each.partition, told, LIMITS).headers
    for frontier in history.frontier:
        fields = stated(frontier)
        if fields["now_ms"] == int(at_ms):
            fields["quotas"]["orders"][6] = 99
            frontier.value = json.dumps(fields, separators=(",", ":")).encode()
    rows = frontier_of(tables_of(spark, history), history)
    assert any("more than the log has" in row.reason for row in rows), rows
