"""The memory of ids: what it forgets at a checkpoint, and how evenly.

Source: docs/design/frontier.md, "Forgetting".
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_settings import LANES
from wheel_reading import checkpoint

from delayd.wheel import Progress
from delayd.wheel.id_memory import FORGET_MAX, UNKNOWN, First, id_name
from delayd.wheel.kills import Kill
from delayd.wheel.storage import Wheel
from replication.frontier import Frontier, first_frontier
from replication.ids import NEVER_MS, NOTHING, WAITS, IdState, LiveMessage, killed_from
from replication.ingest import first_of_id
from replication.rank import Rank

PARTITIONS = 64
KEEP_MS = 1_000
DUE_MS = 10_000
OVER_MS = DUE_MS + KEEP_MS + 1
REACHED = Progress((10**9,) * PARTITIONS, (0,) * PARTITIONS, (OVER_MS,) * PARTITIONS, b"", ())


@pytest.fixture
def wheel(tmp_path: Path) -> Iterator[Wheel]:
    wheel = Wheel.open(tmp_path, partitions=PARTITIONS)
    yield wheel
    wheel.close()


def cut() -> Frontier:
    """All that was ever ingested is done."""
    past = Rank(OVER_MS, 0, 0)
    first = first_frontier(0, PARTITIONS, LANES)
    return replace(first, cursors=(past,) * LANES, offsets=(10**9,) * PARTITIONS)


def remember(wheel: Wheel, partition: int, count: int) -> None:
    for number in range(count):
        state = IdState((LiveMessage(DUE_MS, number, 0, b""),))
        wheel.ids.remember(partition, id_name(f"id-{number}"), state, KEEP_MS)


def kept(wheel: Wheel, partition: int, count: int) -> int:
    names = (id_name(f"id-{number}") for number in range(count))
    return sum(wheel.ids.state(partition, name) is not NOTHING for name in names)


def forget(wheel: Wheel) -> None:
    """What a checkpoint forgets."""
    wheel.ids.forget(cut(), (OVER_MS,) * PARTITIONS, OVER_MS)
    checkpoint(wheel, REACHED)


def test_one_busy_partition_may_forget_all_that_a_checkpoint_looks_at(wheel: Wheel) -> None:
    """Otherwise its memory grows without end: ids come there as fast as in all others together."""
    count = FORGET_MAX // 8
    remember(wheel, 5, count)
    remember(wheel, 6, 3)
    checkpoint(wheel, REACHED)
    forget(wheel)
    assert (kept(wheel, 5, count), kept(wheel, 6, 3)) == (0, 0)


def test_a_busy_partition_leaves_the_others_their_share(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.wheel.id_memory.FORGET_MAX", 10 * PARTITIONS)
    remember(wheel, 0, 20 * PARTITIONS)
    remember(wheel, 63, 10)
    checkpoint(wheel, REACHED)
    forget(wheel)
    assert kept(wheel, 63, 10) == 0
    left = kept(wheel, 0, 20 * PARTITIONS)
    assert left < 11 * PARTITIONS, "it has what the others do not need"
    assert left > 9 * PARTITIONS, "and no more"
    forget(wheel)
    forget(wheel)
    assert kept(wheel, 0, 20 * PARTITIONS) == 0


def test_what_no_frontier_covers_is_looked_at_once_and_kept(wheel: Wheel) -> None:
    remember(wheel, 0, 100)
    checkpoint(wheel, REACHED)
    wheel.ids.forget(first_frontier(0, PARTITIONS, LANES), (OVER_MS,) * PARTITIONS, OVER_MS)
    assert kept(wheel, 0, 100) == 100


def ends(wheel: Wheel, partition: int) -> list[int]:
    """When the queue has states of a partition looked at, by its lines."""
    lines = [key for run in wheel.ids._layers.lines(b"e", b"e") for key, _ in run]
    return [
        int.from_bytes(key[3:11], "big")
        for key in lines
        if int.from_bytes(key[1:3], "big") == partition
    ]


@pytest.mark.parametrize("is_written", [False, True])
def test_a_state_that_ends_when_it_did_needs_no_second_line(wheel: Wheel, is_written: bool) -> None:
    """Source: "Forgetting": it is looked at when it ends."""
    name = id_name("a")
    live = IdState((LiveMessage(DUE_MS, 7, 0, b""),))
    wheel.ids.remember(3, name, live, KEEP_MS)
    if is_written:
        checkpoint(wheel, REACHED)
        wheel.ids._queues.clear()
    before = wheel.ids.recall(3, name)
    assert before.forget_ms == DUE_MS + KEEP_MS
    killed = IdState((), killed_from(live.live), 9)
    wheel.ids.remember(3, name, killed, KEEP_MS, before_ms=before.forget_ms)
    assert ends(wheel, 3) == [DUE_MS + KEEP_MS]
    assert not wheel.ids._queues if is_written else wheel.ids._queues
    checkpoint(wheel, REACHED)
    forget(wheel)
    assert wheel.ids.recall(3, name) is UNKNOWN and not ends(wheel, 3)


@pytest.mark.parametrize("later_ms", [-1, 1])
def test_a_state_whose_end_has_moved_gets_a_line_of_its_own(wheel: Wheel, later_ms: int) -> None:
    """Source: "Forgetting"."""
    name = id_name("a")
    for due_ms in (DUE_MS, DUE_MS + later_ms):
        state = IdState((LiveMessage(due_ms, 7, 0, b""),))
        before = wheel.ids.recall(3, name)
        wheel.ids.remember(3, name, state, KEEP_MS, before_ms=before.forget_ms)
    assert sorted(ends(wheel, 3)) == sorted((OVER_MS - 1, OVER_MS - 1 + later_ms))


def test_the_line_of_a_series_that_went_on_goes_with_it(wheel: Wheel) -> None:
    """Its end would never come: one for each series that ever was."""
    name = id_name("a")
    series = LiveMessage(DUE_MS, 7, 0, b"", goes_on=True)
    wheel.ids.remember(3, name, IdState((series,)), KEEP_MS)
    before = wheel.ids.recall(3, name)
    assert ends(wheel, 3) == [NEVER_MS + KEEP_MS]
    ended = IdState((), killed_from((series,)), 9)
    wheel.ids.remember(3, name, ended, KEEP_MS, before_ms=before.forget_ms)
    checkpoint(wheel, REACHED)
    forget(wheel)
    assert wheel.ids.recall(3, name) is UNKNOWN and not ends(wheel, 3)


def test_what_goes_on_and_the_beginning_of_a_run_are_kept(wheel: Wheel) -> None:
    """All others take no more room than by older releases."""
    messages = (
        LiveMessage(DUE_MS, 6, 0, b""),
        LiveMessage(DUE_MS, 7, 0, b"", goes_on=1),
        LiveMessage(DUE_MS, 8, 0, b"", since_ms=DUE_MS - 5),
        LiveMessage(DUE_MS, 9, 0, b"", since_ms=WAITS),
    )
    name, state = id_name("a"), IdState(messages)
    wheel.ids.remember(3, name, state, KEEP_MS, {6: "orders", 9: "mails"})
    checkpoint(wheel, REACHED)
    found = wheel.ids.recall(3, name)
    assert found.state == state and found.topics == {6: "orders", 7: "", 8: "", 9: "mails"}


def test_many_are_recalled_as_one_by_one(wheel: Wheel) -> None:
    """Those in memory, those on their way into the catalogue, and those in it."""
    remember(wheel, 0, 3)
    checkpoint(wheel, REACHED)
    remember(wheel, 1, 3)
    wheel.ids.capture()
    remember(wheel, 2, 3)
    wheel.ids._layers.put(b"i\0\1" + id_name("id-1"), None)
    wheel.ids._layers.put(b"i\0\0" + id_name("id-2"), None)
    keys = [(p, id_name(f"id-{number}")) for number in (3, 1, 0, 2) for p in (2, 0, 1)]
    found = wheel.ids.recall_each(keys)
    assert found == [wheel.ids.recall(*key) for key in keys]
    assert sum(each is not UNKNOWN for each in found) == 7, "two are gone, three never were"
    wheel.ids.settle()


def test_of_kills_the_first_alone_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    wheel = Wheel.open(tmp_path / "told", partitions=2)
    wheel.ids._on_kills = told.extend
    ranks = [Rank(DUE_MS + number, 0, number) for number in range(3)]
    wheel.ids.note_kill(ranks[1], Kill(5, topic="a"))
    wheel.ids.note_kills({rank: Kill(9, topic="b") for rank in ranks})
    wheel.ids.note_kills({ranks[0]: Kill(10, is_refused=True, topic="b")})
    assert told == [(DUE_MS + 1, "a"), (DUE_MS, "b"), (DUE_MS + 2, "b")]
    assert [wheel.ids.kill(rank) for rank in ranks] == [
        Kill(10, True, "b"),
        Kill(9, topic="b"),
        Kill(9, topic="b"),
    ]
    wheel.close()


def test_first_messages_are_remembered_as_any_state_and_forgotten_so(tmp_path: Path) -> None:
    """With the targets of all, in partitions of their own, and in no order."""
    firsts = {
        (partition, id_name(f"id-{number}")): First(
            DUE_MS - number * 7 % 5, number, number % 3, bytes([number]) * 16, f"t-{number % 2}"
        )
        for partition in (3, 0)
        for number in range(9)
    }
    several = Wheel.open(tmp_path / "several", partitions=PARTITIONS)
    each = Wheel.open(tmp_path / "each", partitions=PARTITIONS)
    with closing(several), closing(each):
        several.ids.remember_firsts(firsts, KEEP_MS)
        for (partition, name), first in firsts.items():
            topics = {first.offset: first.topic}
            each.ids.remember(partition, name, first_of_id(*first[:4]), KEEP_MS, topics)
        for wheel in (several, each):
            checkpoint(wheel, REACHED)
        keys = list(firsts)
        assert several.ids.recall_each(keys) == each.ids.recall_each(keys)
        assert lines(several) == lines(each) and len(lines(each)) == 2 * len(firsts)
        forget(several)
        assert lines(several) == []


def lines(wheel: Wheel) -> list[tuple[bytes, bytes]]:
    """What LevelDB has of ids."""
    found = wheel._catalogue.notes(b"e", b"j", 1_000)
    return [(key, value) for key, value in found if key[:1] in b"ei"]
