"""The real etcd is frozen, killed and emptied under a real master, which goes on delivering.

Source: docs/design/election.md, "While etcd is away".
"""

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from clusters import TestCluster, schedule
from nodes import CLOCK, HANGS_S, NodeProcess, delayd_in_process, master_of, node_group, wait_for
from topics_read import read_until

from delayd.dev.batch import Batch
from delayd.dev.etcd import etcd_is_healthy, plan_etcd
from delayd.dev.ports import pick_ports
from delayd.dev.processes import identity_of, wait_until_stopped
from delayd.dev.witness import Witness

pytestmark = pytest.mark.real

COUNT, SPREAD_MS = 3_000, 20_000


class OwnEtcd:
    """An etcd that only this test uses: others are not to lose theirs."""

    def __init__(self, folder: Path) -> None:
        client_port, peer_port = pick_ports(2)
        self.part = plan_etcd(folder, client_port=client_port, peer_port=peer_port)
        self.part.log.parent.mkdir(parents=True)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self.part.log.open("ab") as log:
            self.process = subprocess.Popen(self.part.command, stdout=log, stderr=log)
        wait_for(lambda: etcd_is_healthy(self.part.address), "etcd answers")

    def freeze(self) -> None:
        """Let it answer nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        assert wait_until_stopped(identity_of(self.process.pid), int(HANGS_S * 1000))

    def thaw(self) -> None:
        """Let it go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(HANGS_S)


@contextmanager
def own_etcd(folder: Path) -> Iterator[OwnEtcd]:
    """Start one; it is killed in the end."""
    etcd = OwnEtcd(folder)
    try:
        etcd.start()
        yield etcd
    finally:
        etcd.kill()


def deliver_now(cluster: TestCluster, topic: str, name: str) -> None:
    """Have a message delivered that is sent now; its record is there when this returns."""
    with cluster.client() as client:
        client.schedule(topic, name.encode(), at=CLOCK.wall_ms())
    read_until(
        cluster.bootstrap, topic, lambda seen: name.encode() in [each.value for each in seen]
    )


def election_of(node: NodeProcess) -> object:
    return node.status().get("election")


def test_a_master_delivers_while_etcd_is_frozen_and_while_it_is_emptied(
    cluster: TestCluster, tmp_path: Path
) -> None:
    """Each message once, as the witness counts; the master and its term stay.

    Rules: outlives-lease, reclaims
    """
    target, probe = cluster.target("a"), cluster.target("probe", 1)
    with own_etcd(tmp_path / "etcd") as etcd:
        cluster = replace(cluster, etcd=etcd.part.address)
        nodes = [cluster.node(number).start() for number in range(2)]
        with node_group(nodes), cluster.client() as client:
            master = master_of(nodes)
            for node in nodes:
                node.wait_ready()
            batch = Batch("away", (target,), COUNT, CLOCK.wall_ms() + 2_000, SPREAD_MS)
            log = cluster.folder / "witness.log"
            with Witness(cluster.bootstrap, batch, log=log) as witness:
                schedule(client, batch)
                term = master.status()["term"]
                etcd.freeze()
                wait_for(lambda: election_of(master) == "alone", "its lease has run out")
                deliver_now(cluster, probe, "frozen")
                wait_for(lambda: bool(master.status()["etcd_problem"]), "it says so")
                assert election_of(master) == "alone", "etcd is frozen still"
                etcd.thaw()
                wait_for(lambda: election_of(master) == "master", "etcd has answered")
                assert master.status()["term"] == term

                etcd.kill()
                wait_for(lambda: election_of(master) == "alone", "its lease has run out")
                wait_for(
                    lambda: all(bool(node.status()["etcd_problem"]) for node in nodes),
                    "all nodes miss etcd",
                )
                deliver_now(cluster, probe, "killed")
                shutil.rmtree(etcd.part.data)
                etcd.start()
                deliver_now(cluster, probe, "emptied")
                wait_for(lambda: bool(election_of(master) == "master"), "it leads there too")
                assert master.status()["term"] == term and master_of(nodes) is master
                witness.wait_until(COUNT, SPREAD_MS + HANGS_S * 1000)
                verdict = witness.stop()
            assert verdict.ok, verdict
            for node in nodes:
                lines = node.log.count("etcd_call_failed"), node.log.count("etcd_answers")
                assert lines == (2, 2), "one line when etcd stops to answer, and one when it does"
            told = delayd_in_process(
                *("status", "--json", "--bootstrap", cluster.bootstrap, "--etcd", cluster.etcd),
                *("--cluster", cluster.name, "--prefix", f"{cluster.name}-"),
            )
            assert json.loads(told.stdout)["master"] == master.name, "the key is there again"
