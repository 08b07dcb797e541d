"""A comparison goes through a wheel in rounds, and each ends: heavy hours, failures, short disks.

Source: docs/design/storage.md, "Comparing running nodes".
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from comparing_nodes import HOUR_MS, comparing, due_of, far, lost, named, spread
from exporting_node import BEGIN_MS, cut

from delayd.node.comparing import looking
from delayd.node.comparing.side import Side
from delayd.wheel.comparing.digest_tree import Digest, Level
from delayd.wheel.layout import hour_of


def test_every_hour_is_compared_in_rounds_that_read_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "ROUND_FRAMES", 30)
    monkeypatch.setattr(looking, "EXCHANGE_FRAMES", 1)
    records = spread(300)
    it = far(records)
    with comparing(tmp_path, "ab") as nodes:
        nodes.take(records, b=lost(it))
        nodes["b"].take(spread(100, first=300, seed=2))
        nodes["b"].replica.checkpoint()
        rounds = 0
        while not nodes["a"].named:
            rounds += 1
            assert rounds < 30
            nodes["a"].comparer.round()
        assert rounds > 3
        assert list(nodes["a"].named) == [named(it)]


class HeavyHour:
    """A side that is let go of before it has read this hour."""

    def __init__(self, side: Side, hour: int) -> None:
        self._side, self._hour = side, hour
        self.about, self.agree, self.frames, self.end = (
            side.about, side.agree, side.frames, side.end
        )  # fmt: skip

    def kill_digests(self, first_hour: int) -> tuple[Mapping[int, Digest], int | None]:
        """See `Side`."""
        return self._side.kill_digests(first_hour)

    def digests(self, level: Level, parents: Sequence[int]) -> Mapping[int, Digest]:
        """See `Side`."""
        if level is Level.COMMON_HOUR and self._hour in parents:
            self._side.end()
        return self._side.digests(level, parents)


def test_an_hour_that_takes_too_long_hides_none_behind_it_or_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/storage.md, Comparing running nodes: the walk."""
    records = spread(300)
    before, it, behind = (sorted(records, key=due_of)[n] for n in (200, 250, 299))
    heavy = hour_of(due_of(it) // 1_000)
    assert hour_of(due_of(before) // 1_000) < heavy < hour_of(due_of(behind) // 1_000)
    with comparing(tmp_path, "ab") as nodes:
        nodes.take(records, b=lambda r: None if r in (before, behind) else r)
        # Each hour differs on the whole: "b" has ingested more.
        nodes["b"].take(spread(300, first=300, seed=2))
        nodes["b"].replica.checkpoint()
        comparer = nodes["a"].comparer
        side_of = comparer._others.side
        monkeypatch.setattr(comparer._others, "side", lambda n: HeavyHour(side_of(n), heavy))
        for _ in range(3):
            comparer.round()
        assert nodes["a"].named.keys() == {named(before), named(behind)}
        assert comparer.shown()["left_out"] == 1 and comparer.shown()["passes"] == {"b": 1}
        assert comparer.view.failed == 2
        # It is tried again in the next pass.
        monkeypatch.undo()
        comparer.round()
        assert comparer.shown()["left_out"] == 0 and comparer.shown()["passes"] == {"b": 2}


def test_a_round_that_fails_unexpectedly_is_counted_and_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with comparing(tmp_path, "ab") as nodes:
        nodes.take(spread(50))
        comparer = nodes["a"].comparer

        def broken() -> list[str]:
            raise KeyError("a bug")

        with monkeypatch.context() as patched:
            patched.setattr(comparer._others, "ready", broken)
            comparer.round()
        assert comparer.view.failed == 1 and comparer.shown()["problem"] == "KeyError: 'a bug'"
        comparer.round()
        assert comparer.shown()["problem"] is None and comparer.shown()["passes"] == {"b": 1}


def test_a_look_gives_way_to_a_short_disk(tmp_path: Path) -> None:
    with comparing(tmp_path, "ab") as nodes:
        nodes.take(spread(50))
        held = nodes["a"].replica.wheel.snapshots._files
        holds: list[int] = []

        def is_short(name: str) -> None:
            holds.append(held.holds)
            nodes["a"].comparer.give_way()
            holds.append(held.holds)

        nodes.meets = is_short
        nodes["a"].comparer.round()
        assert holds == [1, 0]
        assert nodes["a"].comparer.view.failed == 1


def test_a_master_begins_no_round(tmp_path: Path) -> None:
    records = spread(50)
    with comparing(tmp_path) as nodes:
        nodes.take(records, a=lost(far(records)))
        nodes["a"].is_master = True
        nodes["a"].comparer.round()
        assert nodes["a"].comparer.view.rounds == 0 and not nodes["a"].named


def test_a_master_sees_that_what_it_has_found_is_no_more(tmp_path: Path) -> None:
    records = spread(100)
    with comparing(tmp_path) as nodes:
        nodes.take(records, a=lost(far(records)))
        b = nodes["b"]
        b.comparer.round()
        b.is_master = True
        b.comparer.round()
        assert b.named
        nodes.observe(cut(3, (100, 100), cursor_ms=BEGIN_MS + 30 * HOUR_MS))
        for node in nodes.nodes.values():
            node.replica.checkpoint()
        b.comparer.round()
        assert not b.named


def test_files_are_held_only_while_they_are_compared(tmp_path: Path) -> None:
    records = spread(100)
    with comparing(tmp_path) as nodes:
        nodes.take(records, a=lost(far(records)))
        nodes["b"].comparer.round()
        assert [n.replica.wheel.snapshots._files.holds for n in nodes.nodes.values()] == [0, 0, 0]


def test_a_damaged_file_that_is_read_ends_its_node(tmp_path: Path) -> None:
    with comparing(tmp_path) as nodes:
        nodes.take(spread(300))
        nodes["a"].take(spread(100, first=300, seed=3))
        nodes["a"].replica.checkpoint()
        for path in (tmp_path / "a" / "slots").rglob("hour.*"):
            data = bytearray(path.read_bytes())
            data[60] ^= 1
            path.write_bytes(data)
        nodes["a"].comparer.round()
        assert [error.code for error in nodes["a"].wrong] == ["corruption"]
