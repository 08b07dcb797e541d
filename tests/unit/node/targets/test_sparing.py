"""Sparing by itself: to which moments messages are deferred, and when it ends."""

import pytest

from delayd.node.targets.sparing import (
    AHEAD_MS,
    FIRST_WAKE_MS,
    PLACES_MAX,
    SUSPECTS_MAX,
    TERM_MS,
    WAKE_MS_MAX,
    Sparing,
)

START_MS = 1_700_000_000_000
PLACE = ("orders", 1)


def silent(*places: tuple[str, int]) -> Sparing:
    """Of a master that has spared these, at START_MS."""
    sparing = Sparing()
    sparing.turn(START_MS)
    sparing.note_silent(START_MS, places)
    return sparing


def answer(sparing: Sparing, now_ms: int) -> None:
    """Every leader answers, and a step begins."""
    for spared in sparing.report:
        sparing.answered(spared)
    sparing.turn(now_ms)


def test_a_message_is_written_anew_the_less_often_the_longer_a_leader_hangs() -> None:
    """docs/design/frontier.md, A leader that hangs."""
    sparing, now_ms, moments_s = silent(PLACE), START_MS, []
    while now_ms < START_MS + 3_600_000:
        sparing.turn(now_ms)
        now_ms += sparing.defer_ms(now_ms, *PLACE, is_back=True)
        moments_s.append((now_ms - START_MS) // 1_000)
    assert moments_s[:8] == [2, 4, 8, 16, 32, 64, 124, 184]
    assert len(moments_s) <= 65, "360 with a moment every 10 s"


@pytest.mark.parametrize("hung_ms", [*range(TERM_MS, 200_000, 777), 3_600_000])
def test_a_sparing_ends_soon_after_an_answer(hung_ms: int) -> None:
    sparing, now_ms = silent(PLACE), START_MS + hung_ms
    answer(sparing, now_ms)
    more_ms = sparing.defer_ms(now_ms, *PLACE, is_back=True)
    gap_ms = min(max(FIRST_WAKE_MS, hung_ms + AHEAD_MS), WAKE_MS_MAX)
    assert AHEAD_MS <= more_ms <= AHEAD_MS + gap_ms
    sparing.turn(now_ms + more_ms - 1)
    assert sparing.report
    sparing.turn(now_ms + more_ms)
    assert not sparing.report and not sparing.partitions_of("orders")


def test_all_that_is_deferred_before_a_moment_comes_back_then_or_later() -> None:
    """None that is deferred later comes back sooner; of one moment, what was back comes first."""
    sparing = silent(PLACE)
    last_ms = 0
    for now_ms in range(START_MS, START_MS + 200_000, 100):
        sparing.turn(now_ms)
        back_ms = now_ms + sparing.defer_ms(now_ms, *PLACE, is_back=True)
        new_ms = now_ms + sparing.defer_ms(now_ms, *PLACE, is_back=False)
        assert last_ms <= back_ms and new_ms == back_ms + 1
        assert back_ms - now_ms >= AHEAD_MS
        last_ms = back_ms


def test_an_answer_counts_for_the_sparing_that_it_was_asked_for() -> None:
    sparing = silent(PLACE)
    [before] = sparing.report
    sparing.note_silent(START_MS + 60_000, [PLACE])
    sparing.answered(before)
    sparing.turn(START_MS + 120_000)
    sparing.turn(START_MS + 600_000)
    assert sparing.report
    answer(sparing, START_MS + 600_000)
    sparing.turn(START_MS + 700_000)
    assert not sparing.report


def test_with_the_grant_everything_ends() -> None:
    """Rules: silent-spared"""
    sparing = silent(PLACE)
    [before] = sparing.report
    sparing.end()
    assert not sparing.report and not sparing.partitions_of("orders")
    sparing.answered(before)
    sparing.turn(START_MS + 1_000)
    sparing.note_silent(START_MS + 2_000, [PLACE])
    assert sparing.partitions_of("orders") == {1}


def test_suspects_displace_nothing_that_is_spared() -> None:
    sparing = silent()
    sparing.note_silent(START_MS, [PLACE], {PLACE: 8})
    [before] = sparing.report
    sparing.suspect(START_MS + 1_000, 8, "many", range(PLACES_MAX))
    assert before in sparing.report
    assert len(sparing.report) == SUSPECTS_MAX


def test_nobody_is_suspected_once_the_one_that_was_silent_has_answered() -> None:
    """Rules: silent-broker"""
    sparing = silent()
    sparing.note_silent(START_MS, [PLACE], {PLACE: 8})
    assert sparing.hung_since_ms == {8: START_MS}
    answer(sparing, START_MS + TERM_MS - 1)
    assert sparing.hung_since_ms == {8: START_MS}
    answer(sparing, START_MS + TERM_MS)
    assert sparing.hung_since_ms == {}


def hung_often() -> tuple[Sparing, int]:
    """Of a leader that has hung four times, and answers; with the moment at which that ended. Its
    last term was eight times the first."""
    sparing, now_ms = silent(PLACE), START_MS
    for term_ms in (TERM_MS, 2 * TERM_MS, 4 * TERM_MS, 8 * TERM_MS):
        answer(sparing, now_ms + term_ms - 1)
        answer(sparing, now_ms + term_ms)
        now_ms += term_ms + sparing.defer_ms(now_ms + term_ms, *PLACE, is_back=True)
        sparing.turn(now_ms)
        assert not sparing.report
        if term_ms < 8 * TERM_MS:
            sparing.note_silent(now_ms, [PLACE])
    return sparing, now_ms


def test_one_that_is_suspected_in_vain_waits_for_seconds_whatever_it_did_before() -> None:
    """docs/design/frontier.md, A leader that hangs."""
    sparing, now_ms = hung_often()
    again_ms = now_ms + 30_000
    sparing.note_silent(again_ms, [("mails", 0)], {("mails", 0): 8})
    sparing.suspect(again_ms, 8, PLACE[0], [PLACE[1]])
    assert sparing.partitions_of(PLACE[0]) == {PLACE[1]}
    answer(sparing, again_ms + 1_000)
    assert sparing.defer_ms(again_ms + 1_000, *PLACE, is_back=True) <= 8_000
    sparing.turn(again_ms + 8_000)
    assert not sparing.partitions_of(PLACE[0])


def test_a_suspicion_makes_nobody_forget_how_long_one_was_spared() -> None:
    sparing, now_ms = hung_often()
    again_ms = now_ms + 30_000
    sparing.note_silent(again_ms, [("mails", 0)], {("mails", 0): 8})
    sparing.suspect(again_ms, 8, PLACE[0], [PLACE[1]])
    answer(sparing, again_ms + 1_000)
    silent_ms = again_ms + 8_000
    sparing.turn(silent_ms)
    sparing.note_silent(silent_ms, [PLACE])
    answer(sparing, silent_ms + 16 * TERM_MS - 1)
    sparing.turn(silent_ms + 1_000_000)
    assert sparing.partitions_of(PLACE[0]) == {PLACE[1]}
    answer(sparing, silent_ms + 1_000_000)
    sparing.turn(silent_ms + 1_100_000)
    assert not sparing.partitions_of(PLACE[0])
