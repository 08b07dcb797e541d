"""The commit of a step, as a port: a mastership sends what a step holds, and this ends it.

`transaction.py` commits deliveries and frontier in one Kafka transaction: each message once.
`progress.py` writes the frontier to etcd when the deliveries are acknowledged: each at least once.
Not here: what a step holds (`delayd.node.delivery.step_writer`), when it is begun
(`delayd.node.delivery.mastership`).

Invariants that every implementation keeps:
- one is made for a mastership and thrown away with it, whatever ended it;
- what `commit` has returned holds for ever; if it raised, the outcome of the step is unknown, and
  the next takeover reads it.

Source: docs/design/frontier.md, "Step".
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from delayd.bus import Ack, Producer
from delayd.errors import DelaydError
from replication.record import FrontierRecord
from replication.takeover import Fact, Read

FLUSH_TIMEOUT_MS = 5_000


class SupersededError(DelaydError):
    """Another node leads: etcd takes no more progress of this one."""

    code = "superseded"


class Written(NamedTuple):
    """The frontier record of a step is in its topic."""

    ack: Ack
    sent_wall_ms: int
    """This node's clock when it was sent."""
    arrived_ns: int
    """Its monotonic clock when the report had arrived."""


class StepCommit(Protocol):
    """For one thread. Any exception is final: close it, and make another one."""

    @property
    def producer(self) -> Producer:
        """Where the records of a step are sent."""

    @property
    def last(self) -> FrontierRecord | None:
        """The frontier that a predecessor has left, once a takeover has read it."""

    @property
    def is_fenced(self) -> bool:
        """True if predecessors can be fenced; else etcd holds the progress."""

    def obey(self, order: Read) -> Fact:
        """Carry out an order of the takeover before the first step; return its answer."""

    def begin(self) -> None:
        """Begin the next step: all that is sent from now on belongs to it."""

    def commit(self, record: FrontierRecord, check: Callable[[Written], None]) -> Written:
        """End the step, after all that was sent is acknowledged. `check` raises what ends the
        mastership."""

    def close(self) -> None:
        """Discard the producer."""
