"""A node whose wheel differs sets it aside, and builds another one from the log.

Source: docs/design/repairing.md.
"""

import json
from pathlib import Path
from random import Random

import pytest
from comparing_nodes import HOUR_MS, PARTITIONS, Otherwise, due_of, lost, named
from exporting_node import BEGIN_MS, cancel, cut, schedule
from repairing_nodes import DAY_MS, RepairingNodes, repairing

from delayd.bus import Record
from delayd.coordination.memory import Outcome
from delayd.errors import CorruptionError
from delayd.node.repairing.turn import TURN_S
from delayd.wheel.aside import repair_note
from delayd.wheel.catalogue import Catalogue
from delayd.wheel.kills import kill_key
from delayd.wheel.layout import Layout
from replication.rank import Rank


def plain(count: int = 60, seed: int = 1) -> list[Record]:
    """Schedules without ids: the record alone says what becomes of each."""
    random = Random(seed)
    return [
        schedule(n, BEGIN_MS + random.randrange(20 * HOUR_MS), partition=n % PARTITIONS)
        for n in range(count)
    ]


def with_ids(count: int = 20, first: int = 60) -> list[Record]:
    """Schedules with ids, and cancels of some of them."""
    asked = [schedule(first + n, BEGIN_MS + n * HOUR_MS, id=f"i{n}") for n in range(count)]
    return [*asked, *(cancel(first + count + n, f"i{n}") for n in range(0, count, 4))]


LOG = [*plain(), *with_ids()]
NAMED = next(r for r in LOG if r.key == b"i7")
"""The log's record alone does not say whether it was stored."""
KILLED = next(r for r in LOG if r.key == b"i8")


def take(nodes: RepairingNodes, **otherwise: Otherwise) -> None:
    """The log, and what nodes make of it. What answers cancels was passed by a step."""
    nodes.write(LOG)
    nodes.take(LOG, **otherwise)


def frames(nodes: RepairingNodes, name: str) -> dict[int, int]:
    """All that a wheel holds, by slot."""
    wheel = nodes[name].replica.wheel
    return {slot: info.digest for slot in wheel.slots() if (info := wheel.info(slot))}


def all_alike(nodes: RepairingNodes) -> bool:
    """Whether all nodes hold what a node holds that has read the log."""
    names = list(nodes.nodes)
    for name in names:
        nodes[name].comparer.view.findings = ()
        nodes.is_on = False
        nodes[name].comparer.round()
    return not any(nodes[name].comparer.view.findings for name in names)


def repair(nodes: RepairingNodes, *names: str) -> None:
    """Let each of these find out, end, start and compare itself."""
    for name in names:
        for _ in range(2):
            nodes.round(name)
            if nodes.ended[name]:
                break
        assert len(nodes.ended[name]) == 1, nodes[name].comparer.shown()
        nodes.start(name)
        assert nodes.state(name) == "comparing"
        nodes.round(name)
        assert nodes.state(name) == "repaired", nodes[name].comparer.shown()


# --- One node


def revive(nodes: RepairingNodes, name: str, which: Record) -> None:
    """Let a node forget that a message is killed; nothing else tells."""
    nodes[name].replica.close()
    catalogue = Catalogue(Layout(str(nodes[name].folder)).catalogue, create=False)
    rank = Rank(due_of(which), which.partition, which.offset)
    assert catalogue.note(kill_key(rank)) is not None
    catalogue._db.delete(kill_key(rank))
    catalogue.close()
    nodes.start(name)


@pytest.mark.parametrize("what", ["a plain message", "a message with an id", "a kill"])
def test_a_node_that_is_wrong_is_repaired_from_the_log(tmp_path: Path, what: str) -> None:
    """docs/design/repairing.md, "Why the log".

    Rules: repaired-from-log
    """
    otherwise = {"a plain message": lost(LOG[10]), "a message with an id": lost(NAMED)}
    with repairing(tmp_path) as nodes:
        take(nodes, b=otherwise.get(what, lost(schedule(999, 0))))
        if what == "a kill":
            revive(nodes, "b", KILLED)
        nodes.round("a")
        nodes.round("c")
        assert not nodes.ended["a"] and not nodes.ended["c"], "they are right"
        assert nodes.etcd.get("/delayd/c/repair") is None
        repair(nodes, "b")
        assert nodes.kept("b"), "the wheel that differed is the evidence"
        shown = nodes["b"].comparer.shown()["repair"]
        assert shown["state"] == "repaired" and shown["messages"]
        assert nodes.etcd.get("/delayd/c/repair") is None, "the turn is another node's"
        assert all_alike(nodes)


