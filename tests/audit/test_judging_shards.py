"""A cluster with shards, as an audit sees it: each has a history of its own, by which its messages
are judged.

One world, in which almost everything happens; what is planted in it is found, and nothing else.
Source: docs/design/audit.md, "Shards".
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pytest
from audited import Tables, fates, findings_of, frontier_of, others_of, tables_of
from plans import Plan, header, send_all
from planting import Planter
from pyspark.sql import DataFrame, Row, SparkSession
from record_rows import Row as RecordRow
from world import CUT_APART_MS, START_MS, STEP_MS, World
from written import LIMITS, PARTITIONS, History, Written

from delayd.audit.judging.frontiers import STRAY, failovers_of, frontiers_of, reigns_of
from delayd.audit.judging.history import covered_by, history_of
from delayd.audit.judging.lateness import (
    AFTER_FAILOVER_MS,
    BEFORE_FAILOVER_MS,
    lateness_around,
    was_requeued,
)
from delayd.audit.judging.links import links_of
from delayd.audit.judging.replicas import expected_pending, judge_replicas
from delayd.audit.report import NodeState
from delayd.audit.tables import RECORDS
from delayd.bus.murmur2 import partition_of
from delayd.request import order_record
from replication.frontier import Frontier
from replication.holds import Order
from replication.rank import Rank
from replication.record import decode
from replication.rules import Barrier
from replication.settings import RULES_VERSION
from replication.shards import home_in, shard_of

SHARDS: Final = 2
COUNT: Final = 4
TAKEN_MS: Final = 7_000
PAUSED_MS, RESUMED_MS = 3_000, 8_000
CUT_MS: Final = 14_000
HASTY_MS: Final = 3_200
"""When both shards make a step."""


def id_in(shard: int, name: str) -> str:
    """An id whose messages lie in a partition of this shard."""
    names = (f"{name}-{number}" for number in range(100))
    return next(n for n in names if shard_of(partition_of(n.encode(), PARTITIONS), SHARDS) == shard)


def send(world: World) -> Plan:
    """Everything that is sent."""
    plan = Plan(world)
    plan.sent = send_all(world, COUNT)
    for number in range(140):
        due = header("due", START_MS + 600 + 100 * number)
        topic = header("topic", "orders")
        plan.send("often", 100 * number, None, topic, due, partition=number % PARTITIONS)
    for number in range(48):
        due = header("due", START_MS + 1_000 + 170 * number)
        topic = header("topic", "mails")
        plan.send("mails", 150, None, topic, due, partition=number % PARTITIONS)
    for shard in range(SHARDS):
        id = id_in(shard, "hasty")
        plan.named(f"hasty target {shard}", 500, id, 5_050)
        plan.named(f"hasty cancel {shard}", HASTY_MS - 50, id, op="cancel")
        # Of what a debounce takes the place of nobody is told.
        id = id_in(shard, "bounced")
        named = (header("op", "debounce"), header("id", id), header("topic", "orders"))
        for what, at_ms in (("bounced", 4_010), ("bounced again", 4_410)):
            times = (header("delay", "900ms"), header("max-wait", "9s"))
            plan.send(f"{what} {shard}", at_ms, id, *named, *times)
        # The histories of shards end here and there.
        for place in range(3):
            id = id_in(shard, f"between-{place}")
            due_ms = CUT_MS - CUT_APART_MS + 200 + 300 * place
            plan.named(f"between {shard}", 900, id, due_ms)
        _order(world, shard, PAUSED_MS, 30_000)
    _order(world, 1, RESUMED_MS)
    _order(world, 0, RESUMED_MS - 2_000)
    return plan


def _order(world: World, shard: int, at_ms: int, until_ms: int = 0) -> Written:
    """Pause the topic of mails in a shard, or resume it."""
    order = Order("mails", START_MS + at_ms, until_ms and START_MS + until_ms, 0)
    limits = replace(LIMITS, shards=SHARDS)
    partition, key, value, headers = order_record(order, limits, shard)
    assert partition == home_in("mails", shard, SHARDS, PARTITIONS)
    return world.send(at_ms, key, value, headers, partition)


class Played(NamedTuple):
    """A history, and what was sent."""

    history: History
    planter: Planter


def played() -> Played:
    """A correct history, to be changed."""
    world = World(shards=SHARDS, takeovers={1: TAKEN_MS})
    plan = send(world)
    history = world.run()
    cuts = history.bounds.cuts
    # An audit reads no more of the frontier.
    history.frontier = [it for it in history.frontier if it.offset <= cuts[it.partition].offset]
    return Played(history, Planter(history, plan.sent))


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Tables:
    """Of the correct history."""
    return tables_of(spark, played().history)


def steps_of(history: History, shard: int) -> list[Written]:
    return [each for each in history.frontier if each.partition == shard]


def stated(each: Written) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(each.value or b"")
    return found


# --- Nothing is wrong


def test_what_is_due_in_one_shard_and_not_in_another_is_no_finding(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Less than lies between the cuts.
    monkeypatch.setattr("delayd.audit.judging.fired.CLOCKS_APART_MS", 500)
    history = played().history
    assert findings_of(tables, history) == set()
    assert others_of(tables, history) == []
    assert tables.counts.orders == 2 * SHARDS
    found = fates(tables)
    assert found["delivered"] > 100 and found["cancelled"] > 10 and found["dead"] > 5
    assert "lost" not in found
    # Between shards nobody keeps the order: a rank that is lower came later, and from another one.
    ranks: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for each in history.targets:
        source = each.header("delayd-source") or ""
        due_ms = int(each.header("delayd-due") or 0)
        shard = shard_of(int(source.split("/")[0]), SHARDS)
        ranks.setdefault((each.topic, each.partition), []).append((due_ms, each.offset, shard))
    overtaken = [
        (one, other)
        for of_partition in ranks.values()
        for one in of_partition
        for other in of_partition
        if one[0] < other[0] and one[1] > other[1] and one[2] != other[2]
    ]
    assert len(overtaken) > 10


def test_the_step_of_a_message_is_the_first_of_its_shard_that_covers_it(
    spark: SparkSession, tables: Tables
) -> None:
    history = played().history
    bounds = history.bounds
    records = {
        shard: [
            (each.offset, decode(each.value or b"").frontier) for each in steps_of(history, shard)
        ]
        for shard in range(SHARDS)
    }
    links = links_of(frontiers(spark, history), bounds)
    stored = tables.logged.where("stored")
    found = covered_by(stored, history_of(links, bounds)).collect()
    expected = {}
    for row in found:
        shard, rank = shard_of(row.partition, SHARDS), Rank(row.rank_ms, row.partition, row.offset)
        steps = (at for at, frontier in records[shard] if frontier.covers(row.lane, rank))
        first = next(steps, None)
        expected[rank] = None if first is None else first * SHARDS + shard
    assert {Rank(r.rank_ms, r.partition, r.offset): r.step_at for r in found} == expected
    assert len(set(expected.values())) > 60


def frontiers(spark: SparkSession, history: History) -> DataFrame:
    records: list[RecordRow] = history.rows("frontier")
    return frontiers_of(spark.createDataFrame(records, RECORDS, verifySchema=False), SHARDS)


def test_terms_are_those_of_a_shard_and_lateness_is_of_its_messages(
    spark: SparkSession, tables: Tables
) -> None:
    history = played().history
    reigns = reigns_of(frontiers(spark, history)).collect()
    steps = [stated(each) for each in history.frontier]
    owners = {(each["shard"], each["term"]): each["owner"] for each in steps}
    assert len(owners) == 3
    assert {(r.shard, r.term): (r.owner, r.steps) for r in reigns} == {
        place: (owner, sum((each["shard"], each["term"]) == place for each in steps))
        for place, owner in owners.items()
    }
    [change] = failovers_of(reigns)
    assert (change.shard, change.term, change.old_owner, change.new_owner) == (
        *(1, 3, owners[1, 2], owners[1, 3]),
    )
    assert START_MS + TAKEN_MS <= change.at_ms < START_MS + TAKEN_MS + 2 * STEP_MS
    [around] = lateness_around(tables.messages, [(1, 3, change.at_ms)], SHARDS).collect()
    near = f"""fate = 'delivered' and pmod(partition, 2) = 1
        and greatest(planned_ms, append_ms) >= {change.at_ms - BEFORE_FAILOVER_MS}
        and greatest(planned_ms, append_ms) <= {change.at_ms + AFTER_FAILOVER_MS}"""
    assert around["count"] == tables.messages.where(near).where(~was_requeued()).count() > 10


# --- What is planted


class Plants:
    """Changes of the frontier, and what must be found of them: fault, partition and offset."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.expected: set[tuple[str, int, int]] = set()

    def step(self, number: int, shard: int = 1) -> Written:
        """A step of a shard that delivers something, with those around it."""
        steps = steps_of(self.history, shard)
        return next(
            each
            for before, each in zip(steps[number:], steps[number + 1 :], strict=False)
            if stated(each)["counts"]["delivered"] > 0
            and stated(each)["offsets"][shard] > stated(before)["offsets"][shard]
        )

    def before(self, each: Written) -> Written:
        steps = steps_of(self.history, each.partition)
        return steps[steps.index(each) - 1]

    def after(self, each: Written) -> Written:
        steps = steps_of(self.history, each.partition)
        return steps[steps.index(each) + 1]

    def change(self, fault: str, each: Written, change: Callable[[dict[str, Any]], object]) -> None:
        fields = stated(each)
        change(fields)
        each.value = json.dumps(fields, separators=(",", ":")).encode()
        self.expected.add((fault, each.partition, each.offset))

    def insert(self, like: Written, **changes: Any) -> Written:
        """One more record, in a gap between two."""
        made = replace(like, headers=[], **changes)
        taken = {each.offset for each in steps_of(self.history, made.partition)}
        made.offset = next(at for at in range(like.offset + 1, 10**6) if at not in taken)
        self.history.frontier.append(made)
        return made


