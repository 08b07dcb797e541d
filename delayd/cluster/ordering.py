"""Orders of operators about target topics: write one, and wait until a step has passed it.

Not here: what an order says (`pausing.py`, `limiting.py`).
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from delayd.bus import Ack, Bus
from delayd.cluster.frontier_log import POLL_MS, SeenFrontier
from delayd.cluster.joint_log import JointLog
from delayd.cluster.topics import load_settings
from delayd.config.cluster_key import signing_key
from delayd.errors import DelaydError
from delayd.request.internal import BufferRecord
from delayd.request.request import RequestLimits
from delayd.runtime.clock import Clock
from replication.record import FrontierRecord


class Cluster(NamedTuple):
    """A cluster, and who gives it orders."""

    bus: Bus
    clock: Clock
    name: str
    prefix: str
    key: str
    """The cluster's keys, one a line."""
    timeout_ms: int

    def look(self) -> SeenFrontier:
        """Return the newest frontier. Raises what `load_settings` does."""
        return load_settings(self.bus, self.name, self.prefix, self.timeout_ms)

    def limits(self, record: FrontierRecord) -> RequestLimits:
        """Return the limits by which orders are signed. WrongClusterKeyError if the key is not the
        one by which the master signs."""
        settings = record.settings
        return RequestLimits.of(settings, signing_key(self.key, settings), record.rules)

    def passed(
        self,
        record: FrontierRecord,
        orders: Sequence[BufferRecord],
        error: type[DelaydError],
        about: str,
    ) -> tuple[Mapping[int, int], SeenFrontier]:
        """Write an order's records; return their offsets by partition, and a frontier of steps that
        have passed them, joint of all shards. Raises `error` if nobody passes them in time, and
        what the drivers raise."""
        settings = record.settings
        with closing(JointLog(self.bus, settings)) as log:
            log.open(self.timeout_ms)
            offsets = self._write(settings.buffer.name, orders)
            deadline_ms = self.clock.monotonic_ms() + self.timeout_ms
            while (newest := log.newest) is None or not _has_passed(newest, offsets):
                if self.clock.monotonic_ms() > deadline_ms:
                    raise error(
                        f"the order about {about} is written, and no master has passed it yet",
                        remedy="it is obeyed once there is a master: see delayd status",
                    )
                log.poll(POLL_MS)
            return offsets, newest

    def _write(self, topic: str, orders: Sequence[BufferRecord]) -> dict[int, int]:
        acks: list[Ack] = []
        with closing(self.bus.idempotent_producer()) as producer:
            for order in orders:
                producer.send(
                    topic,
                    key=order.key,
                    value=order.value,
                    headers=order.headers,
                    partition=order.partition,
                    on_ack=acks.append,
                )
            producer.flush(self.timeout_ms)
        return {ack.partition: ack.offset for ack in acks}


def _has_passed(seen: SeenFrontier, offsets: Mapping[int, int]) -> bool:
    reached = seen.record.frontier.offsets
    return all(reached[partition] > offset for partition, offset in offsets.items())
