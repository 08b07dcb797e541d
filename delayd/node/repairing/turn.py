"""Whose turn it is to repair: a key in etcd under a lease that outlasts a repair.

It keeps nodes from repairing at the same time, so that enough of them could lead. Nothing that was
promised hangs on it: an etcd that lost its data, or a lease that ended, lets two repair at once,
and each builds what the log says (docs/design/repairing.md, "Two at once").
"""

import json
from typing import Final

from delayd.coordination import Coordination

TURN_S: Final = 48 * 3600
"""A repair takes hours at most; a node that does not come back holds the others up for so long."""


class Turn:
    """The turn of one node. Every method raises CoordinationError."""

    def __init__(self, coordination: Coordination, node: str) -> None:
        self._coordination = coordination
        self._node = node

    def take(self) -> int | None:
        """Return the lease of this node's turn; None if another node has it."""
        holder = self._holder()
        if holder is None:
            lease = self._coordination.grant_lease(TURN_S).id
            owner = json.dumps({"node": self._node, "lease": lease})
            holder = _read(self._coordination.claim_repair(owner, lease))
            if holder != (self._node, lease):
                self._coordination.revoke(lease)
        node, lease = holder
        return lease if node == self._node else None

    def holds(self, lease: int) -> bool:
        """Return whether it is still this turn of this node."""
        return self._holder() == (self._node, lease)

    def has_others(self) -> bool:
        """Return whether any other node is announced: one that could lead, or soon can."""
        return bool(self._coordination.members().keys() - {self._node})

    def end(self) -> None:
        """Let another node have the turn, if this one has it."""
        holder = self._holder()
        if holder is not None and holder[0] == self._node:
            self._coordination.revoke(holder[1])

    def _holder(self) -> tuple[str, int] | None:
        found = self._coordination.repair_claim()
        return None if found is None else _read(found)


def _read(owner: str) -> tuple[str, int]:
    try:
        fields = json.loads(owner)
        return str(fields["node"]), int(fields["lease"])
    except (ValueError, KeyError, TypeError):
        return "", 0  # No node's, until its lease ends.
