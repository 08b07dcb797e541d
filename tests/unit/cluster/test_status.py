"""`delayd status` on twins: what makes it say that a person is needed."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from manual_clock import ManualClock

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.cluster.status import status_report
from delayd.cluster.topics import create_topics
from delayd.commands.cluster import _show_status
from delayd.coordination.memory import MemoryCoordination, MemoryEtcd
from delayd.dev.ports import LOOPBACK, pick_ports

CLUSTER_KEY = "a key that is long enough"
TIMEOUT_MS = 1_000
WELL: dict[str, Any] = {
    "role": "follower",
    "ready": True,
    "kafka_problem": None,
    "failing_targets": [],
}


@contextmanager
def a_node(status: dict[str, Any]) -> Iterator[str]:
    """Its address; `GET /status` answers so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(status).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer((LOOPBACK, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"{LOOPBACK}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def report_of(
    admin: str, former: tuple[str, ...] = (), forget: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Of a new cluster whose master is node `a`, at `admin`; the `former` nodes are gone."""
    clock = ManualClock()
    bus = MemoryBus(MemoryKafka(clock), clock=clock)
    settings = create_topics(
        bus, cluster="c", cluster_key=CLUSTER_KEY, partitions=1, timeout_ms=TIMEOUT_MS
    )
    server = MemoryEtcd(clock)
    etcd = MemoryCoordination(server, "c")
    etcd.enter(settings.realm)
    gone = etcd.grant_lease(10)
    for name in former:
        etcd.put_member(name, "{}", gone.id)
    etcd.revoke(gone.id)
    lease = etcd.grant_lease(10)
    etcd.put_member("a", json.dumps({"admin": admin}), lease.id)
    etcd.campaign(0, json.dumps({"node": "a"}), lease.id)
    etcd = MemoryCoordination(server, "c")
    return status_report(
        bus, etcd, clock, cluster="c", prefix="delayd-", timeout_ms=TIMEOUT_MS, forget=forget
    )


def problems_of_nodes(report: dict[str, Any]) -> list[str]:
    """A cluster that was just made has delivered nothing yet: that is another one."""
    return [problem for problem in report["problems"] if problem.startswith("node ")]


def test_a_node_that_is_well_is_no_problem() -> None:
    with a_node(WELL) as admin:
        report = report_of(admin)
    assert problems_of_nodes(report) == []
    [told] = report["nodes"]
    assert (told["node"], told["role"], told["kafka_problem"]) == ("a", "follower", None)


def test_a_node_that_does_not_get_into_kafka_needs_a_person() -> None:
    with a_node({**WELL, "kafka_problem": "the password is wrong"}) as admin:
        report = report_of(admin)
    assert not report["healthy"]
    assert problems_of_nodes(report) == ["node a does not get into Kafka: the password is wrong"]
    assert report["nodes"][0]["kafka_problem"] == "the password is wrong"


def test_a_node_that_takes_in_nothing_new_needs_a_person() -> None:
    disk = {"room": "short", "free_bytes": 7, "free_min_bytes": 8}
    with a_node({**WELL, "disk": disk}) as admin:
        report = report_of(admin)
    [problem] = problems_of_nodes(report)
    assert problem.startswith("node a takes in no new messages") and "7 bytes" in problem
    with a_node({**WELL, "disk": {**disk, "room": "enough"}}) as admin:
        assert problems_of_nodes(report_of(admin)) == []


def test_messages_that_not_all_nodes_hold_alike_need_a_person() -> None:
    found = {"source": "1/7", "wrong": ["b"], "by": "log"}
    compared = {"differs": 2, "messages": [found, {**found, "source": "1/9"}]}
    with a_node({**WELL, "compared": compared}) as admin:
        [problem] = problems_of_nodes(report_of(admin))
    assert "2 messages" in problem and problem.endswith("the first is 1/7, wrong on b")
    with a_node({**WELL, "compared": {"differs": 0, "messages": []}}) as admin:
        assert problems_of_nodes(report_of(admin)) == []


@pytest.mark.parametrize("status", [{}, {"role": "follower"}])
def test_a_node_of_another_version_says_less(status: dict[str, Any]) -> None:
    with a_node(status) as admin:
        assert problems_of_nodes(report_of(admin)) == []


def test_a_node_that_does_not_answer_needs_a_person() -> None:
    [port] = pick_ports(1)
    report = report_of(f"{LOOPBACK}:{port}")
    assert problems_of_nodes(report) == ["node a does not answer"]


def test_a_failing_target_is_shown_whole_with_its_messages_and_attempts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    failing: dict[str, Any] = {
        "topic": "a.topic.nobody.made",
        "problem": "there is no such topic: create it",
    }
    failing |= {"since_ms": 1_795_404_607_066, "messages": 1, "attempts": 9}
    with a_node({**WELL, "failing_targets": [failing]}) as admin:
        report = report_of(admin)
    _show_status(report)
    shown = capsys.readouterr().out
    [line] = [line for line in shown.splitlines() if "a.topic.nobody.made" in line]
    assert " 1 " in line and " 9 " in line


def test_nodes_that_were_there_are_missed_until_they_are_forgotten() -> None:
    with a_node(WELL) as admin:
        report = report_of(admin, former=("b", "c"))
        assert not report["healthy"]
        assert problems_of_nodes(report) == [
            f"node {name} is missing: start it, or run `delayd status --forget {name}` if it is "
            "gone for good"
            for name in ("b", "c")
        ]
        [problem] = problems_of_nodes(report_of(admin, former=("b", "c"), forget=("b",)))
        assert problem.startswith("node c is missing")


def test_a_node_that_fetches_its_wheel_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    fetch = {"donor": "b", "stage": "verify", "problems": {"c": "does not answer"}}
    for fetched, told in (
        (fetch, "a fetches its wheel from b: verify"),
        ({**fetch, "donor": None, "stage": "looking for a donor"}, "donor; c does not answer"),
    ):
        with a_node({"role": "fetching", "ready": False, "fetch": fetched}) as admin:
            report = report_of(admin)
        assert problems_of_nodes(report) == []
        _show_status(report)
        assert told in " ".join(capsys.readouterr().out.split())
