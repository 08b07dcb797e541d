"""What becomes of the pieces of a step that Kafka has ended in part only.

A made-up log: each step writes to two targets, to the buffer and the dead letters, and its frontier
record. Source: docs/design/lost-markers.md.
"""

import json
from dataclasses import replace

import pytest
from cluster_settings import SETTINGS
from marker_logs import (
    ABORT,
    BUFFER,
    COMMIT,
    DEAD,
    EACH,
    FRONTIER,
    LOST,
    MASTER,
    RECEIPTS,
    A,
    B,
    Log,
    endings,
    frontier,
    full,
    now_of,
    sources,
    written_again,
)  # fmt: skip

from delayd.bus import Headers
from delayd.bus.raw import Marker, Place, ProducerEpoch
from delayd.commands.recover.marker.deciding import Fate
from delayd.commands.recover.marker.pieces import OWNER, Kind, kind_of
from delayd.commands.recover.marker.wholeness import Lack
from replication.frontier import begin_term
from replication.record import encode


def test_what_is_visible_as_a_whole_is_left_alone() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.step(2, ABORT, ABORT, ABORT)
    assert log.plan(full(1)).is_empty


def test_a_targets_lost_marker_is_written_as_it_was_elsewhere() -> None:
    log = Log()
    log.step(1, LOST, COMMIT, COMMIT)
    plan = log.plan(full(1))
    [(run, marker)] = plan.endings
    assert (run.place, marker) == (A, Marker(MASTER, True, 5, -1))
    assert not plan.again and not plan.problems
    assert [dealt.fate for dealt in plan.dealt] == [Fate.COMMITTED]


def test_the_marker_of_a_transaction_with_an_epoch_of_its_own_is_that_of_the_others() -> None:
    log = Log()
    log.target(A, 1, LOST)
    log.target(B, 1, None)
    log.end(B, COMMIT, ProducerEpoch(MASTER.id, MASTER.epoch + 1))
    log.write(FRONTIER, [([], encode(full(1)))])
    log.end(FRONTIER, COMMIT, ProducerEpoch(MASTER.id, MASTER.epoch + 1))
    [(_, marker)] = log.plan(full(1)).endings
    assert marker.producer == ProducerEpoch(MASTER.id, MASTER.epoch + 1)


def test_the_frontiers_lost_marker_is_written_last() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.step(2, LOST, COMMIT, LOST)
    plan = log.plan(full(1))
    assert endings(plan) == {A: True, FRONTIER: True}
    assert [ending.run.place for ending in plan.endings] == [A, FRONTIER]


def test_a_complete_step_of_which_nothing_is_visible_is_committed_as_a_whole() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.step(2, LOST, LOST, LOST)
    plan = log.plan(full(1))
    assert endings(plan) == {A: True, B: True, FRONTIER: True}
    assert plan.endings[-1].run.place == FRONTIER and not plan.again


def test_a_step_that_was_aborted_somewhere_never_was() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.step(2, LOST, ABORT, LOST)
    plan = log.plan(full(1))
    assert endings(plan) == {A: False, FRONTIER: False}
    assert plan.endings[-1].run.place == FRONTIER and not plan.again and not plan.problems


def test_an_incomplete_step_of_which_nothing_is_visible_never_was() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.target(A, 2, LOST)
    log.write(FRONTIER, [([], encode(full(2)))])
    assert endings(log.plan(full(1))) == {A: False, FRONTIER: False}


def test_a_step_without_a_frontier_record_never_was() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.target(A, 2, LOST)
    assert endings(log.plan(full(1))) == {A: False}


def test_a_step_that_another_one_has_followed_is_not_committed_behind_it() -> None:
    log = Log()
    log.step(2, LOST, LOST, LOST)
    assert set(endings(log.plan(full(3))).values()) == {False}


