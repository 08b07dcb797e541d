"""Quarantine: the records for which a transaction is refused are found, and no other is held up."""

from random import Random

import pytest

from delayd.node.targets.quarantine import (
    DEFER_MS,
    DEFER_MS_MAX,
    QUIET_MS,
    RECORD_MS,
    RECORDS_MAX,
    TOPIC_MS,
    TOPIC_MS_MAX,
    TOPIC_RECORDS_MAX,
    TOPIC_WIDE,
    TOPICS_MAX,
    Quarantine,
)

NOW_MS = 1_000_000
INVALID = "INVALID_RECORD"


def sources(count: int) -> list[str]:
    return [f"0/{offset}" for offset in range(count)]


@pytest.fixture
def quarantine() -> Quarantine:
    return Quarantine()


def may_try(quarantine: Quarantine, topic: str, tried: set[str], now_ms: int = NOW_MS) -> bool:
    return quarantine.defer_ms(now_ms, topic, tried) == 0


def test_topics_that_share_a_lane_are_counted_together(quarantine: Quarantine) -> None:
    """docs/design/frontier.md, Targets: what is limited is the lane's next step."""
    sent = {"a": (1, sources(160)), "b": (1, sources(160)), "c": (2, sources(32))}
    refusals = {"a": INVALID, "b": "CORRUPT_MESSAGE", "c": INVALID}
    quarantine.note_refused(NOW_MS, refusals, "bad", sent)
    assert quarantine.lane_limits(NOW_MS) == {1: 20, 2: 2}


def test_topics_that_took_their_records_are_not_limited(quarantine: Quarantine) -> None:
    """docs/design/frontier.md, Targets: innocents of a transaction that was lost."""
    sent = {"a": (1, sources(160)), "b": (2, sources(160)), "c": (3, ["0/7"])}
    quarantine.note_refused(NOW_MS, {"a": INVALID}, "bad", sent)
    assert quarantine.lane_limits(NOW_MS) == {1: 10}
    assert quarantine.problem(NOW_MS, "c", "0/7") is None


def test_the_limit_falls_to_one_record_and_no_further(quarantine: Quarantine) -> None:
    """docs/design/frontier.md, Targets."""
    for count, limit in ((4096, 256), (256, 16), (16, 1), (2, 1)):
        quarantine.note_refused(NOW_MS, {"orders": INVALID}, "bad", {"orders": (3, sources(count))})
        assert quarantine.lane_limits(NOW_MS) == {3: limit}


def test_a_lone_record_that_is_refused_is_quarantined_for_a_while(quarantine: Quarantine) -> None:
    """docs/design/frontier.md, Targets: a quarantined record is turned away instead of sent."""
    quarantine.note_refused(NOW_MS, {"orders": INVALID}, "no schema", {"orders": (3, ["0/5"])})
    problem = quarantine.problem(NOW_MS, "orders", "0/5")
    assert problem is not None
    assert "topic orders refused the record" in problem and "INVALID_RECORD, no schema" in problem
    assert quarantine.problem(NOW_MS, "orders", "0/6") is None
    assert quarantine.lane_limits(NOW_MS) == {}
    quarantine.note_committed(NOW_MS, {})
    assert quarantine.problem(NOW_MS + RECORD_MS - 1, "orders", "0/5") == problem
    assert quarantine.problem(NOW_MS + RECORD_MS, "orders", "0/5") is None


@pytest.mark.parametrize("code", sorted(TOPIC_WIDE))
def test_a_refusal_of_a_whole_topic_quarantines_it_at_once(
    quarantine: Quarantine, code: str
) -> None:
    """docs/design/frontier.md, Targets: no record has to be found."""
    quarantine.note_refused(NOW_MS, {"orders": code}, "denied", {"orders": (3, sources(500))})
    assert quarantine.lane_limits(NOW_MS) == {}
    problem = quarantine.problem(NOW_MS, "orders", "0/999")
    assert problem is not None and code in problem and "denied" in problem
    assert quarantine.problem(NOW_MS, "others", "0/1") is None
    quarantine.note_committed(NOW_MS, {})
    assert quarantine.problem(NOW_MS + TOPIC_MS - 1, "orders", "0/999") == problem
    assert quarantine.problem(NOW_MS + TOPIC_MS, "orders", "0/999") is None


def test_what_was_learnt_is_kept_until_a_step_is_committed(quarantine: Quarantine) -> None:
    """docs/design/frontier.md, Targets: the last bad record is found after the first ran out."""
    quarantine.note_refused(NOW_MS, {"a": INVALID}, "bad", {"a": (3, ["0/5"])})
    quarantine.note_refused(NOW_MS, {"b": "TOPIC_EXCEPTION"}, "", {"b": (3, ["0/6"])})
    later_ms = NOW_MS + 10 * RECORD_MS
    quarantine.lane_limits(later_ms)
    assert quarantine.problem(later_ms, "a", "0/5") and quarantine.problem(later_ms, "b", "0/9")
    quarantine.note_committed(later_ms, {})
    assert quarantine.problem(later_ms + RECORD_MS, "a", "0/5") is None
    assert quarantine.problem(later_ms + TOPIC_MS, "b", "0/9") is None


