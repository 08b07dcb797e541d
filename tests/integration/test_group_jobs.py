"""Jobs on a group, on real Kafka with a real node: killed on their way, and run again.

Source: docs/guides/groups.md.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clusters import TestCluster, make_cluster
from forking import Forked
from nodes import HANGS_S, NodeProcess, delayd_in_process, running, wait_for

from delayd.bus.confluent import ConfluentBus
from delayd.client import Request
from delayd.client.changing import UNDER_WAY_MAX
from delayd.dev.cluster import LocalCluster

IDS = UNDER_WAY_MAX + 1_000
"""More than are under way at a time: a job that is killed at its first request has not sent all."""
HOUR_MS = 3_600_000
MEMORY_KIB_MAX = 200 * 1024
"""Of a job, whatever the number of its ids."""

pytestmark = pytest.mark.real


@dataclass
class Desk:
    """A cluster with one node, and a user of it."""

    cluster: TestCluster
    node: NodeProcess
    folder: Path

    @property
    def kafka(self) -> tuple[str, ...]:
        return ("--bootstrap", self.cluster.bootstrap, "--prefix", f"{self.cluster.name}-")

    @property
    def admin(self) -> tuple[str, ...]:
        return ("--admin", self.node.url)

    def run(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Run a command with --json; what it says."""
        kafka = () if arguments[0] == "list" else self.kafka
        done = delayd_in_process(*arguments, *kafka, *self.admin, "--json")
        assert done.returncode == code, (done.returncode, done.stdout[-500:], done.stderr)
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def killed(self, *arguments: str) -> int:
        """Run a job, and kill it as soon as it sends; how much it has sent."""
        before = self.buffered()
        out, errors = self.folder / "out", self.folder / "errors"
        process = Forked((*arguments, *self.kafka, *self.admin), out, errors, {})
        wait_for(lambda: self.buffered() > before or process.poll() is not None, "it sends")
        process.kill()
        process.wait(HANGS_S)
        return self.buffered() - before

    def buffered(self) -> int:
        """Where the buffer ends, over all partitions."""
        with closing(ConfluentBus(self.cluster.bootstrap).cluster()) as kafka:
            ends = kafka.end_offsets(self.cluster.buffer, 10_000, committed=True)
        return sum(ends.values())

    def fill(self, group: str) -> dict[str, int]:
        """Schedule messages; their due times by id, once all are listed."""
        self.schedule(group, IDS)
        return self.dues(group)

    def schedule(self, group: str, count: int) -> None:
        """Schedule so many messages, and wait until they are listed."""
        topic = f"target.{self.cluster.name}.orders"
        requests = (
            Request(topic, b"v", in_=24 * HOUR_MS + n % HOUR_MS, id=f"{group}-{n}", group=group)
            for n in range(count)
        )
        with self.cluster.client() as client:
            failed = sum(isinstance(each, Exception) for each in client.schedule_many(requests))
        assert not failed
        wait_for(lambda: self.count(group) == count, "all are listed")

    def count(self, group: str) -> int:
        found: int = self.run("list", "--group", group, "--count")["messages"]
        return found

    def dues(self, group: str) -> dict[str, int]:
        """When what is pending in a group is due, by id."""
        listed = self.run("list", "--group", group, "--limit", str(2 * IDS))
        assert listed["complete"]
        return {each["id"]: each["due_ms"] for each in listed["messages"]}


