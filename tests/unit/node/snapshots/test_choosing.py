"""Whether a node copies another node's wheel although it could replay the buffer.

Source: docs/design/storage.md, "Copy or replay".
"""

from typing import Any

import pytest

from delayd.node.snapshots.choosing import (
    COPY_BYTES_PER_S_MAX,
    REPLAY_RECORDS_PER_S,
    TRIAL_MS,
    Choice,
    Offer,
    choice_of,
)

MINUTES_10 = 600 * REPLAY_RECORDS_PER_S
"""Records that take ten minutes to replay."""
ENDS = {0: 2 * MINUTES_10, 1: 5}
BEFORE = (MINUTES_10, 5)
"""A node that has read half of the first partition."""
STATUS: dict[str, Any] = {
    "ready": True,
    "role": "follower",
    "wheel": {"bytes": 1_000},
    "snapshot_bytes_per_s": 100,
    "snapshots": [],
    "ingested": [7, 9],
    "compared": {"differs": 0},
}


def offer(seconds: float, behind: int = 0) -> Offer:
    """A wheel that takes so long to copy, of a node that is so far behind."""
    return Offer(int(seconds * 1_000), 1_000, (ENDS[0] - behind, ENDS[1]))


def chosen(offers: dict[str, Offer], replay_max_s: float = 60) -> Choice:
    return choice_of(BEFORE, ENDS, offers, replay_max_s)


def test_a_copy_that_is_clearly_faster_is_chosen() -> None:
    choice = chosen({"n1": offer(100), "n2": offer(299), "n3": offer(300)})
    assert choice.copy_s == {"n1": 100, "n2": 299} and choice.replay_s == 600
    assert choice.shown == {
        "behind": MINUTES_10,
        "replay_s": 600,
        "copy_s": {"n1": 100, "n2": 299},
    }
    told = ("replay of 60000000 records takes about 600 s", "a copy of n1 100 s", "n3 300 s")
    assert all(each in choice.why for each in told), choice.why


def test_without_a_node_that_can_give_its_wheel_it_replays() -> None:
    choice = chosen({})
    assert not choice.copy_s and not choice.is_short
    assert "no node can give its wheel" in choice.why


@pytest.mark.parametrize(("replay_max_s", "is_short"), [(0, True), (600, True), (599, False)])
def test_nobody_is_asked_for_a_short_replay(replay_max_s: float, is_short: bool) -> None:
    choice = chosen({"n1": offer(1)}, replay_max_s)
    assert choice.is_short is is_short and bool(choice.copy_s) is not is_short


def test_a_fresh_cluster_waits_for_nobody() -> None:
    assert choice_of((0, 0), {0: 1_000, 1: 0}, {}, 60).is_short


def test_what_a_copy_leaves_to_be_replayed_counts() -> None:
    assert not chosen({"n1": offer(1, behind=MINUTES_10)}).copy_s
    assert chosen({"n1": offer(1, behind=MINUTES_10 // 3)}).copy_s == {"n1": 201}


def test_a_donor_without_a_limit_is_no_faster_than_disks() -> None:
    copied_s = 10 * COPY_BYTES_PER_S_MAX
    assert chosen({"n1": Offer(copied_s, 2**40, (ENDS[0], 5))}).copy_s == {"n1": 10}


def test_a_nodes_status_is_its_offer() -> None:
    assert Offer.of(STATUS, 2) == Offer(1_000, 100, (7, 9))
    busy = {**STATUS, "snapshots": [{"fetcher": "n3"}]}
    assert Offer.of(busy, 2) == Offer(1_000, 50, (7, 9))


@pytest.mark.parametrize(
    "other",
    [
        {"ready": False},
        {"ingested": [7]},
        {"compared": {"differs": 1}},
        {"wheel": None},
        {"snapshot_bytes_per_s": None},
    ],
)
def test_who_is_not_ready_differs_or_says_nothing_makes_no_offer(other: dict[str, Any]) -> None:
    assert Offer.of({**STATUS, **other}, 2) is None
    assert Offer.of({}, 2) is None


def test_a_copy_is_given_up_if_what_is_left_takes_longer_than_the_replay() -> None:
    choice = chosen({"n1": offer(100)})
    assert not choice.is_slower(TRIAL_MS - 1, 1, 10**9), "it has just begun"
    assert not choice.is_slower(100_000, 500, 3_000)
    assert choice.is_slower(100_000, 500, 3_001)
    assert choice.is_slower(100_000, 0, 1_000)
    assert not choice.is_slower(10_000_000, 500, 10), "it is nearly there"
    assert not chosen({}, 0).is_slower(TRIAL_MS, 10, 10)
