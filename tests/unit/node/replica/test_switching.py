"""A replica whose log switches to other rules: what counts as a barrier, and what is behind it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import one_node
import pytest
from exporting_node import BEGIN_MS, PROOF_KEY, SETTINGS, cut, schedule

from delayd.bus import Headers, Record
from delayd.cluster.frontier_log import SeenFrontier
from delayd.errors import FrontierError, TopicMismatchError
from delayd.node.replica.replica import Replica
from delayd.node.replica.told import Rejected
from delayd.request.internal import barrier
from delayd.request.request import RequestLimits, Switch
from replication.log_time import trail_ms_of
from replication.rules import Barrier
from replication.settings import SMOOTHING_RULES, STEADY_RULES

OLD = replace(SETTINGS, rules_version=SMOOTHING_RULES)
LIMITS = RequestLimits.of(OLD, PROOF_KEY)
TO_4 = Switch(STEADY_RULES, "0.2.0")
TRAIL_MS = trail_ms_of(OLD, STEADY_RULES)
HOUR_MS = 3_600_000

Opener = Callable[[], Replica]


@pytest.fixture
def open_replica(tmp_path: Path) -> Iterator[Opener]:
    """Opens this node's replica; what was open before ends as by a crash."""
    opened: list[Replica] = []

    def open_it() -> Replica:
        for before in opened:
            before.close()
        opened.append(one_node.open_replica(tmp_path, OLD))
        return opened[-1]

    yield open_it
    for replica in opened:
        replica.close()


def switch(offset: int, *, partition: int = 0, to: Switch = TO_4) -> Record:
    made = barrier(partition, to, LIMITS)
    return Record(partition, offset, 0, BEGIN_MS, made.key, made.value, made.headers)


def in_seconds(offset: int, *, partition: int = 0) -> Record:
    """A request that rules 4 refuse."""
    headers: Headers = [("delayd-topic", b"orders"), ("delayd-due", b"1700000000")]
    return Record(partition, offset, 0, 1_700_000_000_000, None, b"v", headers)


def places(rejected: Sequence[Rejected]) -> list[tuple[int, int, str]]:
    return [(each.partition, each.offset, each.reject.reason.slug) for each in rejected]


def named(barriers: tuple[Barrier, ...], offsets: tuple[int, ...] = (9, 9)) -> SeenFrontier:
    seen = cut(1, offsets, settings=OLD)
    return seen._replace(record=replace(seen.record, barriers=barriers))


def test_what_is_behind_a_barrier_is_ruled_by_its_version(open_replica: Opener) -> None:
    """docs/design/frontier.md, Rules switch.

    Rules: rules-by-place
    """
    replica = open_replica()
    records = [in_seconds(0), switch(1), in_seconds(2), in_seconds(0, partition=1)]
    assert places(replica.take(records)) == [(0, 2, "bad-due")]
    assert replica.rules.barriers == (Barrier(0, 1, STEADY_RULES),)
    assert replica.ingested == (3, 1)


def test_a_barrier_leaves_nothing_to_deliver_or_to_answer(open_replica: Opener) -> None:
    """docs/design/frontier.md, Rules switch."""
    replica = open_replica()
    assert replica.take([switch(0)]) == []
    assert replica.wheel.slots() == []
    assert list(replica.wheel.pending_replies((0, 0))) == []


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        (switch(0).headers[:1], "unknown-header"),
        ([*switch(0).headers[:1], ("delayd-proof", b"0" * 64)], "bad-proof"),
        (switch(0, partition=1).headers, "bad-proof"),
        ([("delayd-rules", b"9/9.9.9"), switch(0).headers[1]], "bad-proof"),
        (list(reversed(switch(0).headers)), "bad-proof"),
    ],
)
def test_what_proves_nothing_is_an_ordinary_bad_record(
    open_replica: Opener, headers: Headers, reason: str
) -> None:
    """docs/design/frontier.md, Rules switch: it is answered, and changes nothing.

    Rules: barrier-proof
    """
    replica = open_replica()
    forged = Record(0, 0, 0, BEGIN_MS, None, None, headers)
    assert places(replica.take([forged, in_seconds(1)])) == [(0, 0, reason)]
    assert replica.rules.barriers == ()


def test_a_second_barrier_changes_nothing(open_replica: Opener) -> None:
    """docs/design/frontier.md, Rules switch: run twice, or by two people at once.

    Rules: switch-repeated
    """
    replica = open_replica()
    replica.take([switch(0), schedule(1, BEGIN_MS), switch(2)])
    lower = switch(3, to=Switch(SMOOTHING_RULES, "0.1.0"))
    assert places(replica.take([lower, in_seconds(4)])) == [(0, 4, "bad-due")]
    assert replica.rules.barriers == (Barrier(0, 0, STEADY_RULES),)


