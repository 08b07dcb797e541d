"""Comparisons over real admin ports: what another node answers, and to whom."""

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import msgpack
import pytest
from comparing_nodes import FAST_BYTES_PER_S, ComparingNode, comparing
from exporting_node import BEGIN_MS, PROOF_KEY, SETTINGS, cancel, schedule
from fastapi import FastAPI

from delayd.cluster.member_proof import Asked, MemberCheck, MemberKeys
from delayd.dev.ports import pick_ports
from delayd.errors import CorruptionError
from delayd.node.comparing import answering
from delayd.node.comparing.answering import Answerer, NotYetError
from delayd.node.comparing.peer import Peers
from delayd.node.comparing.side import (
    KILL,
    ComparisonError,
    HeldFrame,
    OwnSide,
    Pace,
    Source,
    Value,
)
from delayd.node.monitoring.comparing import add_comparison_routes
from delayd.node.monitoring.http import AdminServer
from delayd.runtime.clock import SystemClock
from delayd.wheel.comparing.digest_tree import ROOT, Level
from delayd.wheel.layout import hour_of

RECORDS = [schedule(n, BEGIN_MS + 60_000 * n, partition=n % 2) for n in range(200)]
FAR_MS = BEGIN_MS + 20 * 3_600_000
KILLED = schedule(300, FAR_MS, id="k")
KEYS = MemberKeys(PROOF_KEY, SETTINGS.realm)
CLOCK = SystemClock()


class Answering:
    """An admin port that answers for a node."""

    def __init__(self, node: ComparingNode, *, is_on: bool = True) -> None:
        self.members = MemberCheck(KEYS, "life", CLOCK)
        self.damage: list[CorruptionError] = []
        self.told: list[tuple[str, int]] = []
        self.comparisons = self
        self.answerer = Answerer(
            node.replica,
            CLOCK,
            Pace(CLOCK, FAST_BYTES_PER_S),
            node=node.name,
            is_on=is_on,
            on_damage=self.damage.append,
            on_look=lambda asker, hour: self.told.append((asker, hour)),
        )
        (self.port,) = pick_ports(1)
        app = FastAPI()
        add_comparison_routes(app, self)  # type: ignore[arg-type]
        self._server = AdminServer(app, "127.0.0.1", self.port)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve()))
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            threading.Event().wait(0.005)

    def peers(self, *, realm: str = SETTINGS.realm, life: str = "life") -> Peers:
        """It, as the node "a" sees it."""
        member = json.dumps({"admin": f"127.0.0.1:{self.port}", "nonce": life})
        keys = MemberKeys(PROOF_KEY, realm)
        return Peers(lambda: {"b": member}, keys, CLOCK, node="a", stopping=threading.Event())

    def close(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)
        self.answerer.stop()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ComparingNode]:
    with comparing(tmp_path, "ab") as nodes:
        nodes.take(RECORDS)
        yield nodes["b"]


@pytest.fixture
def answers(node: ComparingNode) -> Iterator[Answering]:
    made = Answering(node)
    yield made
    made.close()


