"""Commit markers are lost on a real broker, and `delayd recover marker` mends what is left.

The broker's logs are cut while it is stopped. A kafka-python consumer then counts what is delivered
by all nodes, before and after. Source: docs/design/lost-markers.md.
"""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from clusters import TestCluster, make_cluster
from doctor_visits import visit
from nodes import CLOCK, HANGS_S, NodeProcess, delayd_in_process, node_group, wait_for
from topics_read import Seen, read_until

from chaos.rehearsals.lost_markers import lose_tail
from delayd.bus.confluent import ConfluentBus
from delayd.bus.raw import Marker, Place
from delayd.cluster.connect import open_raw_log
from delayd.cluster.topics import load_settings
from delayd.dev.cluster import LocalCluster
from delayd.dev.startup import ClusterOptions
from delayd.errors import ExitCode

pytestmark = pytest.mark.real

COUNT = 20
SHARDS = 2
BROKER = "broker-1"
TIMEOUT_MS = int(HANGS_S * 1000)
IDLE_MS = 15_000
"""So that the step that delivers is the last one of a node that is killed soon."""
AHEAD_MS = 6_000
RETRY_MS = 10_000
"""The nodes are killed before that."""


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster whose last step has delivered to two targets, and its node, which is dead."""

    cluster: TestCluster
    node: NodeProcess
    targets: tuple[str, str]
    late: str
    """A target that does not exist when its message is due: the step writes to the buffer, too."""

    @property
    def frontier(self) -> str:
        return f"{self.cluster.name}-frontier"

    def run(self, *more: str) -> "CompletedProcess[str]":
        """Run the command."""
        cluster = self.cluster
        return delayd_in_process(
            *("recover", "marker", "--bootstrap", cluster.bootstrap, "--cluster", cluster.name),
            *("--prefix", f"{cluster.name}-", "--etcd", cluster.etcd, *more),
        )

    def recover(self, *more: str) -> dict[str, Any]:
        """Run the command, with JSON; while etcd remembers the killed node, again."""
        done = self.run("--json", *more)

        def is_forgotten() -> bool:
            nonlocal done
            if "nodes are running" not in done.stderr:
                return True
            done = self.run("--json", *more)
            return False

        wait_for(is_forgotten, "etcd forgets the node")
        assert done.stdout, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        assert result["ok"] == (done.returncode == ExitCode.FINE)
        return result

    def abort(self, topic: str) -> None:
        """Abort what hangs, as the operator of an older release was told to."""
        place = Place(topic, 0)
        with closing(open_raw_log(self.cluster.bootstrap, {})) as raw:
            [active] = [
                each
                for each in raw.producers([place], TIMEOUT_MS).active[place]
                if each.open_since is not None
            ]
            marker = Marker(active.producer, False, max(0, active.coordinator_epoch), -1)
            raw.write_marker(place, marker, TIMEOUT_MS)

    def judge(self) -> None:
        """Have the node, which runs again, deliver once more, and count everything."""
        wanted = {
            target: [b"%s-%d" % (target.encode(), n) for n in range(COUNT)]
            for target in self.targets
        }
        wanted[self.late] = [b"retried"]
        with self.cluster.client() as client:
            for target in wanted:
                client.schedule(target, b"last", at=0)
        for target, values in wanted.items():
            enough = {b"last", *values}
            seen = read_until(self.cluster.bootstrap, target, partial(holds, enough))
            found = Counter(record.value for record in seen)
            assert found == Counter([*values, b"last"]), f"{target} of {self.cluster.name}"


def holds(values: set[bytes], seen: list[Seen]) -> bool:
    """Are these all there?"""
    return values <= {record.value for record in seen}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("markers")
    with LocalCluster(folder / "brokers", ClusterOptions(nodes=0)) as cluster:
        yield cluster


@contextmanager
def delivered(
    brokers: LocalCluster, folder: Path, count: int, *, shards: int = 1
) -> Iterator[list[Case]]:
    """Clusters of one partition a shard that have delivered, and whose nodes were killed then."""
    clusters = [
        make_cluster(
            brokers, folder / str(n), shards, retry_delays_ms=(RETRY_MS,) * 3, shards=shards
        )
        for n in range(count)
    ]
    cases = [
        Case(
            each,
            each.node(0, idle_step_interval_ms=IDLE_MS),
            (each.target("a", 1), each.target("b", 1)),
            f"target.{each.name}.late",
        )
        for each in clusters
    ]
    with node_group([case.node for case in cases]) as nodes:
        for node in nodes:
            node.start()
        wait_for(lambda: all(node.is_master() for node in nodes), "every node leads")
        due_ms = CLOCK.wall_ms() + AHEAD_MS
        for case in cases:
            schedule(case, due_ms)
        for case in cases:
            for target in case.targets:
                seen = read_until(case.cluster.bootstrap, target, lambda s: len(s) >= COUNT)
                steps = {record.header("delayd-fired") for record in seen}
                assert len(steps) <= shards, "one step of each shard"
            case.node.kill()
        yield cases


def schedule(case: Case, due_ms: int) -> None:
    """For one step: messages for both targets, and one for a topic that does not exist yet."""
    with case.cluster.client() as client:
        told = [
            client.schedule_async(
                target, b"%s-%d" % (target.encode(), n), id=f"{target}{n}", at=due_ms
            )
            for n in range(COUNT)
            for target in case.targets
        ]
        told.append(client.schedule_async(case.late, b"retried", at=due_ms))
        for each in told:
            each.result(HANGS_S)


def step_of(case: Case) -> int:
    """The last step that is visible."""
    seen = load_settings(
        ConfluentBus(case.cluster.bootstrap), case.cluster.name, f"{case.cluster.name}-", TIMEOUT_MS
    )
    return seen.record.frontier.step


def fates(result: dict[str, Any]) -> dict[str, str]:
    """What is done with the pieces, by topic."""
    return {piece["topic"]: piece["fate"] for piece in result["pieces"]}


@pytest.mark.rehearsal
def test_lost_markers_are_mended_and_each_message_is_delivered_once(
    brokers: LocalCluster, tmp_path: Path
) -> None:
    with delivered(brokers, tmp_path, 4) as (of_target, of_frontier, by_hand, of_all):
        steps = [step_of(case) for case in (of_target, of_frontier, by_hand, of_all)]
        data = brokers.directory / "data" / BROKER
        brokers.stop(BROKER)
        for topic in (of_target.targets[0], of_target.cluster.buffer):
            lose_tail(data, topic, 0)
        lose_tail(data, of_frontier.frontier, 0)
        for topic in (by_hand.frontier, by_hand.targets[0]):
            lose_tail(data, topic, 0)
        for topic in (of_all.frontier, of_all.cluster.buffer, *of_all.targets):
            lose_tail(data, topic, 0)
        brokers.start(BROKER)

        hanging = visit(of_target.cluster).findings["transaction-hanging"]
        assert hanging["mend"].startswith("delayd recover marker")

        # Those of a target and of the buffer: what hangs becomes visible where it is.
        dry = of_target.recover()
        lost = (of_target.targets[0], of_target.cluster.buffer)
        assert fates(dry) == dict.fromkeys(lost, "committed") and not dry["committed"]
        [piece] = [piece for piece in dry["pieces"] if piece["kind"] == "target"]
        assert {record["id"] for record in piece["records"]} == {
            f"{of_target.targets[0]}{n}" for n in range(COUNT)
        }
        assert of_target.recover("--yes")["committed"] == COUNT + 1
        assert of_target.recover("--yes") == of_target.recover(), "nothing is left"

        # The frontier's: the successor must not read the one before.
        assert step_of(of_frontier) == steps[1] - 1
        mended = of_frontier.recover("--yes")
        assert fates(mended) == {of_frontier.frontier: "committed"} and mended["ok"]
        assert step_of(of_frontier) == steps[1]

        # Both, and a person has aborted them: they are written again.
        by_hand.abort(by_hand.frontier)
        by_hand.abort(by_hand.targets[0])
        dry = by_hand.recover()
        assert fates(dry) == dict.fromkeys((by_hand.targets[0], by_hand.frontier), "written-again")
        assert by_hand.recover("--yes")["written_again"] == COUNT
        assert step_of(by_hand) == steps[2]
        assert by_hand.recover("--yes")["written_again"] == 0

        # All of them: the node has acted on the step, and starts behind no earlier one.
        assert step_of(of_all) == steps[3] - 1
        mended = of_all.recover("--yes")
        assert set(fates(mended).values()) == {"committed"} and mended["ok"]
        assert step_of(of_all) == steps[3]

        for case in (of_target, of_frontier, by_hand, of_all):
            case.cluster.create_topic(case.late)
            case.node.start()
        for case in (of_target, of_frontier, by_hand, of_all):
            case.judge()

        # Of a cluster that is well: nothing.
        told = of_target.run()
        assert told.returncode == ExitCode.FINE and "nothing hangs" in told.stdout, told.stdout
        told = of_target.run("--yes")
        assert told.returncode == ExitCode.PROBLEM and "nodes are running" in told.stderr


@pytest.mark.rehearsal
def test_lost_markers_of_several_shards_are_mended_shard_by_shard(
    brokers: LocalCluster, tmp_path: Path
) -> None:
    with delivered(brokers, tmp_path, 2, shards=SHARDS) as (of_one, of_all):
        steps = [step_of(case) for case in (of_one, of_all)]
        data = brokers.directory / "data" / BROKER
        brokers.stop(BROKER)
        lose_tail(data, of_one.targets[0], 0)
        lose_tail(data, of_one.frontier, 1)
        for shard in range(SHARDS):
            lose_tail(data, of_all.frontier, shard)
        for target in of_all.targets:
            lose_tail(data, target, 0)
        brokers.start(BROKER)

        # What is missing of each shard is mended under the id of its own masters.
        dry = of_one.recover()
        assert set(fates(dry)) == {of_one.targets[0], of_one.frontier} and not dry["committed"]
        assert {p["shard"] for p in dry["pieces"] if p["topic"] == of_one.frontier} == {1}
        assert {piece["fate"] for piece in dry["pieces"]} == {"committed"}
        assert step_of(of_one) == steps[0] - 1
        mended = of_one.recover("--yes")
        assert mended["ok"] and step_of(of_one) == steps[0]

        # The steps of all shards.
        assert step_of(of_all) == steps[1] - SHARDS
        mended = of_all.recover("--yes")
        assert {piece["shard"] for piece in mended["pieces"]} == {*range(SHARDS)} and mended["ok"]
        assert step_of(of_all) == steps[1]
        assert of_all.recover("--yes")["committed"] == 0, "nothing is left"

        for case in (of_one, of_all):
            case.cluster.create_topic(case.late)
            case.node.start()
        for case in (of_one, of_all):
            case.judge()