def plant_steps(plants: Plants) -> None:
    """Most of them in shard 1."""
    at_ms = START_MS + HASTY_MS
    [gone] = [it for it in steps_of(plants.history, 0) if stated(it)["now_ms"] == at_ms - STEP_MS]
    plants.expected.add(("frontier-step", 0, plants.after(gone).offset))
    plants.history.frontier.remove(gone)
    missing = plants.step(8)
    plants.expected.add(("frontier-step", 1, plants.after(missing).offset))
    plants.history.frontier.remove(missing)
    lower = plants.step(13)
    past = stated(plants.before(lower))["offsets"][1]
    plants.change("frontier-back", lower, lambda it: it["offsets"].__setitem__(1, past - 1))
    plants.change("frontier-term", plants.step(18), lambda it: it.update(term=it["term"] - 1))
    fallen = plants.step(28)
    plants.change("frontier-false", fallen, lambda it: it.update(digest=it["digest"] + 1))
    ahead = plants.step(40)
    plants.change(
        "frontier-ahead", ahead, lambda it: it["cursor"].__setitem__(0, it["now_ms"] + 5_000)
    )
    others = plants.step(45)
    plants.change("frontier-broken", others, lambda it: it["offsets"].__setitem__(0, 3))
    fewer = plants.step(50)
    plants.change("frontier-broken", fewer, lambda it: it["settings"].update(shards=4))
    # A record of shard 0 where those of shard 1 are; and one that no reader takes for a frontier.
    near, other = plants.step(56), plants.step(56, 0)
    strange = plants.insert(near, value=other.value)
    plants.expected.add(("frontier-broken", 1, strange.offset))
    plants.insert(plants.step(23), value=other.value, key=b"shard-0")
    # What is true of shard 0 is no excuse for shard 1, nor the other way round.
    far = plants.step(70, 0)
    plants.change("frontier-false", far, lambda it: it["counts"].update(delivered=0))


