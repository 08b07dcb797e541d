"""What a follower concludes from the master's connection, and how often it may act on it."""

from collections.abc import Callable
from random import Random

import pytest

from replication import pulse
from replication.pulse import (
    CHANGES_FREE,
    PAUSE_MS,
    SIGNS_OF_LIFE,
    TRANSITIONS,
    WAIT_MS,
    WINDOW_MS,
    Answered,
    Ask,
    AskKafka,
    Beaten,
    CutOff,
    Ended,
    Fact,
    Find,
    KafkaAnswers,
    KafkaSilent,
    Listen,
    Order,
    Parted,
    Pulse,
    Refused,
    Replaced,
    Rest,
    Restraint,
    Silent,
    Unanswered,
    Verdict,
    Watched,
    most_miss,
)

SUSPICION_MS = 1_000
DEAD, PARTED = Rest(Verdict.DEAD), Rest(Verdict.PARTED)


def told(watched: Pulse, *facts: Fact) -> Order:
    """The last order that follows from these facts."""
    return [watched.handle(fact) for fact in facts][-1]


def heard() -> Pulse:
    """A life that answered at 0."""
    watched = Pulse(SUSPICION_MS)
    assert told(watched, Watched(0)) == Find(0)
    assert told(watched, Answered(0)) == Listen()
    return watched


@pytest.mark.parametrize("then", [Refused, Replaced])
def test_an_end_without_farewell_and_then_a_refusal_or_another_life_is_death(
    then: Callable[[int], Fact],
) -> None:
    """docs/design/election.md, "Pulse".

    Rules: pulse-dead
    """
    assert told(heard(), Beaten(250), Ended(300)) == Ask(0)
    assert told(heard(), Beaten(250), Ended(300), then(301)) == DEAD


def test_an_end_alone_is_no_death() -> None:
    """A network may end a connection.

    Rules: pulse-dead
    """
    watched = heard()
    assert told(watched, Ended(300), Answered(301)) == Listen()
    assert told(watched, Ended(302), Unanswered(552)) == Ask(WAIT_MS)
    assert told(watched, Ended(560)) == Ask(pulse.ASK_AGAIN_MS)
    assert told(watched, Answered(561)) == Listen()


@pytest.mark.parametrize("nothing", [Refused, Replaced, Unanswered, Ended])
def test_of_a_life_that_never_answered_nothing_is_concluded(
    nothing: Callable[[int], Fact],
) -> None:
    """Its address may be wrong, or it knows no pulse.

    Rules: pulse-dead
    """
    watched = Pulse(SUSPICION_MS)
    watched.handle(Watched(0))
    for at_ms in range(250, 5_000, 250):
        assert watched.handle(nothing(at_ms)) == Find(WAIT_MS)
        assert not watched.is_missed


def test_a_farewell_ends_the_watch_without_a_death() -> None:
    assert told(heard(), Parted(100)) == PARTED


def test_a_master_that_is_cut_off_from_kafka_is_replaced_by_a_node_that_kafka_answers() -> None:
    """docs/design/election.md, "Cut off from Kafka".

    Rules: pulse-cut-off
    """
    watched = heard()
    assert told(watched, Beaten(250), CutOff(251)) == AskKafka()
    assert told(watched, KafkaSilent(1_251)) == Listen(), "it may be away for all"
    assert not watched.is_missed
    assert told(watched, CutOff(1_500), KafkaAnswers(1_510)) == Listen()
    assert told(watched, Beaten(2_500), CutOff(2_509)) == Listen(), "it may have its answer soon"
    assert told(watched, Beaten(2_750), CutOff(2_751)) == Rest(Verdict.CUT_OFF)


def test_a_master_that_was_answered_after_all_is_not_replaced_the_next_time() -> None:
    """Rules: pulse-cut-off"""
    watched = heard()
    told(watched, CutOff(250), KafkaAnswers(260), Beaten(500))
    assert told(watched, Beaten(60_000), CutOff(60_001)) == AskKafka()


