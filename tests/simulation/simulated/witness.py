"""Who believes to be master, and whether etcd says the same: looked at after each call to etcd.

A lease ends in etcd only after its holder has stopped by itself. So as long as nothing ends leases
early, whoever may still finish a step holds the leader key, and no two are master at once. (That
nothing is doubled when leases do end early is Kafka's fence, and the other judges' matter.)
"""

import json

from kernel import SECOND_US, Kernel

from delayd.coordination.memory import MemoryCoordination, MemoryEtcd
from delayd.errors import CoordinationError
from simulated.machine import Machine

EXCUSED_US = 4 * SECOND_US
"""Longer than a grant lasts whose lease has ended early (80 % of 3 s)."""
DEPOSED_US = 10 * SECOND_US
"""The same, from before a node is deposed: the call may take long, and be carried out late."""
EXTENDED_US = 8 * SECOND_US
"""After this a lease has ended that was kept alive for the last time 10 s after its holder got
stuck, though it began anew meanwhile."""


class Witness:
    """What breaks the rule becomes the machine's `bug`, which ends the run."""

    def __init__(self, kernel: Kernel, etcd: MemoryEtcd, cluster: str, shards: int = 1) -> None:
        self._shards = shards
        self._kernel = kernel
        self._etcd = MemoryCoordination(etcd, cluster)
        self._machines: list[Machine] = []
        self._excused_until_us = 0
        self._extended_us = -EXTENDED_US

    def watch(self, machine: Machine) -> None:
        """Watch this machine from now on."""
        self._machines.append(machine)
        machine.after_call = self.look
        if self._shards == 1:  # Else nobody knows which of its leases it is about.
            machine.after_stuck = lambda: self.check_let_go(machine)

    def excuse(self, us: int = EXCUSED_US) -> None:
        """Take note that leases have ended early: a master may not know it yet."""
        self._excused_until_us = max(self._excused_until_us, self._kernel.now_us + us)

    def note_extended(self) -> None:
        """Take note that all leases have begun anew."""
        self._extended_us = self._kernel.now_us

    def look(self) -> None:
        """Check that every node that believes to be master is the one that etcd names."""
        if self._kernel.now_us < self._excused_until_us:
            return
        for shard in range(self._shards):
            holder = self._holder(shard)
            for machine in self._machines if holder is not None else ():
                is_wrong = shard in machine.granted and (machine.name, machine.nonce) != holder
                if is_wrong and not machine.is_split:
                    machine.bug = machine.bug or AssertionError(
                        f"{machine.name} believes to be master, and the leader key says {holder}"
                    )

    def check_let_go(self, machine: Machine) -> None:
        """Check that the lease of this machine ended while a call of its delivery was stuck for
        long."""
        is_extended = self._kernel.now_us < self._extended_us + EXTENDED_US
        if self._holder(0) == (machine.name, machine.nonce) and not is_extended:
            machine.bug = AssertionError(f"{machine.name} was stuck and has kept its lease")

    def _holder(self, shard: int) -> tuple[str, str] | None:
        """Return node and nonce in the leader key of a shard, empty if there is none; None if etcd
        is paused: then nothing changes."""
        try:
            held = self._etcd.leader(shard)
        except CoordinationError:
            return None
        if held is None:
            return "", ""
        owner = json.loads(held.owner)
        return owner["node"], owner["nonce"]