def next_in(planter: Planter, shard: int, what: str) -> Written:
    """The next request of this kind that lies in a shard."""
    while True:
        found = planter.next(what)
        if shard_of(found.partition, SHARDS) == shard:
            return found


def plant_deliveries(planter: Planter) -> None:
    """Most of them in shard 1."""
    targets = planter.history.targets
    lost = next_in(planter, 1, "often")
    targets.remove(planter.delivery(lost))
    planter.expect("lost", lost)
    doubled = next_in(planter, 1, "often")
    planter.add(targets, planter.delivery(doubled))
    planter.expect("duplicate", doubled)
    early = next_in(planter, 1, "often")
    due_ms = int(early.header("delayd-due") or 0)
    planter.delivery(early).set("delayd-fired", b"%d" % (due_ms - STEP_MS))
    planter.expect("early", early)
    # At that time only shard 0 has made a step.
    between = next_in(planter, 1, "often")
    fired_ms = int(planter.delivery(between).header("delayd-fired") or 0)
    planter.delivery(between).set("delayd-fired", b"%d" % (fired_ms + STEP_MS))
    planter.expect("altered", between)
    # One whose shard has not come to it at its cut may still come out.
    for shard in range(SHARDS):
        waiting = planter.next(f"between {shard}")
        targets.remove(planter.delivery(waiting))
        if shard == 0:
            planter.expect("lost", waiting)
    # The step before had not reached it. Of shard 0 that is not known: it is gone.
    hasty = planter.sent["hasty target 1"][0]
    planter.deliver(hasty, START_MS + 5_200)
    mark = planter.next("hasty cancel 1")
    planter.tell(mark, verdict="too-late", killed=[])
    planter.expect("verdict-false", mark)
    # Its step had passed the debounce; shard 0 made one at that time too.
    ghost = planter.next("bounced 1")
    like = planter.delivery(planter.sent["bounced again 1"][0])
    made = planter.add(targets, like)
    made.set("delayd-source", ghost.place.encode())
    planter.expect("ghost", ghost)


