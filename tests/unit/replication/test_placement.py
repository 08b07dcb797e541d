"""Who should lead each shard, and when a leader hands over: docs/design/shards.md, "Placement"."""

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from random import Random

import pytest

from replication.placement import (
    HAND_OVERS_MAX,
    LAPSES_MS,
    LOOK_MS,
    PAUSE_MS,
    READY_MS,
    SLOW_CHECKPOINT_MS,
    STILL_MS,
    TURNS_MAX,
    WINDOW_MS,
    HandOver,
    Member,
    Placement,
    eligible_of,
    is_eligible,
    preferred,
    score,
)

WELL = Member(could_take_over=True, has_room=True)
BEHIND = Member(could_take_over=False, has_room=True)
SHORT = Member(could_take_over=True, has_room=False)
SLOW = Member(could_take_over=True, has_room=True, checkpoint_took_ms=SLOW_CHECKPOINT_MS + 1)
SHARDS = 8
ONE = "a"
"""The node whose part is looked at."""


def names(count: int, seed: int = 0) -> list[str]:
    return [f"node-{number}" for number in Random(seed).sample(range(10**6), count)]


def moved(before: Collection[str | None], after: Collection[str | None]) -> int:
    return sum(one != other for one, other in zip(before, after, strict=True))


# Preferred


