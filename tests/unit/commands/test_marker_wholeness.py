"""A step whose records are not all in the log, or that cannot be told from another one, is never
taken for a whole one; and nothing that hangs is passed over in silence.

Source: docs/design/lost-markers.md.
"""

import json
from dataclasses import replace

import pytest
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
    delivery,
    endings,
    frontier,
    full,
    now_of,
    sources,
)  # fmt: skip

from delayd.bus import Headers
from delayd.bus.raw import Batch, Place, ProducerEpoch
from delayd.commands.recover.marker.deciding import Fate
from delayd.commands.recover.marker.pieces import OWNER
from delayd.commands.recover.marker.wholeness import Lack
from delayd.request import DIED
from replication.record import encode

CONTINUED: tuple[Headers, bytes] = ([("delayd-continues", b"1")], b"")
SETTLED: tuple[Headers, bytes] = ([("delayd-settles", b"1")], b"")
REFUSED: tuple[Headers, bytes] = (
    [("delayd-reason", b"bad"), ("delayd-source", b"1/110")],
    b"",
)
FAILED: tuple[Headers, bytes] = (
    [("delayd-reason", b"dead"), ("delayd-source", b"1/110")],
    b"",
)
EXPIRED: tuple[Headers, bytes] = (
    [("delayd-reason", b"expired"), ("delayd-source", b"1/110")],
    b"",
)
OVER: tuple[Headers, bytes] = (
    [("delayd-reason", b"no-occurrence"), ("delayd-source", b"1/110")],
    b"",
)
FOLLOWS: tuple[Headers, bytes] = ([("delayd-continues", b"1"), ("delayd-follows", b"yes")], b"")
NEXT = ProducerEpoch(MASTER.id, MASTER.epoch + 1)


def receipt(step: int, source: str, verdict: str) -> tuple[Headers, bytes]:
    said = {"source": source, "verdict": verdict, "at_ms": now_of(step)}
    return [("delayd-source", source.encode())], json.dumps(said).encode()


ANSWERED = receipt(2, "1/150", "cancelled")
WRITTEN = {
    "requeued": (BUFFER, CONTINUED, {"retried": 1}, Lack(messages=1)),
    "settled": (BUFFER, SETTLED, {}, Lack(answers=1)),
    "refused": (DEAD, REFUSED, {"answers": 1}, Lack(answers=1)),
    "dead": (DEAD, FAILED, {"dead": 1}, Lack(messages=1)),
    "expired": (DEAD, EXPIRED, {"dead": 1}, Lack(messages=1)),
    "no-occurrence": (DEAD, OVER, {"dead": 1}, Lack(messages=1)),
    "answered": (RECEIPTS, ANSWERED, {"answers": 1}, Lack(answers=1)),
}
"""What a step writes beside its deliveries: where, what, how it is counted, and what is lacking
where the log has lost it."""


def played(kind: str, *, is_lost: bool, a: bool | None, b: bool | None, end: bool | None) -> Log:
    """A step, and another one whose record of this kind is in the log, or was lost with its end."""
    place, record, counts, _ = WRITTEN[kind]
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.write(place, [record])
    if is_lost:
        log.places[place].clear()
    else:
        log.end(place, COMMIT if COMMIT in (a, b, end) else LOST)
    log.step(2, a, b, end, counts=counts)
    return log


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_step_that_has_lost_something_else_is_no_whole_one(kind: str) -> None:
    """What is nowhere would be lost: neither delivered, nor pending behind the frontier."""
    plan = played(kind, is_lost=True, a=LOST, b=LOST, end=LOST).plan(full(1))
    assert endings(plan) == {A: False, B: False, FRONTIER: False} and not plan.problems


@pytest.mark.parametrize("kind", [kind for kind in WRITTEN if kind not in DIED])
def test_a_step_is_whole_with_all_that_it_has_written(kind: str) -> None:
    plan = played(kind, is_lost=False, a=LOST, b=LOST, end=LOST).plan(full(1))
    assert endings(plan) == dict.fromkeys((A, B, FRONTIER, WRITTEN[kind][0]), True)
    assert not plan.problems


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_a_visible_step_has_lost_is_told_of(kind: str) -> None:
    plan = played(kind, is_lost=True, a=LOST, b=COMMIT, end=COMMIT).plan(full(2))
    assert endings(plan) == {A: True} and plan.missing == {2: WRITTEN[kind][3]}
    plan = played(kind, is_lost=False, a=LOST, b=COMMIT, end=COMMIT).plan(full(2))
    assert endings(plan) == {A: True} and not plan.missing


@pytest.mark.parametrize("kind", ["requeued", *sorted(DIED)])
def test_no_frontier_becomes_visible_while_requeued_or_dead_messages_are_nowhere(kind: str) -> None:
    plan = played(kind, is_lost=True, a=COMMIT, b=COMMIT, end=LOST).plan(full(1))
    assert not plan.endings and len(plan.problems) == 1


@pytest.mark.parametrize("kind", ["refused", "answered", "settled"])
def test_answers_that_are_nowhere_do_not_keep_a_visible_step_from_its_frontier(kind: str) -> None:
    """What is visible cannot be taken back: without its frontier it would be doubled."""
    plan = played(kind, is_lost=True, a=COMMIT, b=COMMIT, end=LOST).plan(full(1))
    assert endings(plan) == {FRONTIER: True} and plan.missing == {2: Lack(answers=1)}