def test_a_step_that_may_be_visible_where_nobody_may_look_is_not_aborted() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.target(A, 2, LOST)
    log.write(FRONTIER, [([], encode(full(2)))])
    plan = log.plan(full(1), is_all_seen=False)
    assert not plan.endings and plan.problems
    assert endings(log.plan(full(1))) == {A: False, FRONTIER: False}


def test_no_frontier_becomes_visible_while_messages_of_its_step_are_nowhere() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.target(A, 2, COMMIT)
    log.write(FRONTIER, [([], encode(full(2)))])
    plan = log.plan(full(1))
    assert not plan.endings and len(plan.problems) == 1
    assert [dealt.fate for dealt in plan.dealt] == [Fate.LEFT]


def test_messages_that_are_nowhere_are_told_of_where_the_frontier_is_visible() -> None:
    log = Log()
    log.target(A, 1, LOST)
    log.write(FRONTIER, [([], encode(full(1)))])
    log.end(FRONTIER, COMMIT)
    plan = log.plan(full(1))
    assert endings(plan) == {A: True} and plan.missing == {1: Lack(messages=EACH)}


def test_what_was_aborted_beside_visible_records_is_written_again_once() -> None:
    log = Log()
    log.step(1, ABORT, COMMIT, COMMIT)
    plan = log.plan(full(1))
    assert written_again(plan) == {A} and not plan.endings and plan.frontier is None
    tool = ProducerEpoch(MASTER.id, MASTER.epoch + 1)
    log.target(A, 1, COMMIT, tool)
    log.write(FRONTIER, [([], encode(replace(frontier(2), owner=OWNER)))], tool)
    log.end(FRONTIER, COMMIT, tool)
    assert log.plan(frontier(2)).is_empty


def test_a_frontier_that_was_aborted_beside_visible_records_is_written_again_once() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.step(2, COMMIT, ABORT, ABORT)
    plan = log.plan(full(1))
    assert plan.frontier == full(2) and written_again(plan) == {B}
    tool = ProducerEpoch(MASTER.id, MASTER.epoch + 1)
    log.target(B, 2, COMMIT, tool)
    log.write(FRONTIER, [([], encode(replace(full(2), owner=OWNER)))], tool)
    log.end(FRONTIER, COMMIT, tool)
    assert log.plan(full(2)).is_empty


def test_a_frontier_is_written_again_behind_a_term_that_delivered_nothing() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.step(2, COMMIT, COMMIT, ABORT)
    plan = log.plan(replace(full(1), frontier=begin_term(full(1).frontier)))
    assert plan.frontier == full(2) and not plan.doubled and not plan.problems


def test_a_step_that_a_successor_has_repeated_is_not_delivered_once_more() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.step(2, LOST, COMMIT, ABORT)
    plan = log.plan(frontier(3, now_ms=now_of(9)))
    assert endings(plan) == {A: False} and not plan.again
    assert [step.name.now_ms for step in plan.doubled] == [now_of(2)]


def test_a_run_of_two_steps_that_want_different_ends_is_aborted_and_written_again() -> None:
    log = Log()
    log.step(1, LOST, COMMIT, COMMIT)
    log.target(A, 2, LOST)
    plan = log.plan(full(1))
    assert endings(plan) == {A: False}
    [dealt] = plan.again
    assert [each.headers[2][1] for each in dealt.records] == [s.encode() for s in sources(A, 1)]


def test_a_visible_step_without_a_frontier_record_is_for_another_tool() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.target(A, 2, COMMIT)
    log.target(B, 2, LOST)
    plan = log.plan(full(1))
    assert not plan.endings and plan.problems


@pytest.mark.parametrize(
    ("place", "headers", "value"),
    [
        (BUFFER, [("delayd-continues", b"1")], b""),
        (RECEIPTS, [("delayd-source", b"1/110")], json.dumps({"at_ms": now_of(2)}).encode()),
        (DEAD, [("delayd-reason", b"bad"), ("delayd-source", b"1/110")], b""),
    ],
    ids=["buffer", "receipts", "dead"],
)
def test_what_a_step_wrote_to_delayds_own_topics_is_its_own(
    place: Place, headers: Headers, value: bytes
) -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    if place == BUFFER:
        log.ends[place] = 15  # above R of step 1
    log.write(place, [(headers, value)])
    log.step(2, COMMIT, COMMIT, COMMIT)
    plan = log.plan(full(2))
    assert endings(plan) == {place: True}
    [dealt] = plan.dealt
    assert dealt.step is not None and dealt.step.name.now_ms == now_of(2)