@pytest.fixture(scope="module")
def desk(kafka_and_etcd: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("groups")
    cluster = make_cluster(kafka_and_etcd, folder)
    node = cluster.node(1, api_anonymous_reads=True)
    with running([node]):
        yield Desk(cluster, node, folder)


def test_a_job_that_was_killed_moves_each_message_once(desk: Desk, tmp_path: Path) -> None:
    before, others = desk.fill("moved"), desk.fill("others")
    job = ("reschedule", "--group", "moved", "--by", "+1h", "--job", str(tmp_path / "job"))
    tried = desk.run(*job, "--dry-run")
    assert (tried["ids"], tried["verdicts"], tried["dry_run"]) == (IDS, {}, True)
    assert list(tried["targets"].values()) == [IDS]
    assert desk.dues("moved") == before and not (tmp_path / "job").exists()
    sent = desk.killed(*job, "--yes")
    assert 0 < sent < IDS, "it was killed on its way"
    for _ in range(2):
        said = desk.run(*job, "--yes")
        assert (said["verdicts"], said["open"]) == ({"rescheduled": IDS}, 0)
    moved = {id: due_ms + HOUR_MS for id, due_ms in before.items()}
    wait_for(lambda: desk.dues("moved") == moved, "all have moved by an hour, and no more")
    assert desk.dues("others") == others


def test_a_cancel_that_was_killed_and_run_again_cancels_each(desk: Desk) -> None:
    desk.fill("cancelled")
    others = desk.fill("kept")
    sent = desk.killed("cancel", "--group", "cancelled", "--yes")
    assert 0 < sent < IDS, "it was killed on its way"
    said = desk.run("cancel", "--group", "cancelled", "--yes")
    assert said["verdicts"] == {"cancelled": said["ids"]} and said["open"] == 0
    wait_for(lambda: desk.count("cancelled") == 0, "nothing is left of it")
    assert desk.dues("kept") == others
    again = desk.run("cancel", "--group", "cancelled", "--yes")
    assert (again["ids"], again["verdicts"]) == (0, {})


def test_a_group_is_fired(desk: Desk) -> None:
    topic = f"target.{desk.cluster.name}.fired"
    with desk.cluster.client() as client:
        for number in range(3):
            client.schedule(topic, b"v", in_="1h", id=f"fired-{number}", group="fired")
        client.schedule(topic, b"v", cron="@yearly", id="fired-series", group="fired")
    for op, id in (("send", ("--id", "fired-by-shell")), ("replace", ("fired-0",))):
        named = (op, *id, "--topic", topic, "--in", "1h", "--group", "fired", "v")
        done = delayd_in_process(*named, *desk.kafka)
        assert done.returncode == 0, done.stderr
    wait_for(lambda: desk.count("fired") == 5, "all are listed")
    shown = delayd_in_process("list", "--group", "fired", "--limit", "4", *desk.admin)
    assert len(shown.stdout.splitlines()) == 4 and "there are more" in shown.stderr
    assert desk.run("fire", "--group", "fired", "--yes")["verdicts"] == {"rescheduled": 5}
    wait_for(lambda: desk.count("fired") == 1, "the next occurrence is listed, and nothing else")
    late = desk.run("reschedule", "--group", "fired", "--in", "1h", "--yes", code=1)
    assert late["verdicts"]["rejected"] == 1, "the series, which goes on, is not moved"


def test_what_is_no_job_is_refused(desk: Desk) -> None:
    for arguments, what in (
        (("cancel", "an-id", "--group", "g", "--yes"), "give an id or --group"),
        (("cancel",), "give an id"),
        (("reschedule", "--group", "g", "--by", "+1h", "--yes"), "--by needs a journal"),
        (("reschedule", "--group", "g", "--by", "soon", "--yes"), "delayd-by"),
        (("reschedule", "--group", "g", "--at", "soon", "--yes"), "delayd-due"),
    ):
        done = delayd_in_process(*arguments, *desk.kafka, *desk.admin)
        assert done.returncode == 2 and what in done.stderr, (arguments, done.stderr)


def test_what_the_cluster_would_refuse_is_sent_nowhere(desk: Desk, tmp_path: Path) -> None:
    with desk.cluster.client() as client:
        client.schedule("orders", b"v", in_="1h", id="far", group="far")
    wait_for(lambda: desk.count("far") == 1, "it is listed")
    before = desk.buffered()
    job = ("reschedule", "--group", "far", "--by", "+9999d", "--job", str(tmp_path / "job"))
    done = delayd_in_process(*job, "--yes", *desk.kafka, *desk.admin)
    assert done.returncode == 1 and "max_delay" in done.stderr, done.stderr
    assert desk.buffered() == before


@pytest.mark.rehearsal
@pytest.mark.timeout(7_200)
def test_a_million_ids_are_cancelled_in_bounded_memory(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    """`DELAYD_GROUP_IDS` for another number. What it took is printed (`-s`)."""
    count = int(os.environ.get("DELAYD_GROUP_IDS", "1000000"))
    cluster = make_cluster(kafka_and_etcd, tmp_path)
    node = cluster.node(1, api_anonymous_reads=True)
    with running([node]):
        desk = Desk(cluster, node, tmp_path)
        desk.schedule("all", count)
        out = tmp_path / "said"
        job = ("cancel", "--group", "all", "--job", str(tmp_path / "job"), "--yes", "--json")
        began_s = time.monotonic()
        with out.open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "delayd.commands.cli", *job, *desk.kafka, *desk.admin],
                stdout=said,
            )
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        took_s, most_kib = time.monotonic() - began_s, usage.ru_maxrss
        print(f"{count} ids: {took_s:.0f} s, {most_kib // 1024} MiB, {usage.ru_utime:.0f} s of CPU")
        report = json.loads(out.read_text())
        assert (process.returncode, report["verdicts"]) == (0, {"cancelled": count})
        assert most_kib < MEMORY_KIB_MAX
        wait_for(lambda: desk.count("all") == 0, "nothing is left of it")
