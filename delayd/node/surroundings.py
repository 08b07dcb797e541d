"""All that a node touches. `node.py` puts the real things together, the simulator its own."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from delayd.bus import Bus
from delayd.coordination import Coordination
from delayd.errors import DelaydError
from delayd.node.delivery.spans import DeliverySpans
from delayd.node.election.pulse_line import Exchange
from delayd.node.monitoring.node_view import NodeView
from delayd.node.replica.replica import Replica
from delayd.node.snapshots.choosing import Choice
from delayd.runtime.clock import Clock
from delayd.runtime.threads import Threads
from delayd.wheel.reserve import Reserve
from delayd.wheel.storage import Wheel
from replication.settings import Settings


class Fetcher(Protocol):
    """Gets another node's wheel in place of this node's."""

    told: str | None
    """Why it got one, or did not, if there was a choice."""

    async def fetch(self, bus: Bus, settings: Settings, why: DelaydError) -> None:
        """Return when the directory holds another wheel. Raises an error like `why`, DiskError."""

    def weigh(self, bus: Bus, replica: Replica) -> None:
        """Raise CopyIsFasterError if this node had better have another node's wheel."""

    async def fetch_instead(self, bus: Bus, settings: Settings, choice: Choice) -> None:
        """Return when the directory holds a good wheel, another one or the same. DiskError."""


class Admin(Protocol):
    """The admin port, which a node turns on and off."""

    should_exit: bool
    """Set to end `serve`."""

    async def serve(self) -> None:
        """Answer until `should_exit` is set."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """All that a node touches: a machine, a network, the brokers, etcd. The simulator has its own.

    Not here: LevelDB and the exports, which only the node touches, on the disk of the wheel.
    """

    clock: Clock
    coordination: Coordination
    """Enters the cluster's realm when its settings are known."""
    open_bus: Callable[[int | None], Bus]
    """Connects to the brokers, given the largest record that must be produced, if it is known."""
    open_admin: Callable[[NodeView], Admin]
    open_wheel: Callable[[Path, int], Wheel]
    """Opens the wheel in a folder, for so many partitions."""
    open_reserve: Callable[[Path, int], Reserve]
    """Finds what is reserved in that folder, for so many bytes of `disk_free_min_bytes`."""
    threads: Threads
    new_nonce: Callable[[], str]
    """Another one at every call: it distinguishes the lives of a node."""
    fetcher: Fetcher | None = None
    """Gets another node's wheel; None: this node cannot ask others."""
    watches_ingest: bool = False
    """Whether brokers are asked every second how far the buffer goes."""
    exchange: Exchange | None = None
    """Connects to the pulses of other nodes; None: it waits for the lease of a dead master."""
    spans: DeliverySpans | None = None
    """Makes spans of what is delivered; None: nobody traces."""
