"""The identity of a node in etcd, and what it writes there about itself."""

import json
from dataclasses import dataclass


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

    @property
    def member_value(self) -> str:
        """The value of its member key."""
        return json.dumps({"admin": self.admin, "nonce": self.nonce})

    def leader_value(self, lease_id: int) -> str:
        """Return the value of the leader key while this node holds it."""
        return json.dumps(
            {"node": self.node, "nonce": self.nonce, "admin": self.admin, "lease": lease_id}
        )