def test_a_topic_with_several_quarantined_records_is_quarantined(quarantine: Quarantine) -> None:
    """docs/design/frontier.md, Targets: each of them costs everybody a transaction."""
    for number in range(TOPIC_RECORDS_MAX):
        assert quarantine.problem(NOW_MS, "orders", "0/99") is None
        quarantine.note_refused(NOW_MS, {"orders": INVALID}, "", {"orders": (3, [f"0/{number}"])})
    assert quarantine.problem(NOW_MS, "orders", "0/99") is not None
    assert quarantine.problem(NOW_MS, "others", "0/99") is None


def test_quarantined_records_among_good_ones_quarantine_no_topic(quarantine: Quarantine) -> None:
    """docs/design/frontier.md, Targets: a topic that takes records is well."""
    for number in range(2 * TOPIC_RECORDS_MAX):
        quarantine.note_refused(NOW_MS, {"orders": INVALID}, "", {"orders": (3, [f"0/{number}"])})
        quarantine.note_committed(NOW_MS, {"orders": (3, ["1/1"])})
    assert quarantine.problem(NOW_MS, "orders", "0/99") is None


def test_a_topic_that_is_quarantined_again_stays_so_for_longer_until_it_takes_a_record(
    quarantine: Quarantine,
) -> None:
    """docs/design/frontier.md, Targets: a target that stays bad costs less and less."""
    now_ms = NOW_MS
    terms = []
    for _ in range(10):
        quarantine.note_refused(now_ms, {"orders": "TOPIC_EXCEPTION"}, "", {"orders": (3, ["0/1"])})
        quarantine.note_committed(now_ms, {})
        begun_ms = now_ms
        while quarantine.problem(now_ms, "orders", "0/2"):
            now_ms += 1_000
        terms.append(now_ms - begun_ms)
    assert terms[:3] == [TOPIC_MS, 2 * TOPIC_MS, 4 * TOPIC_MS] and terms[-1] == TOPIC_MS_MAX
    quarantine.note_committed(now_ms, {"orders": (3, ["0/2"])})
    quarantine.note_refused(now_ms, {"orders": "TOPIC_EXCEPTION"}, "", {"orders": (3, ["0/1"])})
    quarantine.note_committed(now_ms, {})
    assert quarantine.problem(now_ms + TOPIC_MS, "orders", "0/3") is None


def test_a_limit_doubles_with_each_committed_step_until_it_is_gone(quarantine: Quarantine) -> None:
    """docs/design/frontier.md, Targets: a suspicion does not last."""
    quarantine.note_refused(NOW_MS, {"orders": INVALID}, "bad", {"orders": (3, sources(64))})
    limits = []
    while limit := quarantine.lane_limits(NOW_MS).get(3):
        limits.append(limit)
        quarantine.note_committed(NOW_MS, {"orders": (3, sources(limit))})
    assert limits == [4, 8, 16, 32]


def test_steps_of_other_lanes_say_nothing_of_a_limited_one(quarantine: Quarantine) -> None:
    """docs/design/frontier.md, Targets."""
    quarantine.note_refused(NOW_MS, {"orders": INVALID}, "bad", {"orders": (3, sources(64))})
    quarantine.note_committed(NOW_MS, {"others": (4, sources(1000)), "orders": (3, [])})
    assert quarantine.lane_limits(NOW_MS) == {3: 4}


def test_a_limited_lane_that_sends_nothing_is_whole_again_after_a_while(
    quarantine: Quarantine,
) -> None:
    """docs/design/frontier.md, Targets: a suspicion does not last."""
    quarantine.note_refused(NOW_MS, {"orders": INVALID}, "bad", {"orders": (3, sources(64))})
    assert quarantine.lane_limits(NOW_MS + QUIET_MS) == {3: 4}
    assert quarantine.lane_limits(NOW_MS + QUIET_MS + 1) == {}


def test_a_second_refusal_on_the_way_up_does_not_forget_the_first_size(
    quarantine: Quarantine,
) -> None:
    """docs/design/frontier.md, Targets: whole is what the lane sent before it was limited."""
    quarantine.note_refused(NOW_MS, {"orders": INVALID}, "bad", {"orders": (3, sources(1600))})
    quarantine.note_refused(NOW_MS, {"orders": INVALID}, "bad", {"orders": (3, sources(100))})
    for _ in range(5):
        quarantine.note_committed(NOW_MS, {"orders": (3, sources(1))})
    assert quarantine.lane_limits(NOW_MS) == {3: 192}, "6 doubled five times is more than 100"


