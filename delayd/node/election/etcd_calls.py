"""The election's calls to etcd, the facts that answer them, and the name of the node there.

Not here: when a call is made, and what follows from its answer (`replication/election.py`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from delayd import __version__
from delayd.coordination import Coordination, Leadership
from delayd.runtime.clock import Clock
from replication import election_facts as facts
from replication.settings import RULES_KNOWN

NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Identity:
    """A node in this life: the nonce is new at every start."""

    node: str
    nonce: str
    admin: str

    @property
    def owner(self) -> str:
        """The name under which it writes frontier records."""
        return f"{self.node}/{self.nonce}"

    def member_value(
        self,
        *,
        has_room: bool,
        misses: Sequence[str] = (),
        placed_by: Mapping[str, int] = NOTHING,
    ) -> str:
        """Return the value of its member key. `has_room`: could it lead, and take everything in?
        `placed_by`: what decides which shards it should lead, if there are several.
        `misses`: the nonces of masters whose pulse it misses; of one, as nodes of 0.1.0 say it."""
        value: dict[str, Any] = {
            "admin": self.admin,
            "nonce": self.nonce,
            "release": __version__,
            "rules": RULES_KNOWN,
            "has_room": has_room,
        }
        value |= placed_by
        if misses:
            value["misses"] = misses[0] if len(misses) == 1 else misses
        return json.dumps(value)

    def leader_value(self, lease_id: int) -> str:
        """Return the value of the leader key while this node holds it."""
        return json.dumps(
            {"node": self.node, "nonce": self.nonce, "admin": self.admin, "lease": lease_id}
        )


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the leader key, as it says."""

    node: str
    nonce: str
    admin: str
    """Where others reach its admin port, `host:port`."""
    lease_id: int


class EtcdCalls:
    """Carries out one call at a time, in any thread."""

    def __init__(
        self, coordination: Coordination, clock: Clock, identity: Identity, shard: int = 0
    ) -> None:
        self._etcd = coordination
        self._shard = shard
        self._clock = clock
        self._identity = identity
        self.holder: Holder | None = None
        """Of the leader key when it was last read."""

    def carry_out(self, call: facts.Call | facts.RevokeLease) -> facts.Event | None:
        """Return the fact that answers the call, None to RevokeLease; raises CoordinationError."""
        now_ms = self._clock.monotonic_ms
        match call:
            case facts.PollLeader():
                asked_ms = now_ms()
                return self.leader_read(asked_ms, self._etcd.leader(self._shard))
            case facts.Depose(lease_id):
                # A lease is of one campaign: what another one has created stays.
                self._etcd.revoke(lease_id)
                return self.leader_read(now_ms(), self._etcd.leader(self._shard))
            case facts.GrantLease(ttl_s):
                lease = self._etcd.grant_lease(ttl_s)
                return facts.LeaseGranted(now_ms(), lease.id, lease.ttl_ms)
            case facts.Campaign(lease_id):
                value = self._identity.leader_value(lease_id)
                leader = self._noted(self._etcd.campaign(self._shard, value, lease_id))
                assert leader is not None, "the key is held after a campaign"
                return facts.CampaignAnswered(now_ms(), leader)
            case facts.KeepAlive(lease_id):
                ttl_ms = self._etcd.keep_alive(lease_id)
                if ttl_ms is None:
                    return facts.LeaseFoundDead(now_ms())
                return facts.LeaseKept(now_ms(), ttl_ms)
            case facts.RevokeLease(lease_id):
                self._etcd.revoke(lease_id)
                return None

    def leader_read(self, asked_ms: int, held: Leadership | None) -> facts.LeaderRead:
        """Return the fact that the leader key was read, and note who holds it."""
        return facts.LeaderRead(asked_ms, self._noted(held))

    def leadership(self, leader: facts.Leader) -> Leadership:
        """Return the leadership that this node has won."""
        return Leadership(self._identity.leader_value(leader.lease_id), leader.create_revision)

    def _noted(self, held: Leadership | None) -> facts.Leader | None:
        """Return what the leader key says, in the election's words."""
        if held is None:
            self.holder = None
            return None
        try:
            owner: dict[str, Any] = json.loads(held.owner)
            lease_id = int(owner["lease"])
            self.holder = Holder(owner["node"], owner["nonce"], owner.get("admin", ""), lease_id)
            return facts.Leader(owner["nonce"], lease_id, held.create_revision)
        except (ValueError, KeyError, TypeError):
            # Another program's value under the leader key: this node did not write it.
            self.holder = None
            return facts.Leader("?", 0, held.create_revision)