def test_a_frame_too_many_goes(tmp_path: Path) -> None:
    extra = schedule(200, BEGIN_MS + 3 * HOUR_MS)
    with repairing(tmp_path) as nodes:
        take(nodes)
        nodes["b"].take([extra])
        behind = schedule(201, BEGIN_MS + 4 * HOUR_MS)
        nodes.write([behind])
        nodes.take([behind])
        repair(nodes, "b")
        assert all_alike(nodes)


def test_of_two_the_log_decides_whoever_is_wrong(tmp_path: Path) -> None:
    """docs/design/repairing.md, "Who repairs": nobody knows, so both ask the log, in turn."""
    for wrong in "ab":
        with repairing(tmp_path / wrong, "ab") as nodes:
            take(nodes, **{wrong: lost(NAMED)})
            for _ in range(6):
                for name in "ab":
                    nodes.round(name)
                    if name in nodes.gone:
                        nodes.start(name)
            assert nodes.state(wrong) == "repaired"
            assert all_alike(nodes)
            assert len(nodes.ended["a"]) <= 1 and len(nodes.ended["b"]) <= 1


def test_the_log_is_right_against_the_majority(tmp_path: Path) -> None:
    """docs/design/repairing.md, "Who repairs": two of three lack a message."""
    with repairing(tmp_path) as nodes:
        take(nodes, b=lost(NAMED), c=lost(NAMED))
        nodes.round("b")
        assert nodes["b"].named == {named(NAMED): (["a"], "majority")}
        repair(nodes, "a")
        nodes.round("a")
        assert nodes["a"].named == {named(NAMED): (["b", "c"], "replay")}
        repair(nodes, "b", "c")
        assert all_alike(nodes)


def test_a_master_that_is_wrong_ends_in_order(tmp_path: Path) -> None:
    with repairing(tmp_path) as nodes:
        take(nodes, b=lost(NAMED))
        nodes["b"].is_master = True
        nodes.round("b")
        assert not nodes.ended["b"], "a master looks where it is told to"
        nodes.round("a")
        (asker, hour), *_ = nodes["b"].told
        nodes["b"].comparer.look_at(asker, hour)
        assert len(nodes.ended["b"]) == 1


@pytest.mark.parametrize("wrong", "ab")
def test_a_master_is_not_the_first_where_nobody_knows_who_is_wrong(
    tmp_path: Path, wrong: str
) -> None:
    """docs/design/repairing.md, "Who repairs": if it is right, others lack what it has.

    Rules: one-repairs
    """
    with repairing(tmp_path, "ab") as nodes:
        nodes.spare_bytes = 2**60
        nodes.start("a")
        take(nodes, **{wrong: lost(NAMED)})
        nodes.round("a")
        assert nodes["a"].named == {named(NAMED): ([], "nobody")}
        nodes.repairers["a"]._spare_bytes = nodes.spare_bytes = 0
        nodes["a"].is_master = True
        nodes.round("a")
        assert not nodes.ended["a"]
        assert "master" in nodes["a"].comparer.shown()["repair"]["problem"]
        repair(nodes, "b")
        nodes.round("a")
        assert len(nodes.ended["a"]) == (wrong == "a"), "the one that was rebuilt says who is wrong"


# --- Not now


@pytest.mark.parametrize("names", ["abc", "ab"])
def test_a_reply_in_the_words_of_another_release_repairs_nothing(
    tmp_path: Path, names: str
) -> None:
    """docs/design/repairing.md, "Who repairs": such a difference is told, and passes by itself.

    Rules: one-repairs
    """
    refused = schedule(300, BEGIN_MS, more=[("delayd-tipo", b"1")])
    worded = refused._replace(
        headers=[(name.replace("tipo", "typo"), v) for name, v in refused.headers]
    )
    with repairing(tmp_path, names) as nodes:
        nodes.take([*LOG, refused], b=lambda record: worded if record is refused else record)
        for _ in range(2):
            for name in names:
                nodes.round(name)
        assert list(nodes["b"].named) == [named(refused)], "it is told"
        assert not any(nodes.ended.values())


def test_nobody_repairs_while_another_node_has_the_turn(tmp_path: Path) -> None:
    """docs/design/repairing.md, "Two at once".

    Rules: one-repairs
    """
    other = next(r for r in LOG if r.key == b"i11")
    with repairing(tmp_path) as nodes:
        take(nodes, b=lost(NAMED), c=lost(other))
        nodes.round("b")
        assert nodes.ended["b"]
        nodes.round("c")
        assert not nodes.ended["c"], "b has ended, and has the turn"
        assert "turn" in nodes["c"].comparer.shown()["repair"]["problem"]
        nodes.start("b")
        nodes.unready.add("b")
        nodes.round("c")
        assert not nodes.ended["c"] and "b" in nodes["c"].comparer.shown()["repair"]["problem"]
        nodes.unready.clear()
        nodes.round("b")
        assert nodes.state("b") == "repaired"
        repair(nodes, "c")
        assert all_alike(nodes)


