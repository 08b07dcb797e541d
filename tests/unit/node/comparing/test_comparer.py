"""Running nodes find where their wheels differ, name the messages, and who is wrong.

Source: docs/design/storage.md, "Comparing running nodes".
"""

from pathlib import Path

import pytest
from comparing_nodes import (
    HOUR_MS,
    Otherwise,
    altered,
    comparing,
    due_later,
    due_of,
    far,
    lost,
    named,
    nothing_found,
    spread,
)
from exporting_node import BEGIN_MS, cancel, cut, schedule
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delayd.wheel.layout import hour_of

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


@pytest.mark.long
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
