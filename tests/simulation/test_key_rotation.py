"""A cluster key is replaced while the cluster runs: node by node, and nobody notices."""

import json
import signal
from collections import Counter
from pathlib import Path

import pytest
from pydantic import SecretStr
from simulated.run import judged
from simulated.world import CLUSTER, CLUSTER_KEY, World

from delayd.config.cluster_key import fingerprint, proof_key
from delayd.request.proof import is_proof
from delayd.request.request import RequestLimits
from replication.settings import Settings

SEEDS = 3
NEW_KEY = "the key that replaces the first one"
KINDS = ("target refused", "leader change", "no leader")
"""Failing targets make a master requeue messages, which it signs. Disks are left alone: a node that
lost what it had read would rightly ask for the old key."""
RESTART_US = 800_000
CAUGHT_UP_US = 5_000_000


class Rotation:
    """Gives all nodes the same lines, one node after the other, and restarts each."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_done = False

    def run(self) -> None:
        """Carry out docs/operations.md, "A new cluster key"; as a task."""
        kernel = self._world.kernel
        kernel.sleep(3_000_000)
        self._give(f"{CLUSTER_KEY}\n{NEW_KEY}")
        self._give(f"{NEW_KEY}\n{CLUSTER_KEY}")
        kernel.sleep(CAUGHT_UP_US)
        self._give(NEW_KEY)
        self.is_done = True

    def _give(self, lines: str) -> None:
        for machine in self._world.machines:
            machine._config = machine._config.model_copy(update={"cluster_key": SecretStr(lines)})
            if machine.loop is not None and machine.is_up:
                machine.loop.deliver(signal.SIGTERM)
            self._world.kernel.sleep(RESTART_US)


def rotated(seed: int, folder: Path) -> World:
    """A run in which the key was replaced, judged."""
    world = World(seed, folder, kinds=KINDS)
    rotation = Rotation(world)
    world._outside.spawn("rotation", rotation.run)
    world.run()
    judged(world)
    assert rotation.is_done, "the run was too short for it"
    return world


def signed_with(world: World, key: str, settings: Settings) -> int:
    """Return how many records of the buffer have a proof under the key."""
    limits = RequestLimits.of(settings, proof_key(key))
    count = 0
    for record in world.records("delayd-buffer"):
        [*others, (name, proof)] = record.headers or [("", b"")]
        if name == "delayd-proof" and proof is not None:
            signed = (limits, record.partition, record.key, record.value, others)
            count += is_proof(proof, *signed)
    return count


@pytest.mark.long
def test_a_cluster_key_is_replaced_without_an_outage(tmp_path: Path) -> None:
    """docs/operations.md, "A new cluster key".

    Rules: continuation-proof, keys-accepted
    """
    signed: Counter[str] = Counter()
    old, new = (fingerprint(key, CLUSTER) for key in (CLUSTER_KEY, NEW_KEY))
    for seed in range(SEEDS):
        world = rotated(seed, tmp_path / str(seed))
        last = json.loads(world.records("delayd-frontier")[-1].value or b"")["settings"]
        settings = Settings.from_json(last)
        assert settings.key_fingerprint == new and list(settings.keys_before_ms()) == [old]
        for key in (CLUSTER_KEY, NEW_KEY):
            signed[key] += signed_with(world, key, settings)
    assert signed[CLUSTER_KEY] and signed[NEW_KEY], f"nothing to prove: {signed}"
