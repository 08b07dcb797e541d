"""The last records of an old cluster of several shards hang on a real broker: what a person meets,
and how `delayd recover marker` lets the move go on.

Source: docs/design/lost-markers.md, "A change of all shards"; docs/design/moving.md, "Several
shards".
"""

import json
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from clusters import TestCluster, make_cluster
from nodes import CLOCK, HANGS_S, delayd_in_process, node_group, wait_for
from test_recover_shards import BROKER, PARTITIONS, TIMEOUT_MS, YES, Case, DiesError
from test_recover_shards import brokers as brokers
from topics_read import all_of

from chaos.rehearsals.lost_markers import lose_tail
from delayd.bus.confluent import ConfluentBus
from delayd.cluster.frontier_log import send_frontiers
from delayd.commands.move.old_cluster import OldCluster
from delayd.dev.cluster import LocalCluster
from delayd.errors import ExitCode
from replication.record import FrontierRecord

pytestmark = pytest.mark.real

SHARDS = 2
COUNT = 40
FAR_MS = 3_600_000
ELSEWHERE = "elsewhere/1"


class _DiesBeforeCommit(OldCluster):
    """Its process is gone when the end of all shards is written and not committed yet."""

    def _write(self, records: Sequence[FrontierRecord]) -> None:
        assert self._producer is not None and len(records) == SHARDS
        self._producer.begin()
        send_frontiers(self._producer, self._settings.frontier.name, records, TIMEOUT_MS)
        raise DiesError


def end(case: Case, kind: type[OldCluster] = OldCluster) -> None:
    """End a cluster, as a move does, to which nobody listens."""
    bus = ConfluentBus(case.cluster.bootstrap)
    with kind(bus, case.settings(), TIMEOUT_MS) as old:
        old.fence()
        old.last()
        old.end(ELSEWHERE)


def fill(cluster: TestCluster) -> Path:
    """Let a node take in what is due in an hour, and stop it. Return its directory."""
    node, target = cluster.node(0), cluster.target("later")
    with node_group([node]), cluster.client() as client:
        node.start().wait_ready()
        due_ms = CLOCK.wall_ms() + FAR_MS
        told = [client.schedule_async(target, b"%d" % n, at=due_ms) for n in range(COUNT)]
        for each in told:
            each.result(HANGS_S)
        wait_for(lambda: node.status()["ingested_count"] >= COUNT, "all is ingested")
        wait_for(lambda: node.status()["shards_led"] == [*range(SHARDS)], "it leads all shards")
        node.signal(signal.SIGTERM)
        assert node.wait_exit() == 0
    return node.data


def move(data: Path, old: TestCluster, new: TestCluster) -> "CompletedProcess[str]":
    """Run the command; nobody runs the new cluster."""
    return delayd_in_process(
        *("move", str(data), "--bootstrap", new.bootstrap, "--cluster", new.name),
        *("--prefix", f"{new.name}-", "--frontier-from", old.bootstrap),
        *("--yes", "--json", "--timeout-s", "0"),
    )


def die_at_the_end(
    data: Path, old: TestCluster, new: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the command, which is gone once the old cluster is ended: nothing was moved yet."""
    ended = OldCluster.end

    def end_and_die(cluster: OldCluster, moved: str) -> None:
        ended(cluster, moved)
        raise DiesError

    with monkeypatch.context() as patched:
        patched.setattr(OldCluster, "end", end_and_die)
        with pytest.raises(DiesError):
            move(data, old, new)
    assert not all_of(new.bootstrap, new.buffer, PARTITIONS)


def test_a_torn_end_of_a_move_is_mended_and_the_move_goes_on(
    brokers: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(name: str) -> Case:
        return Case(make_cluster(brokers, tmp_path / name, PARTITIONS, shards=SHARDS))

    torn, first, of_all, dropped = map(made, ("torn", "first", "all", "dropped"))
    new = make_cluster(brokers, tmp_path / "new", PARTITIONS)
    data = fill(torn.cluster)
    die_at_the_end(data, torn.cluster, new, monkeypatch)
    for case in (first, of_all):
        end(case)
    with pytest.raises(DiesError):
        end(dropped, _DiesBeforeCommit)
    dropped.fence()

    logs = brokers.directory / "data" / BROKER
    brokers.stop(BROKER)
    for case, partitions in ((torn, (1,)), (first, (0,)), (of_all, (0, 1)), (dropped, (1,))):
        for partition in partitions:
            lose_tail(logs, case.frontier, partition)
    brokers.start(BROKER)

    refused = move(data, torn.cluster, new)
    assert refused.returncode != ExitCode.FINE and "`delayd recover marker`" in refused.stderr

    # One transaction: all shards have ended, or none has.
    for case, states in (
        (torn, ("visible", "hanging")),
        (first, ("hanging", "visible")),
        (of_all, ("hanging", "hanging")),
        (dropped, ("aborted", "hanging")),
    ):
        is_aborted = case is dropped
        [found] = case.recover()["changes"]
        assert found["partitions"] == {str(n): state for n, state in enumerate(states)}
        assert found["fate"] == ("aborted" if is_aborted else "committed") and not found["problem"]
        mended = case.recover(*YES)
        assert mended["ok"] and case.recover()["ok"], "nothing is left"
        ended = (mended["committed"], mended["aborted"])
        count = states.count("hanging")
        assert ended == ((0, count) if is_aborted else (count, 0))

    # Nobody goes on from the end; what never was is opened as it was.
    for case in (torn, first, of_all):
        told = case.run("shards", "set", str(SHARDS))
        assert told.returncode != ExitCode.FINE and "the cluster was moved" in told.stderr
    assert dropped.set(SHARDS) == dropped.shards() == SHARDS

    result = json.loads(move(data, torn.cluster, new).stdout)
    assert (result["pending"], result["written"]) == (COUNT, COUNT), result
    moved = all_of(new.bootstrap, new.buffer, PARTITIONS)
    assert Counter(record.value for record in moved) == Counter(b"%d" % n for n in range(COUNT))