def test_each_planted_defect_is_found_in_its_shard_and_nothing_else(spark: SparkSession) -> None:
    history, planter = played()
    plants = Plants(history)
    plant_steps(plants)
    plant_deliveries(planter)
    tables = tables_of(spark, history)
    found = findings_of(tables, history)
    kinds = [(fault, str(source)) for fault, source, _ in found]
    assert sorted(kinds) == sorted(planter.expected), found
    others = others_of(tables, history)
    wrong = [(row.fault, row.partition, row.offset) for row in others]
    assert sorted(wrong) == sorted(plants.expected), others
    assert {row.topic for row in others} == {"delayd-frontier"}
    assert frontiers(spark, history).where(f"flaw = '{STRAY}'").count() == 1
    waiting = planter.sent["between 1"][0]
    [row] = tables.messages.where(
        f"partition = {waiting.partition} and offset = {waiting.offset}"
    ).collect()
    assert row.fate == "pending" and not row.is_done


def test_what_kafka_has_deleted_of_one_shard_excuses_no_step_of_another(
    spark: SparkSession, tables: Tables
) -> None:
    """A step is judged if it had passed all that is gone of its own partitions. And a barrier is
    missed in the frontier of its shard."""
    history, _ = played()
    plants = Plants(history)
    false = [plants.step(70, 0), plants.step(50, 1)]
    for each in false:
        plants.change("frontier-false", each, lambda it: it.update(digest=it["digest"] + 1))
    settings, barrier = history.bounds.settings, Barrier(3, 9, RULES_VERSION + 1)
    plants.expected.add(("frontier-false", 1, history.bounds.cuts[1].offset))
    bounds = replace(
        history.bounds,
        buffer_starts=(4, 4, 0, 0),
        trimmed_ms={settings.buffer.name: (START_MS + 1,) * PARTITIONS},
        settings=replace(settings, max_delay_ms=6_000),
        logged_barriers=(barrier,),
    )
    is_left = "partition > 1 or offset >= 4"
    left = tables._replace(logged=tables.logged.where(is_left))
    others = others_of(left, replace(history, bounds=bounds))
    assert {(row.fault, row.partition, row.offset) for row in others} == plants.expected


# --- Pauses


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_pause_is_held_in_each_shard_by_its_own_order(tables: Tables, shard: int) -> None:
    history = played().history
    orders = [each for each in history.buffer if each.header("delayd-hold")]
    assert {each.partition for each in orders} == {
        home_in("mails", each, SHARDS, PARTITIONS) for each in range(SHARDS)
    }
    held = [each for each in steps_of(history, shard) if "holds" in stated(each)]
    dropped, moved = held[3], held[12]
    for each in (dropped, moved):
        fields = stated(each)
        if each is dropped:
            del fields["holds"], fields["needs"]["holds"]
        else:
            fields["holds"]["mails"][3] += 500
        each.value = json.dumps(fields, separators=(",", ":")).encode()
    found = {
        (row.fault, row.partition, row.offset): row.reason for row in frontier_of(tables, history)
    }
    assert found.keys() == {
        ("frontier-held", shard, dropped.offset),
        ("frontier-held", shard, moved.offset),
    }
    assert "is not among its holds" in found["frontier-held", shard, dropped.offset]
    assert "no order is there" in found["frontier-held", shard, moved.offset]


# --- Replicas


def test_a_node_holds_at_the_cut_what_each_shard_has_not_done(
    spark: SparkSession, tables: Tables
) -> None:
    bounds = played().history.bounds
    joint = bounds.frontier
    expected = expected_pending(tables.logged, bounds).cache()
    rows = expected.collect()
    pending = {(row.partition, row.offset) for row in rows}
    by_definition = {
        (row.partition, row.offset)
        for row in tables.logged.where("stored").collect()
        if row.offset < joint.offsets[row.partition]
        and not joint.covers(row.lane, Rank(row.rank_ms, row.partition, row.offset))
        and not _is_killed(row, joint.offsets)
    }
    assert pending == by_definition
    apart = [row for row in rows if shard_of(row.partition, SHARDS) == 1 and _is_passed(row, joint)]
    assert len(apart) > 2
    held = [row for row in rows if row is not apart[0]]
    copies = [row.asDict() | {"node": "n", "digest": row.id and b"x" * 16} for row in held]
    exported = spark.createDataFrame(copies, expected.schema)
    nodes = [NodeState("n", "n:1", len(held), None)]
    [found] = judge_replicas(expected, exported, nodes, bounds).collect()
    assert (found.fault, found.source) == (
        "replica-missing",
        f"{apart[0].partition}/{apart[0].offset}",
    )


def _is_passed(row: Row, joint: Frontier) -> bool:
    """Has K of shard 0 passed it?"""
    return bool(Rank(row.due_ms, row.partition, row.offset) < joint.cursors[row.lane])


def _is_killed(row: Row, offsets: tuple[int, ...]) -> bool:
    return row.killed_by is not None and bool(row.killed_by < offsets[row.partition])
