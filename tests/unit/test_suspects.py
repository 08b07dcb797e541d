"""Suspects: a broker refused a whole transaction; its guilty are found, and nobody else is hurt."""

from random import Random

import pytest

from delayd.suspects import (
    BARRED_MAX,
    BARRED_MS,
    DIVISOR,
    GUILTY_MAX,
    GUILTY_MS,
    QUIET_MS,
    TOPIC_WIDE,
    Suspects,
)

NOW_MS = 1_000_000
INVALID = "INVALID_RECORD"


def sources(count: int) -> list[str]:
    return [f"0/{offset}" for offset in range(count)]


@pytest.fixture
def suspects() -> Suspects:
    return Suspects()


def test_without_a_refusal_nothing_is_held_against_anybody(suspects: Suspects) -> None:
    """docs/design/frontier.md, Targets."""
    assert suspects.problem(NOW_MS, "orders", "0/1") is None
    assert suspects.lane_limits(NOW_MS) == {}


def test_the_lane_of_a_refused_batch_is_limited_and_no_other(suspects: Suspects) -> None:
    """docs/design/frontier.md, Targets: the batch is halved until the guilty are alone."""
    suspects.note_refused(NOW_MS, {"orders": INVALID}, "bad", {"orders": (7, sources(1600))})
    assert suspects.lane_limits(NOW_MS) == {7: 1600 // DIVISOR}
    assert suspects.problem(NOW_MS, "orders", "0/1") is None


def test_topics_that_share_a_lane_are_counted_together(suspects: Suspects) -> None:
    """docs/design/frontier.md, Targets: what is limited is the lane's next step."""
    sent = {"a": (1, sources(160)), "b": (1, sources(160)), "c": (2, sources(32))}
    refusals = {"a": INVALID, "b": "CORRUPT_MESSAGE", "c": INVALID}
    suspects.note_refused(NOW_MS, refusals, "bad", sent)
    assert suspects.lane_limits(NOW_MS) == {1: 20, 2: 2}


def test_topics_that_took_their_records_are_not_suspect(suspects: Suspects) -> None:
    """docs/design/frontier.md, Targets: innocents of a transaction that was lost."""
    sent = {"a": (1, sources(160)), "b": (2, sources(160)), "c": (3, ["0/7"])}
    suspects.note_refused(NOW_MS, {"a": INVALID}, "bad", sent)
    assert suspects.lane_limits(NOW_MS) == {1: 10}
    assert suspects.problem(NOW_MS, "c", "0/7") is None


def test_the_limit_falls_to_one_record_and_no_further(suspects: Suspects) -> None:
    """docs/design/frontier.md, Targets."""
    for count, limit in ((4096, 256), (256, 16), (16, 1), (2, 1)):
        suspects.note_refused(NOW_MS, {"orders": INVALID}, "bad", {"orders": (3, sources(count))})
        assert suspects.lane_limits(NOW_MS) == {3: limit}


def test_a_lone_record_that_is_refused_is_guilty_for_a_while(suspects: Suspects) -> None:
    """docs/design/frontier.md, Targets: the guilty are turned away instead of sent."""
    suspects.note_refused(NOW_MS, {"orders": INVALID}, "no schema", {"orders": (3, ["0/5"])})
    problem = suspects.problem(NOW_MS, "orders", "0/5")
    assert problem is not None
    assert "topic orders refused the record" in problem and "INVALID_RECORD, no schema" in problem
    assert suspects.problem(NOW_MS, "orders", "0/6") is None
    assert suspects.lane_limits(NOW_MS) == {}
    assert suspects.problem(NOW_MS + GUILTY_MS - 1, "orders", "0/5") == problem
    assert suspects.problem(NOW_MS + GUILTY_MS, "orders", "0/5") is None


@pytest.mark.parametrize("code", sorted(TOPIC_WIDE))
def test_a_refusal_that_is_the_topics_bars_it_at_once(suspects: Suspects, code: str) -> None:
    """docs/design/frontier.md, Targets: nobody has to be found."""
    suspects.note_refused(NOW_MS, {"orders": code}, "denied", {"orders": (3, sources(500))})
    assert suspects.lane_limits(NOW_MS) == {}
    problem = suspects.problem(NOW_MS, "orders", "0/999")
    assert problem is not None and code in problem and "denied" in problem
    assert suspects.problem(NOW_MS, "others", "0/1") is None
    assert suspects.problem(NOW_MS + BARRED_MS - 1, "orders", "0/999") == problem
    assert suspects.problem(NOW_MS + BARRED_MS, "orders", "0/999") is None


def test_a_limit_doubles_with_each_committed_step_until_it_is_gone(suspects: Suspects) -> None:
    """docs/design/frontier.md, Targets: a suspicion does not last."""
    suspects.note_refused(NOW_MS, {"orders": INVALID}, "bad", {"orders": (3, sources(64))})
    limits = []
    while limit := suspects.lane_limits(NOW_MS).get(3):
        limits.append(limit)
        suspects.note_committed(NOW_MS, {3: limit})
    assert limits == [4, 8, 16, 32]


def test_steps_of_other_lanes_say_nothing_of_a_suspect_one(suspects: Suspects) -> None:
    """docs/design/frontier.md, Targets."""
    suspects.note_refused(NOW_MS, {"orders": INVALID}, "bad", {"orders": (3, sources(64))})
    suspects.note_committed(NOW_MS, {4: 1000, 3: 0})
    assert suspects.lane_limits(NOW_MS) == {3: 4}


def test_a_suspect_lane_that_sends_nothing_is_whole_again_after_a_while(suspects: Suspects) -> None:
    """docs/design/frontier.md, Targets: a suspicion does not last."""
    suspects.note_refused(NOW_MS, {"orders": INVALID}, "bad", {"orders": (3, sources(64))})
    assert suspects.lane_limits(NOW_MS + QUIET_MS) == {3: 4}
    assert suspects.lane_limits(NOW_MS + QUIET_MS + 1) == {}


def test_a_second_refusal_on_the_way_up_does_not_forget_the_first_size(suspects: Suspects) -> None:
    """docs/design/frontier.md, Targets: whole is what the lane sent before it was suspect."""
    suspects.note_refused(NOW_MS, {"orders": INVALID}, "bad", {"orders": (3, sources(1600))})
    suspects.note_refused(NOW_MS, {"orders": INVALID}, "bad", {"orders": (3, sources(100))})
    for _ in range(5):
        suspects.note_committed(NOW_MS, {3: 1})
    assert suspects.lane_limits(NOW_MS) == {3: 192}, "6 doubled five times is more than 100"


def test_an_unknown_cause_accuses_nobody(suspects: Suspects) -> None:
    """docs/design/frontier.md, Targets: a time-out names no topic."""
    suspects.note_refused(NOW_MS, {}, "no answer", {"orders": (3, sources(64))})
    assert suspects.lane_limits(NOW_MS) == {}


def test_what_is_remembered_is_bounded(suspects: Suspects) -> None:
    """docs/design/frontier.md, Targets: whatever names and records come."""
    for number in range(BARRED_MAX + 1):
        suspects.note_refused(
            NOW_MS, {f"t{number}": "TOPIC_EXCEPTION"}, "", {f"t{number}": (0, ["0/0"])}
        )
    for number in range(GUILTY_MAX + 1):
        suspects.note_refused(NOW_MS, {"orders": INVALID}, "", {"orders": (0, [f"1/{number}"])})
    assert suspects.problem(NOW_MS, "t0", "9/9") is None, "the oldest is forgotten"
    assert suspects.problem(NOW_MS, "t1", "9/9") is not None
    assert suspects.problem(NOW_MS, f"t{BARRED_MAX}", "9/9") is not None
    assert suspects.problem(NOW_MS, "orders", "1/0") is None
    assert suspects.problem(NOW_MS, "orders", "1/1") is not None


@pytest.mark.parametrize("seed", range(20))
def test_the_guilty_are_found_in_few_failures_and_the_others_all_go_out(seed: int) -> None:
    """docs/design/frontier.md, Targets: innocent neighbours of a guilty record in one batch."""
    random = Random(seed)
    waiting = sources(random.choice([1, 20, 1_000, 10_000]))
    guilty = set(random.sample(waiting, k=min(len(waiting), random.choice([1, 2, 3]))))
    everyone = set(waiting)
    suspects, delivered, away = Suspects(), set[str](), set[str]()
    failures = 0
    for now_ms in range(1_000):
        step = waiting[: suspects.lane_limits(now_ms).get(5, 10_000)]
        sent = [source for source in step if not suspects.problem(now_ms, "t", source)]
        if guilty & set(sent):
            failures += 1
            suspects.note_refused(now_ms, {"t": INVALID}, "bad", {"t": (5, sent)})
            continue
        suspects.note_committed(now_ms, {5: len(sent)})
        delivered.update(sent)
        away.update(set(step) - set(sent))
        waiting = waiting[len(step) :]
    assert (delivered, away) == (everyone - guilty, guilty), f"seed {seed}"
    assert failures <= 10 * len(guilty), f"seed {seed}"