def test_nobody_ends_if_no_other_node_could_take_over(tmp_path: Path) -> None:
    with repairing(tmp_path) as nodes:
        take(nodes, b=lost(LOG[10]))
        nodes.keep(LOG)
        nodes.is_on = False
        nodes.start("b")
        nodes.round("b")
        assert nodes["b"].named
        nodes.repairers["b"]._may_begin = True
        nodes.unready |= {"a", "c"}
        nodes.round("b")
        nodes.unready = {"c"}
        nodes.round("b")
        assert not nodes.ended["b"]
        assert "c could not take over" in nodes["b"].comparer.shown()["repair"]["problem"]
        nodes.unready.clear()
        nodes.round("b")
        assert nodes.ended["b"]


@pytest.mark.parametrize("lack", ["log", "room", "off"])
def test_without_log_room_or_leave_a_node_only_tells(tmp_path: Path, lack: str) -> None:
    """docs/design/repairing.md, "When it begins": the wheel that differs must stay.

    Rules: repaired-from-log, evidence-kept
    """
    with repairing(tmp_path) as nodes:
        take(nodes, b=lost(NAMED))
        if lack == "log":
            nodes.log_lack = "it was trimmed"
        elif lack == "room":
            nodes.spare_bytes = 2**60
        nodes.is_on = lack != "off"
        nodes.start("b")
        nodes.round("b")
        assert nodes["b"].named, "the alarm"
        assert not nodes.ended["b"] and nodes.note("b") is None
        shown = nodes["b"].comparer.shown()["repair"]
        assert (shown is None) == (lack == "off")
        assert lack != "room" or "free" in shown["problem"]
        assert lack != "log" or shown["problem"] == "it was trimmed"


def test_a_log_that_is_not_enough_any_more_leaves_the_wheel_in_place(tmp_path: Path) -> None:
    with repairing(tmp_path) as nodes:
        take(nodes, b=lost(NAMED))
        before = frames(nodes, "b")
        nodes.round("b")
        nodes.log_lack = "it was trimmed meanwhile"
        nodes.start("b")
        assert nodes.state("b") == "failed" and not nodes.kept("b")
        assert frames(nodes, "b") == before
        nodes.log_lack = None
        nodes.clock.now_ms += DAY_MS
        nodes.round("b")
        nodes.round("b")
        assert len(nodes.ended["b"]) == 1, "it has failed once, and tells a person"
        assert nodes["b"].repairer.has_failed


def test_a_start_does_not_set_a_damaged_wheel_aside(tmp_path: Path) -> None:
    """docs/design/repairing.md, "When it begins": damage has a way of its own."""

    def check_wheel() -> None:
        raise CorruptionError("the wheel is damaged", remedy="")

    with repairing(tmp_path) as nodes:
        take(nodes, b=lost(NAMED))
        nodes.round("b")
        nodes["b"].replica.close()
        nodes.check_wheel = check_wheel
        nodes.prepare("b")
        assert nodes.note("b") is None and not nodes.kept("b")


def test_a_start_that_finds_nobody_else_leads_with_the_wheel_that_it_has(tmp_path: Path) -> None:
    """docs/design/repairing.md, "When it begins": the whole cluster was stopped meanwhile.

    Rules: one-repairs
    """
    with repairing(tmp_path) as nodes:
        take(nodes, b=lost(NAMED))
        nodes.round("b")
        for name in "ac":
            nodes.etcd.delete(f"/delayd/c/members/{name}")
        nodes.start("b")
        assert nodes.note("b") is None and not nodes.kept("b")
        nodes.round("b")
        nodes.round("b")
        assert len(nodes.ended["b"]) == 2, "it finds the difference again"


# --- No loop