def test_after_failures_in_a_row_only_proven_topics_are_sent_to(quarantine: Quarantine) -> None:
    """docs/design/frontier.md, Targets: targets that work go on while the broken are found."""
    tried: set[str] = set()
    quarantine.note_committed(NOW_MS, {"good": (1, ["0/1"])})
    quarantine.note_failed(tried)
    assert may_try(quarantine, "new", tried), "one failure may pass"
    quarantine.note_failed(tried)
    assert may_try(quarantine, "good", tried) and not may_try(quarantine, "new", tried)
    quarantine.note_committed(NOW_MS, {"good": (1, ["0/2"])})
    assert may_try(quarantine, "new", tried) and tried == {"new"}
    assert may_try(quarantine, "new", tried) and not may_try(quarantine, "newer", tried)
    quarantine.note_failed(tried)
    assert quarantine.problem(NOW_MS, "new", "0/3") is None, "it may be innocent"
    assert quarantine.defer_ms(NOW_MS, "new", set()) == DEFER_MS
    quarantine.note_committed(NOW_MS, {"good": (1, ["0/4"])})
    assert quarantine.defer_ms(NOW_MS, "new", set()) == DEFER_MS_MAX == TOPIC_MS
    assert quarantine.defer_ms(NOW_MS + TOPIC_MS, "new", set()) == 0


def test_caution_ends_when_many_unproven_topics_went_well(quarantine: Quarantine) -> None:
    """docs/design/frontier.md, Targets: a suspicion does not last."""
    for _ in range(2):
        quarantine.note_failed(set())
    for _ in range(10):
        quarantine.note_committed(NOW_MS, {})
    tried: set[str] = set()
    assert all(may_try(quarantine, f"t{number}", tried) for number in range(1_000))


@pytest.mark.parametrize("broken", [5, 60])
def test_among_many_broken_targets_the_proven_are_sent_to_in_every_second_step(
    broken: int,
) -> None:
    """docs/design/frontier.md, Targets: however many fail, and whether they are named or not."""
    quarantine = Quarantine()
    quarantine.note_committed(0, {"good": (1, ["0/0"])})
    waiting = [f"bad{number}" for number in range(broken)]
    outcomes = []
    for now_ms in range(0, 400 * 50, 50):
        tried: set[str] = set()
        sent = {
            topic: (2, ["1/1"])
            for topic in ("good", *waiting)
            if not quarantine.problem(now_ms, topic, "1/1")
            and may_try(quarantine, topic, tried, now_ms)
        }
        outcomes.append(sent.keys() == {"good"})
        if outcomes[-1]:
            quarantine.note_committed(now_ms, sent)
        else:
            quarantine.note_failed(tried)
    assert not any(outcomes[:2]), "all was tried"
    assert all(
        a or b or c for a, b, c in zip(outcomes[2:], outcomes[3:], outcomes[4:], strict=False)
    )
    assert sum(outcomes) > 0.4 * len(outcomes)


def test_an_unknown_cause_accuses_nobody(quarantine: Quarantine) -> None:
    """docs/design/frontier.md, Targets: a time-out names no topic."""
    quarantine.note_refused(NOW_MS, {}, "no answer", {"orders": (3, sources(64))})
    assert quarantine.lane_limits(NOW_MS) == {}


def test_what_is_remembered_is_bounded(quarantine: Quarantine) -> None:
    """docs/design/frontier.md, Targets: whatever names and records come."""
    for number in range(TOPICS_MAX + 1):
        quarantine.note_refused(
            NOW_MS, {f"t{number}": "TOPIC_EXCEPTION"}, "", {f"t{number}": (0, ["0/0"])}
        )
    for number in range(RECORDS_MAX + 1):
        quarantine.note_refused(NOW_MS, {"orders": INVALID}, "", {"orders": (0, [f"1/{number}"])})
        quarantine.note_committed(NOW_MS, {"orders": (0, ["1/1"])})
    assert quarantine.problem(NOW_MS, "t0", "9/9") is None, "the oldest is forgotten"
    assert quarantine.problem(NOW_MS, "t1", "9/9") is not None
    assert quarantine.problem(NOW_MS, f"t{TOPICS_MAX}", "9/9") is not None
    assert quarantine.problem(NOW_MS, "orders", "1/0") is None
    assert quarantine.problem(NOW_MS, "orders", "1/1") is not None


@pytest.mark.parametrize("seed", range(20))
def test_bad_records_are_found_in_few_failures_and_the_others_all_go_out(seed: int) -> None:
    """docs/design/frontier.md, Targets: innocent neighbours of a bad record in one batch.

    Rules: fault-isolated
    """
    random = Random(seed)
    waiting = sources(random.choice([1, 20, 1_000, 10_000]))
    bad = set(random.sample(waiting, k=min(len(waiting), random.choice([1, 2, 3]))))
    everyone = set(waiting)
    quarantine, delivered, away = Quarantine(), set[str](), set[str]()
    failures = 0
    for now_ms in range(1_000):
        step = waiting[: quarantine.lane_limits(now_ms).get(5, 10_000)]
        sent = [source for source in step if not quarantine.problem(now_ms, "t", source)]
        if bad & set(sent):
            failures += 1
            quarantine.note_refused(now_ms, {"t": INVALID}, "bad", {"t": (5, sent)})
            continue
        quarantine.note_committed(now_ms, {"t": (5, sent)})
        delivered.update(sent)
        away.update(set(step) - set(sent))
        waiting = waiting[len(step) :]
    assert (delivered, away) == (everyone - bad, bad), f"seed {seed}"
    assert failures <= 10 * len(bad), f"seed {seed}"
