"""`delayd shards set` dies half-way on a real broker, and markers are lost besides: what commands
say then, and how `delayd recover marker` lets the change be ended.

Source: docs/design/lost-markers.md, "A change of all shards".
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from clusters import TestCluster, make_cluster
from nodes import CLOCK, HANGS_S, delayd_in_process, node_group
from topics_read import read_until

from chaos.rehearsals.lost_markers import lose_tail
from delayd.bus import TransactionalProducer
from delayd.bus.confluent import ConfluentBus
from delayd.cluster.frontier_log import FrontierLog, SeenFrontier, send_frontiers
from delayd.cluster.resharding import Resharding
from delayd.cluster.topics import load_settings, transactional_id
from delayd.dev.cluster import LocalCluster
from delayd.dev.startup import ClusterOptions
from delayd.errors import ExitCode
from delayd.runtime.clock import SystemClock
from replication.record import FrontierRecord
from replication.settings import Settings

pytestmark = pytest.mark.real

PARTITIONS = 4
BROKER = "broker-1"
TIMEOUT_MS = int(HANGS_S * 1000)
YES = ("--yes", "--nodes-are-stopped")


class DiesError(Exception):
    """Whoever runs `delayd shards set` is gone."""


@dataclass(frozen=True, slots=True)
class _Mortal(Resharding):
    """Dies once all shards are closed: with `writes`, when the change was written and is not
    committed yet."""

    writes: bool = False

    def _rest(self, seen: Sequence[SeenFrontier]) -> None:
        """Shards of which nothing was ever delivered stand together."""

    def _reshard(self, before: int, shards: int) -> Settings:
        if not self.writes:
            raise DiesError
        return Resharding._reshard(self, before, shards)

    def _write(
        self,
        producer: TransactionalProducer,
        records: Sequence[FrontierRecord],
        logs: Iterable[FrontierLog],
    ) -> None:
        if len(records) == 1:
            Resharding._write(self, producer, records, logs)
            return
        producer.begin()
        send_frontiers(producer, self.settings.frontier.name, records, self.timeout_ms)
        raise DiesError


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster whose shards are being changed, and that no node runs."""

    cluster: TestCluster

    @property
    def frontier(self) -> str:
        """The frontier topic."""
        return f"{self.cluster.name}-frontier"

    def run(self, *words: str) -> "CompletedProcess[str]":
        """Run a command on the cluster."""
        cluster = self.cluster
        where = ("--bootstrap", cluster.bootstrap, "--cluster", cluster.name)
        return delayd_in_process(*words, *where, "--prefix", f"{cluster.name}-")

    def recover(self, *more: str) -> dict[str, Any]:
        """Look, or mend."""
        done = self.run("recover", "marker", "--json", *more)
        assert done.stdout, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        assert result["ok"] == (done.returncode == ExitCode.FINE)
        return result

    def settings(self) -> Settings:
        """Those that the first shard shows."""
        name = self.cluster.name
        bus = ConfluentBus(self.cluster.bootstrap)
        return load_settings(bus, name, f"{name}-", TIMEOUT_MS).record.settings

    def shards(self) -> int:
        """Those that the cluster has, if they agree."""
        return self.settings().shards

    def set(self, shards: int) -> int:
        """Change them."""
        done = self.run("shards", "set", str(shards), "--json")
        assert done.returncode == ExitCode.FINE, done.stderr
        return int(json.loads(done.stdout)["shards"])

    def die(self, shards: int, *, writes: bool) -> None:
        """Change the shards, and die."""
        bus, clock = ConfluentBus(self.cluster.bootstrap), SystemClock()
        run = _Mortal(bus, self.settings(), clock, TIMEOUT_MS, 0, writes=writes)
        with pytest.raises(DiesError):
            run.to(shards)

    def fence(self) -> None:
        """As the next run, or a master: Kafka aborts what the last one has left open."""
        bus = ConfluentBus(self.cluster.bootstrap)
        name = transactional_id(self.settings().realm, 0)
        with closing(bus.transactional_producer(name)) as producer:
            producer.init_transactions(TIMEOUT_MS)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("changed")
    with LocalCluster(folder / "brokers", ClusterOptions(nodes=0)) as cluster:
        yield cluster


