"""The producer that a follower keeps ready for its takeover, connected to the brokers.

A new client has to find the brokers first, which took 43 of the 60 ms of a takeover. To make it is
all there is to do: it connects by itself, and fences nobody before `init_transactions`.

Source: docs/design/election.md, "Standby".
"""

from typing import Final

from delayd.bus import Bus, TransactionalProducer
from delayd.cluster.topics import transactional_id
from delayd.runtime.clock import Clock
from replication.settings import Settings

RENEW_MS: Final = 300_000
"""How old it may become: a new one asks for addresses anew, and brokers end idle connections after
10 minutes (`connections.max.idle.ms`)."""


class Standby:
    """Of one node. Used by the delivery thread only."""

    def __init__(self, bus: Bus, settings: Settings, clock: Clock, shard: int = 0) -> None:
        """`settings`: the cluster's, which name the one transactional id of the shard."""
        self._bus = bus
        self._id = transactional_id(settings.realm, shard)
        self._clock = clock
        self._kept: TransactionalProducer | None = None
        self._made_ms = 0

    def keep(self) -> None:
        """Have a producer ready that is not too old."""
        now_ms = self._clock.monotonic_ms()
        if self._kept is None or now_ms - self._made_ms >= RENEW_MS:
            self.close()
            self._kept = self._bus.transactional_producer(self._id)
            self._made_ms = now_ms

    def take(self) -> TransactionalProducer:
        """Return the producer that is ready, or else a new one; the caller closes it."""
        taken, self._kept = self._kept, None
        return taken or self._bus.transactional_producer(self._id)

    def close(self) -> None:
        """Give up what is kept."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None
