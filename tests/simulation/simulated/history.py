"""What the judge of an at-least-once run must know beside the topics: who wrote what, knowing what.

etcd keeps only the last progress, and a record without a transaction does not say who sent it.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from delayd.coordination.memory import MemoryEtcd
from delayd.runtime.clock import Clock


class Write(NamedTuple):
    """A frontier that etcd took."""

    value: str
    leader: str | None
    """The leader key's value at that time."""
    revision: int


class Sent(NamedTuple):
    """A record that a node sent."""

    process: str
    known: int
    """Index of the newest write that the process knew of; -1 for none."""


@dataclass(slots=True)
class History:
    """Of one run."""

    writes: list[Write] = field(default_factory=list)
    sent: dict[tuple[str, int, int], Sent] = field(default_factory=dict)
    """By topic, partition and offset."""
    _known: dict[str, int] = field(default_factory=dict)

    def learnt(self, process: str, revision: int) -> None:
        """Note that the process has read or written the progress of this revision; 0 for none."""
        revisions = [0, *(write.revision for write in self.writes)]
        self._known[process] = revisions.index(revision) - 1

    def sends(self, process: str, topic: str, partition: int, offset: int) -> None:
        """Note that the process has sent a record, and that it is in the log."""
        assert process in self._known, f"{process} delivers without knowing any progress"
        self.sent[topic, partition, offset] = Sent(process, self._known[process])

    def index_of(self, value: str) -> int | None:
        """Return the index of the write with this value."""
        found = [index for index, write in enumerate(self.writes) if write.value == value]
        return found[0] if found else None


class RecordedEtcd(MemoryEtcd):
    """The twin, which writes down what became of the progress."""

    def __init__(self, clock: Clock, history: History, *, expiry_lag_ms: int) -> None:
        super().__init__(clock, expiry_lag_ms=expiry_lag_ms)
        self._history = history

    def put(self, key: str, value: str, lease_id: int | None) -> None:
        """Write a key."""
        super().put(key, value, lease_id)
        if key.endswith("/progress"):
            leader = self.get(key.removesuffix("progress") + "leader")
            revision = self.revision_of(key)
            self._history.writes.append(Write(value, leader and leader[0], revision))