def test_what_a_failed_step_wrote_to_the_buffer_is_not_taken_for_the_steps_before() -> None:
    """It has no frontier record, and its coordinator has aborted it under a higher epoch."""
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.ends[BUFFER] = 15
    log.write(BUFFER, [([("delayd-continues", b"1")], b"")])
    log.end(BUFFER, ABORT, ProducerEpoch(MASTER.id, MASTER.epoch + 1))
    assert log.plan(full(1)).is_empty


def test_what_a_failed_step_wrote_behind_a_lost_marker_is_not_written_again() -> None:
    """Its abort has dropped both: only the step before was visible elsewhere."""
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.ends[BUFFER] = 15
    log.write(BUFFER, [([("delayd-continues", b"1")], b"of step 2")])
    log.step(2, COMMIT, COMMIT, COMMIT)
    log.ends[BUFFER] = 25
    log.write(BUFFER, [([("delayd-continues", b"2")], b"of step 3")])
    log.end(BUFFER, ABORT, ProducerEpoch(MASTER.id, MASTER.epoch + 1))
    [dealt] = log.plan(full(2)).again
    assert [record.value for record in dealt.records] == [b"of step 2"]


def test_what_a_failed_step_wrote_behind_a_marker_that_is_lost_for_good_is_dropped() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.ends[BUFFER] = 15
    log.write(BUFFER, [([("delayd-continues", b"1")], b"of step 2")])
    log.step(2, COMMIT, COMMIT, COMMIT)
    log.ends[BUFFER] = 25
    log.write(BUFFER, [([("delayd-continues", b"2")], b"of step 3")])
    plan = log.plan(full(2))
    assert endings(plan) == {BUFFER: False} and not plan.problems
    [dealt] = plan.again
    assert [record.value for record in dealt.records] == [b"of step 2"]


def test_a_letter_is_of_the_step_of_its_batch() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    refused: Headers = [("delayd-reason", b"bad"), ("delayd-source", b"1/110")]
    failed: Headers = [("delayd-reason", b"dead"), ("delayd-source", b"1/10")]
    log.write(DEAD, [(failed, b""), (refused, b"")])
    log.step(2, COMMIT, COMMIT, COMMIT)
    [dealt] = log.plan(full(2)).dealt
    assert dealt.step is not None and len(dealt.records) == 2


def test_a_step_with_an_epoch_of_its_own_is_known_by_the_one_before() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    own = ProducerEpoch(MASTER.id, MASTER.epoch + 1)
    log.ends[BUFFER] = 15
    log.write(BUFFER, [([("delayd-continues", b"1")], b"")], own)
    log.write(FRONTIER, [([], encode(frontier(2, own=log.own)))], own)
    log.end(FRONTIER, COMMIT, own)
    assert endings(log.plan(frontier(2, own=log.own))) == {BUFFER: True}


def test_a_letter_of_an_unknown_step_follows_the_steps_of_its_producer() -> None:
    for how, fate in ((COMMIT, Fate.COMMITTED), (ABORT, Fate.ABORTED)):
        log = Log()
        log.step(1, how, how, how)
        log.write(DEAD, [([("delayd-reason", b"dead"), ("delayd-source", b"1/110")], b"")])
        [dealt] = log.plan(frontier(1)).dealt
        assert dealt.fate is fate and dealt.step is None


def test_kinds() -> None:
    assert kind_of("delayd-dead", SETTINGS) is Kind.DEAD
    assert kind_of("anything", SETTINGS) is Kind.TARGET