def test_a_wheel_that_differs_again_is_not_repaired_again(tmp_path: Path) -> None:
    """docs/design/repairing.md, "It ends".

    Rules: repair-ends
    """
    with repairing(tmp_path) as nodes:
        take(nodes, b=lost(NAMED))
        nodes.keep(LOG)
        nodes.round("b")
        nodes.log = [record for record in LOG if record is not LOG[10]]  # a log that lies
        nodes.start("b")
        nodes["b"].comparer.view.findings = ()
        note = repair_note(nodes["b"].folder)
        assert note is not None and note.state.value == "comparing"
        # As if it had differed about that one before.
        hour = [due_of(LOG[10]) // HOUR_MS]
        told = json.loads((nodes["b"].folder / "repair.json").read_text())
        (nodes["b"].folder / "repair.json").write_text(json.dumps({**told, "hours": hour}))
        nodes.start("b")
        nodes.round("b")
        assert nodes.state("b") == "comparing", "it looks twice"
        nodes.round("b")
        assert nodes.state("b") == "failed"
        nodes.clock.now_ms += DAY_MS
        for _ in range(3):
            nodes.round("b")
        assert len(nodes.ended["b"]) == 1
        assert nodes.etcd.get("/delayd/c/repair") is None
        assert nodes.kept("b")


def test_a_second_difference_within_a_day_is_left_to_people(tmp_path: Path) -> None:
    with repairing(tmp_path) as nodes:
        take(nodes, b=lost(NAMED))
        repair(nodes, "b")
        more = [schedule(300, BEGIN_MS + 5 * HOUR_MS), schedule(301, BEGIN_MS + 6 * HOUR_MS)]
        nodes.write(more)
        nodes.take(more, b=lost(more[0]))
        nodes.keep(more)
        for _ in range(2):
            nodes.round("b")
        assert nodes["b"].named and len(nodes.ended["b"]) == 1
        assert "day" in nodes["b"].comparer.shown()["repair"]["problem"]
        nodes.clock.now_ms += DAY_MS
        nodes.round("b")
        assert len(nodes.ended["b"]) == 2


def test_a_node_that_is_wrong_nowhere_any_more_has_not_failed(tmp_path: Path) -> None:
    with repairing(tmp_path) as nodes:
        take(nodes, b=lost(NAMED))
        nodes.round("b")
        nodes.log_lack = "it was trimmed"
        nodes.start("b")
        assert nodes["b"].repairer.has_failed
        nodes.observe(cut(3, (200, 200), cursor_ms=BEGIN_MS + 30 * HOUR_MS))
        for node in nodes.nodes.values():
            node.replica.checkpoint()
        nodes.round("b")
        assert nodes.state("b") == "repaired" and not nodes["b"].repairer.has_failed


# --- Turns


def test_the_turn_is_one_nodes_and_comes_to_another_one_in_the_end(tmp_path: Path) -> None:
    with repairing(tmp_path) as nodes:
        take(nodes, b=lost(NAMED))
        nodes.round("b")
        nodes.clock.now_ms += TURN_S * 1000 + 1  # it stays away for days
        assert nodes.etcd.client_call(lambda: nodes.etcd.get("/delayd/c/repair"), None) is None
        nodes.start("b")
        assert nodes.note("b") is None and not nodes.kept("b"), "its turn is over"
        nodes.round("b")
        nodes.round("b")
        assert len(nodes.ended["b"]) == 2, "it takes another one"


def test_a_turn_whose_answer_was_lost_is_this_nodes_all_the_same(tmp_path: Path) -> None:
    with repairing(tmp_path) as nodes:
        take(nodes, b=lost(NAMED))
        nodes.round("c")
        for outcome in (Outcome.NOT_APPLIED, Outcome.APPLIED):
            for calls in range(3):
                if calls:
                    nodes.ways["b"].fail_next(outcome)
                nodes.round("b")
        nodes.ways["b"]._next_faults.clear()
        nodes.round("b")
        assert len(nodes.ended["b"]) == 1
        nodes.start("b")
        nodes.round("b")
        assert nodes.state("b") == "repaired"


def test_a_turn_that_comes_to_light_after_the_repair_ends_too(tmp_path: Path) -> None:
    """An etcd that was not to be trusted had said that there was none any more.

    Rules: one-repairs
    """
    with repairing(tmp_path) as nodes:
        take(nodes, b=lost(NAMED))
        repair(nodes, "b")
        way = nodes.ways["b"]
        lease = way.grant_lease(TURN_S).id
        way.claim_repair(json.dumps({"node": "b", "lease": lease}), lease)
        nodes.round("b")
        assert way.repair_claim() is None, "others can never repair"


def test_a_new_wheel_that_has_not_come_so_far_is_not_like_the_others(tmp_path: Path) -> None:
    """Rules: repair-ends"""
    with repairing(tmp_path) as nodes:
        take(nodes, b=lost(NAMED))
        nodes.round("b")
        whole, nodes.log = nodes.log, [r for r in LOG if r.offset < NAMED.offset]
        nodes.start("b")
        for _ in range(3):
            nodes.round("b")
            assert nodes.state("b") == "comparing"
        nodes.log = whole
        nodes.read_on("b")
        nodes.round("b")
        assert nodes.state("b") == "repaired"