def test_what_follows_an_occurrence_is_not_counted_as_requeued() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.write(BUFFER, [FOLLOWS])
    log.end(BUFFER, LOST)
    log.step(2, LOST, LOST, LOST, counts={})
    plan = log.plan(full(1))
    assert set(endings(plan).values()) == {True} and not plan.problems


def test_receipts_of_deliveries_are_no_answers() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.write(RECEIPTS, [receipt(2, "1/150", "delivered"), receipt(2, "1/151", "dead")])
    log.step(2, LOST, LOST, LOST, counts={"answers": 1})
    assert set(endings(log.plan(full(1))).values()) == {False}


def test_a_letter_of_an_unknown_step_may_be_of_the_step_that_counts_one() -> None:
    log = played("dead", is_lost=False, a=COMMIT, b=COMMIT, end=LOST)
    plan = log.plan(full(1))
    assert endings(plan) == {FRONTIER: True} and not plan.problems and not plan.missing


def test_two_steps_of_one_millisecond_are_not_told_apart_and_not_mended() -> None:
    """The clock stepped back. Taken for one, the second would be committed without its messages."""
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.step(2, COMMIT, COMMIT, COMMIT)
    log.target(A, 3, LOST, now_ms=now_of(1))  # those for B are in no log
    log.write(FRONTIER, [([], encode(replace(full(3), now_ms=now_of(1))))])
    plan = log.plan(full(2))
    assert not plan.endings and not plan.again
    assert plan.problems and all("same millisecond" in each for each in plan.problems)


def test_steps_of_one_millisecond_are_left_alone_where_all_is_visible() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.step(2, COMMIT, COMMIT, COMMIT, now_ms=now_of(1))
    log.step(3, LOST, COMMIT, COMMIT)
    plan = log.plan(full(3))
    assert endings(plan) == {A: True} and not plan.problems


def test_an_unfinished_step_is_not_taken_for_a_visible_one_of_the_same_millisecond() -> None:
    """It was aborted: written again, its messages would be doubled."""
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.step(2, COMMIT, COMMIT, COMMIT)
    log.target(A, 3, ABORT, now_ms=now_of(1))
    assert log.plan(full(2)).is_empty


def test_an_unfinished_step_that_hangs_is_not_committed_for_a_visible_one() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.step(2, COMMIT, COMMIT, COMMIT)
    log.target(A, 3, LOST, now_ms=now_of(1))
    plan = log.plan(full(2))
    assert not plan.endings and plan.problems


def test_what_hangs_from_before_the_first_known_frontier_is_not_aborted() -> None:
    """The frontier topic is compacted: the record of the step is gone, and it may have been
    committed. An abort would lose its messages."""
    log = Log()
    log.target(A, 1, LOST)
    log.bare(2)
    plan = log.plan(frontier(2))
    assert not plan.endings and plan.problems
    assert [dealt.fate for dealt in plan.dealt] == [Fate.LEFT]


def test_what_hangs_from_a_term_before_the_first_known_one_is_not_aborted() -> None:
    log = Log()
    log.target(A, 1, LOST, now_ms=now_of(9))  # its clock was ahead
    log.bare(2, NEXT)
    plan = log.plan(frontier(2))
    assert not plan.endings and plan.problems


def test_a_first_step_of_a_term_that_did_not_come_to_its_frontier_never_was() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.target(A, 2, LOST, NEXT)
    assert endings(log.plan(full(1))) == {A: False}


@pytest.mark.parametrize("place", [DEAD, BUFFER])
def test_what_hangs_of_a_producer_without_known_steps_is_not_aborted(place: Place) -> None:
    log = Log()
    log.write(place, [FAILED if place == DEAD else CONTINUED])
    log.bare(2, NEXT)
    plan = log.plan(frontier(2))
    assert not plan.endings and plan.problems


def test_a_hanging_run_that_no_step_explains_is_a_problem() -> None:
    """An earlier run of this program wrote it, and its marker was lost, too."""
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.target(A, 1, LOST, NEXT)
    log.write(FRONTIER, [([], encode(replace(frontier(2), owner=OWNER)))], NEXT)
    log.end(FRONTIER, COMMIT, NEXT)
    plan = log.plan(frontier(2))
    assert not plan.endings and any(str(A) in each for each in plan.problems)


def test_a_frontier_of_this_program_that_hangs_is_a_problem() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.write(FRONTIER, [([], encode(replace(frontier(2), owner=OWNER)))], NEXT)
    plan = log.plan(full(1))
    assert not plan.endings and any(str(FRONTIER) in each for each in plan.problems)


def test_a_run_of_which_only_a_part_is_explained_is_a_problem() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    bare: tuple[Headers, bytes] = ([], b"nobody's")
    log.write(FRONTIER, [bare])
    [batch] = log.places[FRONTIER][-1:]
    assert isinstance(batch, Batch)
    batch.records[0] = batch.records[0]._replace(key=b"other")
    log.step(2, LOST, COMMIT, LOST)
    plan = log.plan(full(1))
    assert FRONTIER not in endings(plan) and plan.problems


def test_a_lack_is_added_up() -> None:
    log = Log()
    log.step(1, COMMIT, COMMIT, COMMIT)
    log.target(A, 2, LOST)
    log.write(FRONTIER, [([], encode(full(2, counts={"retried": 3, "dead": 2, "answers": 4})))])
    log.end(FRONTIER, COMMIT)
    assert log.plan(full(2)).missing == {2: Lack(messages=EACH + 3 + 2, answers=4)}
    assert delivery(2, sources(B, 2)[0])
