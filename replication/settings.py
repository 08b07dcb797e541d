"""The cluster's fixed settings: chosen once by `delayd topics create`, carried by every frontier.

They decide what nodes compute from the log, so no node may have an opinion of its own about them.
The frontier record is their truth; etcd holds a copy for people.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

RULES_VERSION = 1
"""Version of the ingest rules in this package; a node that reads another one must stop."""

LANES = 64
"""Independent queues of delivery per shard (docs/design/frontier.md, "Lanes")."""

DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Topic:
    """A delayd topic. The id tells a topic from one that was deleted and created again."""

    name: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that replicas must agree on. Sizes in bytes, times in ms."""

    cluster: str
    partitions: int
    """P: partitions of the buffer, fixed for ever."""
    lanes: int
    max_delay_ms: int
    """Longest delay; the buffer's retention is at least a day more."""
    record_bytes_max: int
    """Largest decompressed request."""
    id_memory_ms: int
    """How long an id is remembered after its message was due."""
    rules_version: int
    prefix: str
    """Prefix of delayd's own topics, which nobody may target."""
    buffer: Topic
    frontier: Topic
    receipts: Topic
    dead: Topic

    @property
    def topics(self) -> tuple[Topic, ...]:
        """All of delayd's own topics."""
        return (self.buffer, self.frontier, self.receipts, self.dead)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the frontier record and for etcd."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Settings":
        """The inverse of `to_json`; unknown, missing or mistyped fields are a ValueError."""
        values = dict(fields)
        try:
            for role in ("buffer", "frontier", "receipts", "dead"):
                values[role] = Topic(**values[role])
            made = cls(**values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"settings do not have the expected fields: {error}") from error
        for part in (made, *made.topics):
            for name, kind in part.__annotations__.items():
                if type(getattr(part, name)) is not kind:
                    raise ValueError(f"settings: {name} is not of type {kind.__name__}")
        return made
