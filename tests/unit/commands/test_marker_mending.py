"""Whatever Kafka has made of a step's markers, and wherever the tool is killed, a step ends up
visible as a whole and once, or not at all; and its frontier says which.

A made-up Kafka of three partitions: two targets and the frontier. All 27 ways in which the markers
of the last step may have come out are played, with a kill before each write in turn.
Source: docs/design/lost-markers.md, "Killed half-way, run twice".
"""

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from cluster_settings import SETTINGS
from marker_kafka import FRONTIER, TARGETS, FakeKafka, FakeLooker, KilledError, frontier, source

from delayd.bus import Headers
from delayd.commands.move.old_cluster import _moved
from delayd.commands.recover.marker.looking import Facts
from delayd.commands.recover.marker.mending import Mended, at_work, mend
from delayd.commands.recover.marker.survey import Survey
from delayd.errors import KafkaUnreachableError, RecoverError
from replication.frontier import begin_term
from replication.record import decode, encode, record_key

NOW_MS = 1_000_000
COMMIT, ABORT, LOST = True, False, None


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayd.commands.recover.marker.survey.AGAIN_S", 0)
    monkeypatch.setattr("delayd.commands.recover.marker.mending.WATCH_S", 0)


def played(markers: tuple[bool | None, ...]) -> FakeKafka:
    """Two steps, the second with these markers, in the targets and on the frontier."""
    kafka = FakeKafka()
    for step, ends in ((1, (COMMIT,) * 3), (2, markers)):
        for place, end in zip((*TARGETS, FRONTIER), ends, strict=True):
            if place == FRONTIER:
                kafka.append(place, record_key(0), encode(frontier(step)), [], kafka.epochs[0])
            else:
                headers: Headers = [
                    ("delayd-due", b"1"),
                    ("delayd-fired", b"%d" % (NOW_MS + step)),
                    ("delayd-source", source(place, step).encode()),
                ]
                kafka.append(place, None, b"%d" % step, headers, kafka.epochs[0])
            if end is not None:
                kafka.end(place, kafka.epochs[0], is_commit=end)
    return kafka


def run(kafka: FakeKafka) -> Mended:
    facts, mended = mend(kafka, kafka, FakeLooker(kafka), SETTINGS, 1)  # type: ignore[arg-type]
    assert facts.plan.is_empty and not facts.plan.problems
    return mended


def judge(kafka: FakeKafka, markers: tuple[bool | None, ...]) -> None:
    """All or nothing of the second step is visible, and nothing hangs."""
    expected = 1 if COMMIT in markers or {*markers} == {LOST} else 0
    for place in TARGETS:
        found = Counter(record.value for record in kafka.visible(place))
        assert found == Counter({b"1": 1} | ({b"2": 1} if expected else {})), place
    steps = [decode(record.value or b"") for record in kafka.visible(FRONTIER)]
    assert steps[-1].frontier.offsets == frontier(1 + expected).frontier.offsets
    owners = {(step.frontier.term, step.owner) for step in steps}
    assert len(owners) == len({term for term, _ in owners}), "a term has one owner"
    assert not kafka.hangs()


@pytest.mark.parametrize("markers", [*itertools.product((COMMIT, ABORT, LOST), repeat=3)])
def test_all_of_a_step_becomes_visible_or_nothing_wherever_the_tool_is_killed(
    markers: tuple[bool | None, ...],
) -> None:
    for writes in range(6):
        kafka = played(markers)
        kafka.writes_left = writes
        try:
            run(kafka)
            was_killed = False
        except KilledError:
            was_killed = True
        kafka.writes_left = 10**6
        run(kafka)
        judge(kafka, markers)
        ends = dict(kafka.ends)
        assert run(kafka) == Mended() and kafka.ends == ends, "a further run does nothing"
        if not was_killed:
            return
    raise AssertionError("it was always killed")