def test_a_silent_master_is_missed_after_the_suspicion_and_looked_for_over_a_new_connection() -> (
    None
):
    """A frozen process ends no connection.

    Rules: pulse-missed
    """
    watched = heard()
    assert told(watched, *map(Silent, (250, 500, 750))) == Listen()
    assert not watched.is_missed
    assert told(watched, Silent(1_000)) == Find(0)
    assert watched.is_missed
    assert told(watched, Unanswered(1_250)) == Find(WAIT_MS)
    assert told(watched, Refused(1_251)) == Find(WAIT_MS), "no connection ended: it may be a wall"
    assert watched.is_missed
    assert told(watched, Answered(1_500)) == Listen()
    assert not watched.is_missed


def test_a_sign_of_life_ends_the_silence() -> None:
    watched = heard()
    told(watched, *map(Silent, (250, 500, 750)), Beaten(900), *map(Silent, (1_150, 1_400, 1_650)))
    assert not watched.is_missed


def test_a_follower_that_stood_still_itself_misses_nobody() -> None:
    """docs/design/election.md, "Pulse": its own standstill is no silence.

    Rules: pulse-missed
    """
    watched = heard()
    told(watched, Silent(60_000), Silent(120_000), Silent(180_000))
    assert not watched.is_missed


def test_without_a_suspicion_no_master_is_missed() -> None:
    watched = Pulse(0)
    told(watched, Watched(0), Answered(0), *map(Silent, range(250, 60_000, 250)))
    assert not watched.is_missed


@pytest.mark.parametrize(
    ("missing", "members", "enough"),
    [(1, 1, True), (1, 2, False), (2, 3, True), (1, 3, False), (2, 4, False), (3, 5, True)],
)
def test_a_majority_of_all_members_deposes_whom_it_misses(
    missing: int, members: int, enough: bool
) -> None:
    """Rules: pulse-missed"""
    assert most_miss(missing, members) is enough


def test_every_arrow_of_the_diagram_is_walked_and_nobody_is_dead_who_has_not_ended() -> None:
    chance, walked = Random(1), set()
    for _ in range(500):
        watched, now_ms, past = Pulse(WAIT_MS), 0, list[type[Fact]]()
        order: Order | None = None
        while not isinstance(order, Rest) and len(past) < 30:
            now_ms += chance.choice([0, 100, 1_000])
            fact = chance.choice(list(TRANSITIONS[type(order)]))
            before, order = type(order), watched.handle(fact(now_ms))
            past.append(fact)
            walked.add((before, fact, type(order)))
        if order == DEAD:
            signs = [place for place, fact in enumerate(past) if fact in SIGNS_OF_LIFE]
            assert signs and Ended in past[signs[-1] :] and past[-1] in (Refused, Replaced)
    drawn = {
        (order, fact, after)
        for order, facts in TRANSITIONS.items()
        for fact, (_, *leads_to) in facts.items()
        for after in leads_to
    }
    assert drawn - walked == set()


def test_the_first_depositions_are_free_and_then_a_leadership_must_last_ever_longer() -> None:
    """docs/design/election.md, "Pulse".

    Rules: pulse-restraint
    """
    restraint, waits = Restraint(), []
    for count in range(8):
        restraint.note_leadership(count)
        waits.append(restraint.may_depose_ms(count) - count)
    assert waits[:CHANGES_FREE] == [0] * CHANGES_FREE
    assert waits[CHANGES_FREE:] == [PAUSE_MS, 2 * PAUSE_MS, 4 * PAUSE_MS, 8 * PAUSE_MS]


def test_a_cluster_that_always_judges_wrongly_deposes_a_dozen_masters_a_minute_at_most() -> None:
    """Rules: pulse-restraint"""
    restraint, now_ms, deposed_ms = Restraint(), 0, list[int]()
    while now_ms < 10 * WINDOW_MS and len(deposed_ms) < 1_000:
        restraint.note_leadership(now_ms)
        now_ms = restraint.may_depose_ms(now_ms)
        deposed_ms.append(now_ms)
    a_minute = [
        sum(begin <= at_ms < begin + WINDOW_MS for at_ms in deposed_ms)
        for begin in range(0, 9 * WINDOW_MS, 500)
    ]
    assert max(a_minute) <= 13


def test_a_calm_minute_makes_depositions_free_again() -> None:
    restraint = Restraint()
    for count in range(9):
        restraint.note_leadership(count)
    restraint.note_leadership(WINDOW_MS + 9)
    assert restraint.may_depose_ms(WINDOW_MS + 9) == WINDOW_MS + 9
