"""Correct histories make no finding, whatever the cluster tells and Kafka has kept."""

from dataclasses import replace

import pytest
from audited import Tables, fates, findings_of, kept, marks, tables_of
from plans import Plan, send_random, send_series, send_with_redrives
from pyspark.sql import SparkSession
from world import START_MS, TARGETS, World
from written import PARTITIONS, History, Written

from chaos.judge import judge
from chaos.records import Logged
from delayd.audit.judging.ids import logged_of
from delayd.audit.judging.messages import judge_messages
from delayd.audit.judging.request_counts import counts_of

TRIMMED_MS = START_MS + 4_000


def logged_as(records: list[Written]) -> list[Logged]:
    """As the judge of the chaos tests has them."""
    return [
        Logged(*(r.topic, r.partition, r.offset, r.timestamp_ms, r.key, r.value), tuple(r.headers))
        for r in records
    ]


@pytest.mark.parametrize("seed", range(20))
def test_the_judge_of_the_chaos_tests_finds_worlds_correct(seed: int) -> None:
    """So that no finding of the audit's in a world is the world's fault. That judge knows nothing
    of ids that are forgotten."""
    world = World(id_memory_ms=3_600_000)
    send_random(world, seed, ids=5 + seed)
    history = world.run()
    parts = (history.buffer, history.targets, history.dead, history.receipts)
    found = judge(*(logged_as(part) for part in parts))
    assert found.ok, f"seed {seed}: {found}"


def test_the_chaos_judge_finds_nothing_wrong_with_series() -> None:
    world = World(id_memory_ms=3_600_000)
    plan = Plan(world)
    for number in range(6):
        send_series(plan, number)
    history = world.run()
    parts = (history.buffer, history.targets, history.dead, history.receipts)
    found = judge(*(logged_as(part) for part in parts), until_ms=START_MS + 19_000)
    assert found.ok, found
    lost = next(each for each in history.targets if each.header("delayd-occurrence") == "2")
    for targets in ([each for each in parts[1] if each is not lost], [*parts[1], lost]):
        assert not judge(*(logged_as(part) for part in (parts[0], targets, *parts[2:]))).ok
    assert found.outcomes["message: recurring"] > 30 < found.outcomes["message: delivered"], found


def test_a_correct_history_makes_no_finding_nor_does_what_is_left_of_it(
    spark: SparkSession,
) -> None:
    history = send_with_redrives("all")[0].run()
    tables = tables_of(spark, history)
    assert findings_of(tables, history) == set()
    found = fates(tables)
    wanted = {"delivered", "cancelled", "replaced", "rejected", "duplicate", "conflict", "dead"}
    wanted |= {"expired", "recurring"}
    assert found.keys() == wanted | {"pending"}, found
    of_users = sum(is_of_user(each) for each in history.buffer)
    assert tables.messages.where("origin = offset").count() == of_users
    assert sum(found.values()) > of_users + found["recurring"], "occurrences count, too"
    assert marks(tables).keys() == {"cancelled", "replaced", "too-late", "not-found", "scheduled"}
    # `delayd recover frontier` begins a new topic at a later step.
    begins = len(history.frontier) // 2
    lost_ms = history.frontier[begins].timestamp_ms
    fired_ms = [int(each.header("delayd-fired") or 0) for each in history.targets]
    assert sum(each < lost_ms for each in fired_ms) > 5 < sum(each > lost_ms for each in fired_ms)
    assert findings_of(tables, replace(history, frontier=history.frontier[begins:])) == set()
    # Retention has deleted what was written in the first seconds.
    left, rest = trimmed(tables, history)
    assert findings_of(left, rest) == set()
    found = fates(left)
    assert "unproven" in found and "lost" not in found, found


def is_of_user(request: Written) -> bool:
    """Is it a request of a user, but no valid cancel?"""
    is_cancel = request.header("delayd-op") == "cancel" and request.header("delayd-topic") is None
    is_own = any(request.header(f"delayd-{name}") is not None for name in ("origin", "settles"))
    return not is_cancel and not is_own


def trimmed(tables: Tables, history: History) -> tuple[Tables, History]:
    """What retention leaves of a history."""
    starts = [0] * PARTITIONS
    for written in history.buffer:
        if written.timestamp_ms < TRIMMED_MS:
            starts[written.partition] = max(starts[written.partition], written.offset + 1)
    settings = history.bounds.settings
    names = [topic.name for topic in settings.topics] + list(TARGETS)
    bounds = replace(
        history.bounds,
        buffer_starts=tuple(starts),
        trimmed_ms=dict.fromkeys(names, (TRIMMED_MS,) * PARTITIONS),
        settings=replace(settings, max_delay_ms=3_000),
    )
    is_left = " or ".join(f"(partition = {p} and offset >= {s})" for p, s in enumerate(starts))
    requests = kept(tables.requests.where(is_left))
    counts = counts_of(requests, targets_max=100)
    assert counts is not None
    logged = kept(logged_of(requests, bounds.settings, counts))
    deliveries, receipts, letters = (
        kept(part.where(f"timestamp_ms >= {TRIMMED_MS}"))
        for part in (tables.deliveries, tables.receipts, tables.letters)
    )
    messages = kept(judge_messages(logged, deliveries, letters, bounds))
    left = Tables(requests, logged, deliveries, receipts, letters, messages, counts)
    return left, replace(history, bounds=bounds)