def test_a_term_that_began_meanwhile_is_followed() -> None:
    kafka = played((COMMIT, COMMIT, ABORT))
    term = replace(frontier(1), frontier=begin_term(frontier(1).frontier))
    kafka.epochs[0] += 1
    kafka.append(FRONTIER, record_key(0), encode(term), [], kafka.epochs[0])
    kafka.end(FRONTIER, kafka.epochs[0], is_commit=True)
    run(kafka)
    judge(kafka, (COMMIT,))
    last = decode(kafka.visible(FRONTIER)[-1].value or b"").frontier
    assert (last.term, last.step) == (term.frontier.term + 1, term.frontier.step + 1)


@pytest.mark.parametrize("is_covered", [False, True])
def test_the_end_of_a_move_stays_the_last_frontier(is_covered: bool) -> None:
    """What the cut covers is written again; a step that it does not cover is the new cluster's."""
    kafka = played((COMMIT, ABORT, COMMIT if is_covered else ABORT))
    moved = _moved(frontier(2 if is_covered else 1), "new/1")
    kafka.epochs[0] += 1
    kafka.append(FRONTIER, record_key(0), encode(moved), [], kafka.epochs[0])
    kafka.end(FRONTIER, kafka.epochs[0], is_commit=True)
    facts, mended = mend(kafka, kafka, FakeLooker(kafka), SETTINGS, 1)  # type: ignore[arg-type]
    last = decode(kafka.visible(FRONTIER)[-1].value or b"", takes_moved=True)
    assert last.moved == "new/1"
    assert mended.again == (1 if is_covered else 0)
    assert is_covered or "the cluster was moved since" in facts.plan.problems[0]


def test_nothing_is_written_while_a_master_is_at_work() -> None:
    kafka = played((LOST, COMMIT, COMMIT))
    kafka.states[0] = "Ongoing"
    ends = dict(kafka.ends)
    with pytest.raises(RecoverError, match="under way"):
        run(kafka)
    assert kafka.ends == ends and kafka.epochs[0] == 1, "nobody was fenced"


def test_no_marker_is_written_once_a_master_has_taken_a_step() -> None:
    kafka = played((LOST, COMMIT, COMMIT))
    looker = FakeLooker(kafka)
    look = looker.look

    def look_late(_: Survey | None = None) -> Facts:
        facts = look()
        kafka.append(FRONTIER, record_key(0), encode(frontier(3)), [], 9)
        return facts

    looker.look = look_late  # type: ignore[method-assign, assignment]
    with pytest.raises(RecoverError, match="a node takes steps"):
        mend(kafka, kafka, looker, SETTINGS, 1)  # type: ignore[arg-type]
    assert kafka.open_since(TARGETS[0], 0) is not None


def test_a_broker_that_does_not_know_the_topics_yet_is_not_believed() -> None:
    kafka = played((LOST, COMMIT, COMMIT))
    kafka.knows_topics = False
    with pytest.raises(KafkaUnreachableError, match="does not know"):
        run(kafka)


def watched(kafka: FakeKafka) -> str:
    """What is seen at work, from the first look on."""
    looker = FakeLooker(kafka)
    return at_work(kafka, [(looker, looker.look())], SETTINGS, 1)


def test_a_master_that_etcd_does_not_know_is_seen_by_its_steps() -> None:
    kafka = played((LOST, COMMIT, COMMIT))
    assert watched(kafka) == "", "nothing moves"
    for state in ("Ongoing", "PrepareCommit"):
        kafka.states[0] = state
        assert "under way" in watched(kafka)
    kafka.states[0] = "CompleteCommit"
    looker = FakeLooker(kafka)
    facts = looker.look()
    kafka.append(FRONTIER, record_key(0), encode(frontier(3)), [], 1)
    kafka.end(FRONTIER, 1, is_commit=True)
    assert "grows" in at_work(kafka, [(looker, facts)], SETTINGS, 1)