def delivers(cases: Sequence[Case]) -> None:
    """Nodes run, and lead all shards."""
    wanted = {b"%d" % number for number in range(20)}
    with node_group([case.cluster.node(0) for case in cases]) as nodes:
        for case, node in zip(cases, nodes, strict=True):
            node.start()
            target = case.cluster.target("a", PARTITIONS)
            with case.cluster.client() as client:
                for value in wanted:
                    client.schedule(target, value, at=CLOCK.wall_ms())
        for case in cases:
            topic = f"target.{case.cluster.name}.a"
            seen = read_until(case.cluster.bootstrap, topic, lambda s: len(s) >= len(wanted))
            assert Counter(record.value for record in seen) == Counter(wanted)


@pytest.mark.rehearsal
def test_a_change_of_shards_that_hangs_is_ended_and_goes_on(
    brokers: LocalCluster, tmp_path: Path
) -> None:
    def made(name: str) -> Case:
        return Case(make_cluster(brokers, tmp_path / name, PARTITIONS, shards=2))

    torn, first, of_all, dropped, closed = map(made, ("torn", "first", "all", "dropped", "closed"))
    for case in (torn, first, of_all):
        assert case.set(4) == 4
    dropped.die(1, writes=True)
    dropped.fence()
    closed.die(4, writes=False)

    data = brokers.directory / "data" / BROKER
    brokers.stop(BROKER)
    for case, partitions in (
        *((torn, (1, 3)), (first, (0,)), (of_all, range(4))),
        *((dropped, (1,)), (closed, (1,))),
    ):
        for partition in partitions:
            lose_tail(data, case.frontier, partition)
    brokers.start(BROKER)

    # What a person meets says what to run.
    for case, said in (
        (torn, f"first record of {torn.frontier}/3 is not visible"),
        (first, "the number of shards changes"),
        (closed, "could not be read up to offset"),
    ):
        done = case.run("shards", "set", "4")
        assert done.returncode != ExitCode.FINE
        assert said in done.stderr and "`delayd recover marker`" in done.stderr

    # What was visible somewhere, or is complete, becomes visible everywhere.
    for case, states in (
        (torn, ("visible", "hanging", "visible", "hanging")),
        (first, ("hanging", "visible", "visible", "visible")),
        (of_all, ("hanging",) * 4),
    ):
        dry = case.recover()
        assert dry["changes"] == [
            {
                "shards": 4,
                "fate": "committed",
                "partitions": {str(n): state for n, state in enumerate(states)},
                "problem": "",
            }
        ]
        mended = case.recover(*YES)
        assert mended["ok"] and mended["committed"] == states.count("hanging")
        assert case.shards() == case.set(4) == 4

    # What was aborted somewhere never was: the shards are closed, and opened by the next run.
    [change] = dropped.recover()["changes"]
    assert change["partitions"] == {"0": "aborted", "1": "hanging"}
    mended = dropped.recover(*YES)
    assert mended["ok"] and mended["aborted"] == 1
    assert [each["to_be"] for each in mended["shards"]] == [1, 1]
    assert "`delayd shards set 1` ends what was begun" in dropped.run("recover", "marker").stdout
    assert dropped.set(1) == dropped.shards() == 1

    # The record that closes a shard is a step of its own.
    mended = closed.recover(*YES)
    assert mended["ok"] and mended["committed"] == 1 and not mended["changes"]
    assert [each["to_be"] for each in mended["shards"]] == [4, 4]
    assert torn.recover()["ok"], "nothing is left"

    # Nodes open shards that are closed, too.
    delivers((first, closed))
    assert closed.shards() == 4