def test_rules_that_this_version_does_not_know_stop_the_node(open_replica: Opener) -> None:
    """docs/design/frontier.md, Rules switch.

    Rules: needed-features
    """
    replica = open_replica()
    with pytest.raises(TopicMismatchError, match=r"0/1 .* version 9.*run delayd 9\.1\.0 or later"):
        replica.take([schedule(0, BEGIN_MS), switch(1, to=Switch(9, "9.1.0"))])
    assert replica.ingested == (0, 0), "nothing of the batch was taken"


SEAM_PARTITION = schedule(0, BEGIN_MS, id="a").partition


def sent(offset: int, after_ms: int, trace: bytes) -> Record:
    """The same request under the same id again, with a header of a tracing agent."""
    made = schedule(offset, BEGIN_MS + 9 * HOUR_MS, id="a", more=[("traceparent", trace)])
    return made._replace(append_ms=BEGIN_MS + after_ms)


SEAM = [
    sent(0, 0, b"1"),
    sent(1, 3 * HOUR_MS, b"1"),  # a clock that is ahead: rules 3 follow it
    sent(2, 5, b"2"),
    switch(3, partition=SEAM_PARTITION)._replace(append_ms=BEGIN_MS + 6),
    sent(4, 7, b"2"),
    sent(5, 7 * HOUR_MS, b"3"),  # another one: rules 4 do not
    sent(6, 3 * HOUR_MS + 2 * TRAIL_MS, b"4"),
    schedule(7, BEGIN_MS + 9 * HOUR_MS, id="a", op="cancel")._replace(append_ms=BEGIN_MS + 8),
    sent(8, 9, b"5"),
    sent(9, 10, b"6"),
]


def test_the_seam_is_the_same_in_any_batches_and_through_any_crash(tmp_path: Path) -> None:
    """docs/design/frontier.md, Rules switch.

    Rules: log-time-at-a-switch, rules-by-place
    """
    outcomes = []
    for size in (len(SEAM), 1, 3, 4):
        for crashes in (False, True):
            folder = tmp_path / f"{size}-{crashes}"
            replica = one_node.open_replica(folder, OLD)
            for first in range(0, len(SEAM), size):
                replica.take(SEAM[first : first + size])
                if crashes:
                    replica.checkpoint()
                    replica.close()
                    replica = one_node.open_replica(folder, OLD)
            known = replica.know(SEAM_PARTITION, "a")
            assert known is not None
            replies = len(replica.wheel.pending_replies((0, 0)))
            outcomes.append(
                (replica.log_ms, replica.rules, replica.newest_append_ms, known, replies)
            )
            replica.close()
    log_ms, _, newest_ms, (state, _), replies = outcomes[0]
    assert log_ms[SEAM_PARTITION] == BEGIN_MS + 3 * HOUR_MS + TRAIL_MS, (
        "it went on from what it was"
    )
    assert newest_ms == log_ms[SEAM_PARTITION] + TRAIL_MS
    assert [message.offset for message in state.live] == [8]
    assert [message.offset for message in state.killed] == [0]
    # A duplicate (1), conflicts before the seam (2) and across it (4 to 6), the cancel, and behind
    # it a duplicate in spite of another trace (9).
    assert replies == 7
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_a_frontier_names_barriers_to_a_node_that_has_not_read_them(open_replica: Opener) -> None:
    """docs/design/frontier.md, Rules switch: the buffer may be trimmed beyond a barrier.

    Rules: frontier-names-barriers
    """
    replica = open_replica()
    replica.observe(named((Barrier(0, 5, STEADY_RULES),)))
    assert places(replica.take([in_seconds(4), in_seconds(6)])) == [(0, 6, "bad-due")]


def test_a_wheel_that_passed_a_barrier_by_other_rules_is_refused(open_replica: Opener) -> None:
    """docs/design/frontier.md, Rules switch: an older release has run on it.

    Rules: frontier-names-barriers
    """
    replica = open_replica()
    replica.take([schedule(0, BEGIN_MS), schedule(2, BEGIN_MS)])
    with pytest.raises(FrontierError, match=r"rules version 4 at 0/1 .* by rules version 3"):
        replica.observe(named((Barrier(0, 1, STEADY_RULES),)))


def test_barriers_survive_a_crash_with_the_checkpoint(open_replica: Opener) -> None:
    """docs/design/frontier.md, Rules switch.

    Rules: rules-by-place
    """
    before = open_replica()
    before.take([switch(0)])
    before.checkpoint()
    after = open_replica()
    assert after.rules == before.rules
    assert places(after.take([in_seconds(1)])) == [(0, 1, "bad-due")]