def test_another_node_answers_as_it_would_itself(node: ComparingNode, answers: Answering) -> None:
    node.take([KILLED, cancel(301, "k")])
    node.replica.checkpoint()
    own = OwnSide(node.replica, "b", node.pace)
    peer = answers.peers().side("b")
    assert peer.about == own.about
    hours = sorted({hour_of(int(dict(r.headers)["delayd-due"] or 0) // 1000) for r in RECORDS})
    for side in (own, peer):
        side.agree([own.about.checkpoint, peer.about.checkpoint])
    for level, parents in [(Level.DAY, ROOT), (Level.HOUR, [0]), (Level.SLOT, hours)]:
        assert peer.digests(level, parents) == own.digests(level, parents) != {}
    slots = own.digests(Level.SLOT, hours)
    found = [peer.frames(hour, slots, turn, 3) for hour in hours for turn in range(3)]
    assert found == [own.frames(hour, slots, turn, 3) for hour in hours for turn in range(3)]
    assert sum(map(len, found)) == len(RECORDS) + 1, "and the cancel marker"
    killed = hour_of(FAR_MS // 1000)
    digests, next_hour = peer.kill_digests(0)
    assert (digests, next_hour) == own.kill_digests(0)
    assert digests.keys() == {killed} and next_hour is None
    assert peer.kill_digests(killed + 1) == ({}, None)
    [_, kill] = peer.frames(killed, [FAR_MS // 1000], 0, 1)
    source = Source(KILL, KILLED.partition, KILLED.offset)
    assert kill == HeldFrame(source, Value(FAR_MS, 301), 0, None)
    answers.peers().tell(peer, 7)
    assert answers.told == [("a", 7)]
    for side in (own, peer):
        side.end()
    assert node.replica.wheel.snapshots._files.holds == 0


def test_an_answer_that_takes_long_is_asked_for_again(
    answers: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "ANSWER_S", 0.001)
    held = threading.Event()
    slow = answers.answerer._answered

    def answered(*asked: object) -> object:
        held.wait(0.3)
        return slow(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(answers.answerer, "_answered", answered)
    peer = answers.peers().side("b")
    peer.agree([peer.about.checkpoint])
    assert peer.digests(Level.DAY, ROOT)
    peer.end()


def test_strangers_and_changed_questions_are_refused(
    node: ComparingNode, answers: Answering
) -> None:
    with pytest.raises(ComparisonError, match="another cluster key"):
        answers.peers(realm="another").side("b")
    with pytest.raises(ComparisonError, match="another cluster key"):
        answers.peers(life="an earlier one").side("b")
    url = f"http://127.0.0.1:{answers.port}"
    assert httpx.post(f"{url}/comparisons/a").status_code == 401
    question = msgpack.packb(["look", 1])
    path = f"/comparisons/x/{hashlib.sha256(question).hexdigest()}"
    proof = {"authorization": Asked(KEYS, "POST", path, "life", CLOCK).header}
    changed = httpx.post(url + path, content=msgpack.packb(["look", 2]), headers=proof)
    assert changed.status_code == 400 and not answers.told


def test_a_question_that_makes_no_sense_harms_nobody(answers: Answering) -> None:
    peer = answers.peers().side("b")
    for question in (["dance"], ["digests", 9, [0]], ["frames", 1, [1], 5, 2], ["cut", [[1]]], 7):
        body = msgpack.packb(question)
        path = f"/comparisons/{peer._id}/{hashlib.sha256(body).hexdigest()}"  # type: ignore[attr-defined]
        with pytest.raises(ComparisonError):
            peer._request(path, body)  # type: ignore[attr-defined]
    with pytest.raises(ComparisonError, match="no cut"):
        peer.digests(Level.DAY, ROOT)
    peer.end()


def test_a_node_that_compares_nothing_says_so(node: ComparingNode) -> None:
    answers = Answering(node, is_on=False)
    with pytest.raises(ComparisonError, match="compare_s is 0"):
        answers.peers().side("b")
    answers.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_ms = CLOCK.monotonic_ms() + 30_000
    while not is_so():
        assert CLOCK.monotonic_ms() < deadline_ms, "it takes too long"
        threading.Event().wait(0.01)


def test_a_node_of_a_release_that_says_more_is_let_go_of(
    node: ComparingNode, answers: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = answers.answerer.begin

    def more(asker: str) -> bytes:
        id, about = msgpack.unpackb(begin(asker))
        data: bytes = msgpack.packb([id, [*about[:-1], "a new field", about[-1]]])
        return data

    monkeypatch.setattr(answers.answerer, "begin", more)
    with pytest.raises(ComparisonError, match="another release"):
        answers.peers().side("b")
    assert node.replica.wheel.snapshots._files.holds == 0
    monkeypatch.setattr(answers.answerer, "begin", lambda asker: msgpack.packb({"id": 1}))
    with pytest.raises(ComparisonError, match="another release"):
        answers.peers().side("b")


@pytest.mark.parametrize("value", ["no JSON", "[]"])
def test_a_member_that_cannot_be_read_is_named(value: str) -> None:
    peers = Peers(lambda: {"b": value}, KEYS, CLOCK, node="a", stopping=threading.Event())
    for ask in (peers.ready, lambda: peers.side("b")):
        with pytest.raises(ComparisonError, match="b: what it says cannot be read"):
            ask()


def test_an_answer_that_cannot_be_read_ends_the_look_only(
    answers: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = answers.peers().side("b")
    monkeypatch.setattr(answers.answerer, "_answered", lambda *asked: [[1]])
    for ask in (lambda: peer.digests(Level.DAY, ROOT), lambda: peer.frames(1, [1], 0, 1)):
        with pytest.raises(ComparisonError, match="another release"):
            ask()


def test_a_hold_ends_by_itself_a_while_after_the_last_question(
    node: ComparingNode, answers: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/storage.md, Comparing running nodes: what a node bears."""
    monkeypatch.setattr(answering, "IDLE_S", 0.04)
    answers.peers().side("b")
    wait_until(lambda: node.replica.wheel.snapshots._files.holds == 0)


def test_a_question_that_was_given_up_does_not_keep_a_hold(
    node: ComparingNode, answers: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "ANSWER_S", 0)
    go_on, is_worked_on = threading.Event(), threading.Event()

    def answered(*asked: object) -> None:
        is_worked_on.set()
        assert go_on.wait(30)

    monkeypatch.setattr(answers.answerer, "_answered", answered)
    id = msgpack.unpackb(answers.answerer.begin("a"))[0]
    with pytest.raises(NotYetError):
        answers.answerer.ask(id, b"a question")
    assert is_worked_on.wait(30)
    monkeypatch.setattr(answering, "IDLE_S", 0.04)
    answers.answerer.sweep()
    files = node.replica.wheel.snapshots._files
    assert files.holds == 1, "it is worked on"
    go_on.set()

    def is_let_go() -> bool:
        answers.answerer.sweep()
        return files.holds == 0

    wait_until(is_let_go)


def test_what_nobody_asks_for_any_more_is_let_go(
    node: ComparingNode, answers: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = node.replica.wheel.snapshots._files
    answers.peers().side("b")
    answers.peers().side("b")
    assert files.holds == 1, "one for each node that asks"
    monkeypatch.setattr(answering, "IDLE_S", 0)
    answers.answerer.sweep()
    assert files.holds == 0
    answers.peers().side("b")
    answers.answerer.give_way()
    assert files.holds == 0
