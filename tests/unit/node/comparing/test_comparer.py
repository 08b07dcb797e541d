"""Running nodes find where their wheels differ, name the messages, and who is wrong.

Source: docs/design/storage.md, "Comparing running nodes".
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

import pytest
from comparing_nodes import comparing, nothing_found
from exporting_node import BEGIN_MS, cancel, cut, schedule
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delayd.bus import Record
from delayd.node.comparing import looking
from delayd.node.comparing.side import Side
from delayd.wheel.comparing.digest_tree import Digest, Level
from delayd.wheel.layout import hour_of

HOUR_MS = 3_600_000
PARTITIONS = 2
Otherwise = Callable[[Record], Record | None]


def spread(count: int, first: int = 0, seed: int = 1) -> list[Record]:
    """Schedules in both partitions, due within a minute or within a day."""
    random = Random(seed)
    return [
        schedule(
            first + n,
            BEGIN_MS + random.choice([random.randrange(60_000), random.randrange(23 * HOUR_MS)]),
            partition=n % PARTITIONS,
            value=random.randbytes(random.randrange(200)),
        )
        for n in range(count)
    ]


def due_of(record: Record) -> int:
    return int(dict(record.headers)["delayd-due"] or b"")


def named(record: Record) -> str:
    return f"{record.partition}/{record.offset}"


def lost(which: Record) -> Otherwise:
    return lambda record: None if record is which else record


def altered(which: Record) -> Otherwise:
    return lambda r: r._replace(value=b"something else") if r is which else r


def due_later(which: Record, by_ms: int) -> Otherwise:
    def later(record: Record) -> Record:
        if record is not which:
            return record
        headers = [(n, b"%d" % (due_of(which) + by_ms) if n == "delayd-due" else v)
                   for n, v in record.headers]  # fmt: skip
        return record._replace(headers=headers)

    return later


def far(records: list[Record]) -> Record:
    return max(records, key=due_of)


# --- Alike


def test_nodes_that_hold_the_same_find_nothing(tmp_path: Path) -> None:
    with comparing(tmp_path) as nodes:
        nodes.take(spread(300))
        for _ in range(2):
            nodes["a"].comparer.round()
        assert nothing_found(nodes["a"])
        assert nodes["a"].comparer.shown()["passes"] == {"b": 1, "c": 1}
        assert nodes["a"].pace.read_bytes == 0, "the catalogues are enough"


ACTIONS = st.sampled_from(["take", "checkpoint", "observe", "split", "compare"])


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 2**32),
    moves=st.lists(st.tuples(st.sampled_from("abc"), ACTIONS, st.integers(1, 60)), max_size=40),
)
def test_no_layout_is_a_difference(
    tmp_path_factory: pytest.TempPathFactory, seed: int, moves: list[tuple[str, str, int]]
) -> None:
    """Each has ingested, split, forgotten and made checkpoints at its own pace."""
    records = spread(400, seed=seed)
    ids = [schedule(400 + n, BEGIN_MS + n * 777_777, id=f"i{n}") for n in range(20)]
    records += [*ids, *(cancel(420 + n, f"i{n}") for n in range(0, 20, 2))]
    # Some of them late: behind what the frontiers below have passed.
    frontiers = [
        cut(n, (min(50 * n, 400),) * 2, cursor_ms=BEGIN_MS + 4_000 * n, append_ms=BEGIN_MS + n)
        for n in range(1, 12)
    ]
    with comparing(tmp_path_factory.mktemp("nodes")) as nodes:
        taken, seen = dict.fromkeys("abc", 0), dict.fromkeys("abc", 0)
        for name, action, amount in [*moves, *[(n, "compare", 1) for n in "abc" * 2]]:
            node = nodes[name]
            if action == "take":
                node.take(records[taken[name] : taken[name] + amount])
                taken[name] = min(len(records), taken[name] + amount)
            elif action == "checkpoint":
                node.replica.checkpoint()
            elif action == "observe":
                for frontier in frontiers[seen[name] : seen[name] + amount % 4]:
                    node.replica.observe(frontier)
                seen[name] = min(len(frontiers), seen[name] + amount % 4)
            elif action == "split":
                for _ in range(amount):
                    node.replica.split_some(BEGIN_MS + amount * HOUR_MS // 4)
            else:
                for each in "abc":
                    if nodes[each].replica.wheel.progress is None:
                        nodes[each].replica.checkpoint()
                node.comparer.round()
                assert nothing_found(node), node.comparer.shown()


def test_a_node_that_is_behind_is_no_difference(tmp_path: Path) -> None:
    with comparing(tmp_path) as nodes:
        nodes.take(spread(300))
        nodes["b"].take(spread(200, first=300, seed=2))
        nodes["b"].replica.checkpoint()
        for name in "abcabc":
            nodes[name].comparer.round()
        assert all(nothing_found(nodes[name]) for name in "abc")
        assert nodes["b"].pace.read_bytes > 0


# --- Different


@pytest.mark.parametrize("what", ["lost", "altered", "due-soon", "due-in-another-hour", "extra"])
@pytest.mark.parametrize("is_kept", [True, False])
def test_each_difference_is_named_and_ends_no_node(
    tmp_path: Path, what: str, is_kept: bool
) -> None:
    records = spread(300)
    it = sorted(records, key=due_of)[250]
    otherwise: dict[str, Otherwise] = {
        "lost": {"a": lost(it)},
        "altered": {"a": altered(it)},
        "due-soon": {"a": due_later(it, 3_000)},
        "due-in-another-hour": {"a": due_later(it, -2 * HOUR_MS)},
        "extra": {"b": lost(it), "c": lost(it)},
    }[what]
    with comparing(tmp_path) as nodes:
        nodes.take(records, **otherwise)
        if is_kept and what != "extra":
            nodes.keep(records)
        nodes["a"].comparer.round()
        by = "log" if is_kept and what != "extra" else "majority"
        assert nodes["a"].named == {named(it): (["a"], by)}
        assert nodes["a"].comparer.view.counts == {"confirmed": 1}
        # Whom it is not about says so, and tells the one.
        nodes["b"].comparer.round()
        assert nodes["b"].named == {named(it): (["a"], by)}
        hours = {hour for _, hour in nodes["a"].told}
        assert hour_of(due_of(it) // 1000) in hours
        asker, hour = nodes["a"].told[0]
        nodes["a"].is_master, nodes["a"].comparer.view.findings = True, ()
        nodes["a"].comparer.look_at(asker, hour)
        assert nodes["a"].named == {named(it): (["a"], by)}
        assert not any(nodes[name].wrong for name in "abc")


def test_of_two_nobody_knows_who_is_wrong_without_the_log(tmp_path: Path) -> None:
    records = spread(100)
    with comparing(tmp_path, "ab") as nodes:
        nodes.take(records, a=lost(far(records)))
        for name in "ab":
            nodes[name].comparer.round()
            assert nodes[name].named == {named(far(records)): ([], "nobody")}
        nodes.keep(records)
        nodes["a"].comparer.round()
        assert nodes["a"].named == {named(far(records)): (["a"], "log")}


def test_the_log_is_right_against_the_majority(tmp_path: Path) -> None:
    records = spread(100)
    it = far(records)
    with comparing(tmp_path) as nodes:
        nodes.take(records, b=lost(it), c=lost(it))
        nodes.keep(records)
        for name in "abc":
            nodes[name].comparer.round()
            assert nodes[name].named == {named(it): (["b", "c"], "log")}


def test_nodes_that_are_wrong_in_different_hours_do_not_end_each_other(tmp_path: Path) -> None:
    records = spread(200)
    mine, theirs = (sorted(records, key=due_of)[at] for at in (120, 190))
    assert due_of(theirs) - due_of(mine) > HOUR_MS
    with comparing(tmp_path, "ab") as nodes:
        nodes.keep(records)
        nodes.take(records, a=lost(mine), b=lost(theirs))
        both = {named(mine): (["a"], "log"), named(theirs): (["b"], "log")}
        for name in "ab":
            nodes[name].comparer.round()
            assert nodes[name].named == both
        for node in nodes.nodes.values():
            node.comparer.view.findings = ()
            for asker, hour in node.told:
                node.comparer.look_at(asker, hour)
            assert list(node.named.values()) == [([node.name], "log")], "one hour was looked at"
        assert not nodes["a"].wrong and not nodes["b"].wrong, "each has what the other one lacks"


def test_what_only_the_second_look_sees_is_looked_at_in_a_later_round(tmp_path: Path) -> None:
    records = spread(300)
    by_due = sorted(records, key=due_of)
    mine = by_due[250]
    theirs = next(
        r for r in by_due[251:] if hour_of(due_of(r) // 1000) == hour_of(due_of(mine) // 1000)
    )
    with comparing(tmp_path) as nodes:
        nodes.take(records, a=lost(mine), c=lost(theirs))
        a = nodes["a"]
        a.comparer.round()
        assert a.named == {named(mine): (["a"], "majority")}, "with b first; c was seen once"
        a.comparer._walks["c"].next_hour = 10**9  # the walk has gone on
        a.comparer.round()
        assert a.named == {named(mine): (["a"], "majority"), named(theirs): (["c"], "majority")}
        nodes["b"].comparer.round()
        assert not any(nodes[name].wrong for name in "abc"), "only b has both"


def test_a_node_that_alone_is_right_in_something_is_named_so(tmp_path: Path) -> None:
    records = spread(200)
    mine, theirs = sorted(records, key=due_of)[150:152]
    with comparing(tmp_path) as nodes:
        nodes.take(records, a=lost(mine), b=lost(theirs), c=lost(theirs))
        nodes.keep(records)
        nodes["a"].comparer.round()
        assert nodes["a"].named == {named(mine): (["a"], "log"), named(theirs): (["b", "c"], "log")}


def test_a_third_node_that_gives_no_answer_hides_nothing(tmp_path: Path) -> None:
    records = spread(100)
    with comparing(tmp_path) as nodes:
        nodes.take(records, a=lost(far(records)))
        nodes.keep(records)
        # "c" says that it is ready, and gives no answer.
        nodes.silent.add("c")
        nodes["a"].comparer.round()
        assert nodes["a"].named == {named(far(records)): (["a"], "log")}


def test_a_third_node_that_breaks_off_hides_nothing(tmp_path: Path) -> None:
    records = spread(100)
    with comparing(tmp_path) as nodes:
        nodes.take(records, a=lost(far(records)))
        nodes.keep(records)
        nodes.breaking.add("c")
        nodes["a"].comparer.round()
        assert nodes["a"].named == {named(far(records)): (["a"], "log")}


def test_a_node_that_breaks_off_does_not_stop_the_rounds_with_others(tmp_path: Path) -> None:
    records = spread(200)
    first = far(records)
    with comparing(tmp_path) as nodes:
        nodes.take(records, a=lost(first))
        nodes["a"].comparer.round()
        nodes.breaking.add("c")
        nodes["a"].comparer._turn = 0  # with b again
        rounds = nodes["a"].comparer.view.failed
        nodes["a"].comparer.round()
        assert nodes["a"].comparer.view.failed == rounds
        assert nodes["a"].comparer.shown()["passes"] == {"b": 2}
        assert list(nodes["a"].named) == [named(first)], "what is known stays known"


def test_a_difference_that_is_gone_at_the_second_look_is_counted(tmp_path: Path) -> None:
    records = spread(100)
    it = min(records, key=due_of)
    passed = cut(3, (100, 100), cursor_ms=BEGIN_MS + 30 * HOUR_MS)
    with comparing(tmp_path) as nodes:
        nodes.take(records, a=lost(it))
        looks = []

        def deliver(name: str) -> None:
            looks.append(name)
            if len(looks) == 2:
                nodes.observe(passed)
                for node in nodes.nodes.values():
                    node.replica.checkpoint()
                    node.replica.checkpoint()

        nodes.meets = deliver
        nodes["a"].comparer.round()
        assert looks[:1] == ["b"] and len(looks) == 3
        assert nodes["a"].comparer.view.counts == {"passed": 1}
        assert not nodes["a"].named


def test_a_second_look_that_fails_is_taken_in_a_later_round(tmp_path: Path) -> None:
    records = spread(100)
    it = far(records)
    with comparing(tmp_path, "ab") as nodes:
        nodes.take(records, a=lost(it))
        looks = []

        def die(name: str) -> None:
            looks.append(name)
            if len(looks) == 2:
                nodes.unready.add("b")

        nodes.meets = die
        nodes["a"].comparer.round()
        assert not nodes["a"].named and nodes["a"].comparer.view.failed == 1
        nodes["a"].comparer._walks["b"].next_hour = 10**9  # the walk has gone on
        nodes.unready.clear()
        nodes["a"].comparer.round()
        assert list(nodes["a"].named) == [named(it)]


def test_a_difference_that_is_no_more_is_told_no_more(tmp_path: Path) -> None:
    records = spread(100)
    it = far(records)
    with comparing(tmp_path) as nodes:
        nodes.take(records, a=lost(it))
        nodes["b"].comparer.round()
        assert list(nodes["b"].named) == [named(it)]
        # It is delivered.
        nodes.observe(cut(3, (100, 100), cursor_ms=BEGIN_MS + 30 * HOUR_MS))
        for node in nodes.nodes.values():
            node.replica.checkpoint()
        nodes["b"].comparer.round()
        assert not nodes["b"].named


def test_a_node_that_is_away_may_still_differ(tmp_path: Path) -> None:
    records = spread(100)
    it = far(records)
    with comparing(tmp_path) as nodes:
        nodes.take(records, a=lost(it))
        nodes["b"].comparer.round()
        nodes.unready.add("a")
        nodes["b"].comparer.round()
        assert list(nodes["b"].named) == [named(it)]
        nodes.observe(cut(3, (100, 100), cursor_ms=BEGIN_MS + 30 * HOUR_MS))
        for node in nodes.nodes.values():
            node.replica.checkpoint()
        nodes["b"].comparer.round()
        assert not nodes["b"].named


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