@pytest.mark.parametrize("shards", [1, 8, 32, 64])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 12, 40])
def test_each_shard_has_a_preferred_member_and_none_has_more_than_its_share_rounded_up(
    shards: int, count: int
) -> None:
    for seed in range(5):
        members = names(count, seed)
        best = preferred(shards, members)
        assert len(best) == shards and set(best) <= set(members)
        assert max(best.count(name) for name in members) <= -(-shards // count)


def test_without_members_nobody_is_preferred() -> None:
    assert preferred(3, ()) == (None, None, None)


def test_what_is_preferred_follows_from_the_set_of_members_alone() -> None:
    members = names(12)
    best = preferred(32, members)
    assert preferred(32, members[::-1]) == preferred(32, frozenset(members)) == best
    assert preferred(32, [*members, members[0]]) == best


def test_what_is_preferred_is_the_same_in_every_release() -> None:
    """Nodes of two releases that disagreed would hand shards to each other. A change of the hash is
    a change of the protocol."""
    assert score("node-1", 0) == 0x9D5BE4C6B574781C
    assert preferred(6, ("node-1", "node-2", "node-3")) == (
        *("node-2", "node-3", "node-1", "node-1", "node-3", "node-2"),
    )


@pytest.mark.parametrize(
    ("shards", "count", "mean_max", "worst"),
    [(32, 12, 2, 6), (32, 5, 2, 6), (64, 12, 3, 8), (64, 100, 0.5, 3), (12, 12, 4.5, 8)],
)
def test_a_member_that_comes_or_goes_moves_its_own_shards_and_few_others(
    shards: int, count: int, mean_max: float, worst: int
) -> None:
    """Joining is leaving backwards. 12 of 12 is the worst: each has one, and then some two."""
    others = []
    for seed in range(30 if shards * count < 1_000 else 4):
        members = names(count, seed)
        best = preferred(shards, members)
        for gone in members[:2]:
            after = preferred(shards, [name for name in members if name != gone])
            others.append(moved(best, after) - best.count(gone))
    assert min(others) >= 0 and max(others) <= worst
    assert sum(others) / len(others) <= mean_max


def test_the_shards_of_one_that_goes_are_spread_over_many() -> None:
    for seed in range(20):
        members = names(6, seed)
        best = preferred(60, members)
        after = preferred(60, members[1:])
        heirs = {after[shard] for shard in range(60) if best[shard] == members[0]}
        assert len(heirs) >= 3


def test_scores_favour_nobody() -> None:
    """Rendezvous hashing without a bound: within a fifth of the mean, over many shards."""
    members = names(10)
    wins = [max(members, key=lambda name: score(name, shard)) for shard in range(5_000)]
    counts = [wins.count(name) for name in members]
    assert min(counts) > 400 and max(counts) < 600


@pytest.mark.parametrize("member", [BEHIND, SHORT, SLOW])
def test_a_node_that_is_behind_short_of_disk_or_slow_is_not_eligible(member: Member) -> None:
    assert is_eligible(WELL) and not is_eligible(member)
    assert eligible_of({"a": WELL, "b": member}) == {"a"}


# Handing over


class Nodes:
    """What node ONE is told, look by look, and what it hands over."""

    def __init__(self, shards: int = SHARDS, led: Iterable[int] = range(SHARDS)) -> None:
        self.placement = Placement(ONE, shards)
        self.led = set(led)
        self.now_ms = 0
        self.members: dict[str, Member] = {ONE: WELL}
        self.handed: list[tuple[int, HandOver]] = []

    def run(self, ms: int, every_ms: int = PAUSE_MS) -> list[HandOver]:
        """Look for so long, and let go of what is handed over; return that."""
        before = len(self.handed)
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms += every_ms
            order = self.placement.look(self.now_ms, self.members, self.led)
            if order is not None:
                assert order.shard in self.led
                assert is_eligible(self.members[order.to]) and order.to != ONE
                self.led.remove(order.shard)
                self.handed.append((self.now_ms, order))
        return [order for _, order in self.handed[before:]]


def settled(*others: str) -> Nodes:
    """Nodes that have led all shards, alone, for long."""
    nodes = Nodes()
    nodes.run(READY_MS + STILL_MS)
    for name in others:
        nodes.members[name] = WELL
    return nodes


def test_a_leader_hands_over_what_another_is_preferred_for_once_that_was_ready_for_30_s() -> None:
    nodes = settled("b")
    assert nodes.run(READY_MS) == []
    best = preferred(SHARDS, ("a", "b"))
    theirs = {HandOver(shard, "b") for shard in range(SHARDS) if best[shard] == "b"}
    assert len(theirs) == SHARDS // 2
    assert set(nodes.run(STILL_MS + SHARDS * PAUSE_MS)) == theirs
    assert nodes.run(10 * READY_MS) == [], "then all is as it should be"


@pytest.mark.parametrize("member", [BEHIND, SHORT, SLOW])
def test_a_node_that_is_slow_short_or_behind_gets_none(member: Member) -> None:
    nodes = settled("b")
    nodes.members["b"] = member
    assert nodes.run(10 * READY_MS) == []


@pytest.mark.parametrize("member", [BEHIND, SHORT, SLOW])
def test_a_leader_that_is_slow_short_or_behind_gives_all_away(member: Member) -> None:
    nodes = settled("b", "c")
    nodes.run(READY_MS + STILL_MS + SHARDS * PAUSE_MS)
    left = set(nodes.led)
    nodes.members[ONE] = member
    given = nodes.run(STILL_MS + (len(left) + 1) * PAUSE_MS)
    assert {order.shard for order in given} == left and nodes.led == set()


def test_where_all_are_slow_short_or_behind_the_leader_stays() -> None:
    nodes = settled("b")
    nodes.run(READY_MS)
    nodes.members = {ONE: SHORT, "b": SHORT}
    assert nodes.run(10 * READY_MS) == []


def test_a_break_begins_the_30_s_anew() -> None:
    nodes = settled("b")
    nodes.run(READY_MS - PAUSE_MS)
    nodes.members["b"] = BEHIND
    nodes.run(PAUSE_MS)
    nodes.members["b"] = WELL
    assert nodes.run(READY_MS + STILL_MS) == []


@pytest.mark.parametrize(("lapses", "doubled"), [(1, 1), (2, 2), (3, 3), (10, 4)])
def test_each_lapse_doubles_how_long_a_member_must_be_ready_up_to_8_minutes(
    lapses: int, doubled: int
) -> None:
    nodes = settled()
    for _ in range(lapses):
        nodes.members["b"] = WELL
        nodes.run(PAUSE_MS)
        nodes.members["b"] = SLOW
        nodes.run(PAUSE_MS)
    nodes.members["b"] = WELL
    assert nodes.run((READY_MS << doubled) + STILL_MS) == []
    assert nodes.run(2 * PAUSE_MS) != []


@pytest.mark.parametrize("without", [SLOW, None])
def test_lapses_are_forgotten_after_10_minutes(without: Member | None) -> None:
    nodes = settled("b")
    nodes.run(PAUSE_MS)
    if without is None:
        del nodes.members["b"]
    else:
        nodes.members["b"] = without
    nodes.run(LAPSES_MS + 2 * PAUSE_MS)
    nodes.members["b"] = WELL
    assert nodes.run(READY_MS + STILL_MS + 2 * PAUSE_MS) != []


def test_a_lapse_of_long_ago_does_not_double_the_next_wait() -> None:
    nodes = settled("b")
    for _ in range(2):
        nodes.run(LAPSES_MS + 2 * PAUSE_MS)
        nodes.members["b"] = BEHIND
        nodes.run(PAUSE_MS)
        nodes.members["b"] = WELL
    nodes.led = set(range(SHARDS))
    assert nodes.run(2 * READY_MS + STILL_MS) == []
    assert nodes.run(2 * PAUSE_MS) != []


def test_what_was_just_won_is_not_handed_over_for_10_s() -> None:
    nodes = settled("b")
    nodes.run(READY_MS + STILL_MS + SHARDS * PAUSE_MS)
    given = nodes.handed[0][1].shard
    nodes.led.add(given)
    assert nodes.run(STILL_MS) == []
    assert nodes.run(2 * PAUSE_MS) == [HandOver(given, "b")]


def test_a_member_that_is_gone_for_less_than_10_s_moves_no_shard_of_others() -> None:
    nodes = settled("b", "c")
    nodes.run(READY_MS + STILL_MS + SHARDS * PAUSE_MS)
    del nodes.members["c"]
    assert nodes.run(STILL_MS - PAUSE_MS) == []


def test_hand_overs_are_bounded_a_minute_and_apart() -> None:
    nodes = Nodes(shards=64, led=range(64))
    nodes.run(READY_MS + STILL_MS)
    nodes.members |= dict.fromkeys(names(30), WELL)
    nodes.run(3 * WINDOW_MS)
    times = [at_ms for at_ms, _ in nodes.handed]
    assert len(times) > HAND_OVERS_MAX, "the bound was met"
    assert all(later - earlier >= PAUSE_MS for earlier, later in pairwise(times))
    assert all(
        later - earlier >= WINDOW_MS
        for earlier, later in zip(times, times[HAND_OVERS_MAX:], strict=False)
    )


def test_a_node_that_does_not_see_itself_hands_nothing_over() -> None:
    nodes = settled("b")
    nodes.run(READY_MS)
    del nodes.members[ONE]
    assert nodes.run(10 * READY_MS) == []


def test_a_standstill_of_the_node_makes_nobody_ready() -> None:
    nodes = settled("b")
    nodes.run(PAUSE_MS)
    assert nodes.run(10 * READY_MS, every_ms=10 * READY_MS) == []
    assert STILL_MS < READY_MS - LOOK_MS
    assert nodes.run(READY_MS - LOOK_MS - PAUSE_MS) == []
    assert nodes.run(2 * PAUSE_MS + STILL_MS) != []


def test_a_node_that_has_just_started_hands_nothing_over_before_it_knows_the_others() -> None:
    nodes = Nodes()
    nodes.members["b"] = WELL
    assert nodes.run(READY_MS + STILL_MS) == []
    assert nodes.run(PAUSE_MS) != []


# Campaigns


def turns(
    members: Mapping[str, Member], gone: Iterable[str] = (), looks: int = 80, shard: int = 0
) -> list[int]:
    """By node, for a shard without a leader, when all have looked so often."""
    found = []
    for name in members:
        placement = Placement(name, SHARDS)
        for look in range(looks):
            placement.look((look + 1) * PAUSE_MS, members, ())
        found.append(placement.turn(shard, gone))
    return found


def test_of_those_that_count_one_campaigns_first_and_it_is_the_preferred_one() -> None:
    members = dict.fromkeys(names(5), WELL)
    best = preferred(SHARDS, members)[0]
    assert turns(members) == [0 if name == best else 1 for name in members]


def test_a_leader_that_died_is_not_waited_for() -> None:
    members = dict.fromkeys(names(5), WELL)
    best = preferred(SHARDS, members)[0]
    assert best is not None
    heir = preferred(SHARDS, [name for name in members if name != best])[0]
    assert turns(members, gone=[best]) == [0 if name == heir else 1 for name in members]


def test_a_leader_that_hands_over_does_not_change_who_is_preferred() -> None:
    """Without the leader others would be: the shard would go to one of them, which would hand it
    over in its turn, and so for ever."""
    members = dict.fromkeys(names(5, 1), WELL)
    best = preferred(SHARDS, members)
    cases = [
        (shard, giver)
        for giver in members
        for shard, other in enumerate(preferred(SHARDS, [n for n in members if n != giver]))
        if giver != best[shard] != other
    ]
    assert cases, "without the giver others are preferred"
    for shard, giver in cases:
        wanted = [0 if name == best[shard] else 1 for name in members]
        assert turns(members, gone=[giver], shard=shard) == wanted


@pytest.mark.parametrize("member", [BEHIND, SHORT, SLOW])
def test_who_should_lead_nothing_campaigns_last(member: Member) -> None:
    assert turns({"a": WELL, "b": member}) == [0, TURNS_MAX]


def test_where_nobody_should_lead_all_campaign_at_once() -> None:
    assert turns({"a": SHORT, "b": BEHIND}) == [0, 0]
    assert turns({"a": WELL, "b": BEHIND}, gone=["a"])[1] == 0


def test_before_anybody_counts_the_preferred_of_the_eligible_campaigns_first() -> None:
    assert sorted(turns(dict.fromkeys(names(3), WELL), looks=1)) == [0, 1, 1]


def test_one_that_does_not_count_yet_lets_those_campaign_first_that_do() -> None:
    nodes = settled()
    nodes.members["b"] = WELL
    nodes.run(PAUSE_MS)
    assert [nodes.placement.turn(shard) for shard in range(SHARDS)] == [0] * SHARDS
    nodes.run(READY_MS)
    assert sorted({nodes.placement.turn(shard) for shard in range(SHARDS)}) == [0, 1]


def test_a_node_that_has_not_looked_yet_campaigns_at_once() -> None:
    assert Placement(ONE, SHARDS).turn(0) == 0
