"""Probes: asks the leaders of spared partitions whether they answer, while there are any.

Each partition is judged alone. Beside the delivery thread, for a leader that hangs lets each
question wait for its whole time-out.

Not here: what a spared partition is, and when it is spared no more (`targets/sparing.py`).
"""

import asyncio
from collections import defaultdict

import structlog

from delayd.bus import Bus
from delayd.errors import KafkaUnreachableError
from delayd.node.delivery.deliveries import Deliveries
from delayd.node.targets.sparing import SparedPartition

log = structlog.get_logger()

INTERVAL_S = 1.0
TIMEOUT_MS = 2_000
"""A broker that takes longer to say where a log ends takes no records in a step's time."""

ASKED_MAX = 200
"""How many partitions one question is about."""


class TargetProbes:
    """Lives on the event loop."""

    def __init__(self, bus: Bus, delivery: Deliveries) -> None:
        self._bus = bus
        self._delivery = delivery
        self._wanted = asyncio.Event()

    def wake(self) -> None:
        """Begin to ask: something is spared. On the event loop."""
        self._wanted.set()

    async def run(self) -> None:
        """Ask whenever there is something to ask, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._delivery.spared_partitions:
                await asyncio.sleep(INTERVAL_S)
                try:
                    await asyncio.to_thread(self._ask, self._delivery.spared_partitions)
                except Exception as error:  # such as a certificate that is being replaced
                    log.warning("probe_failed", error=repr(error))

    def _ask(self, spared: tuple[SparedPartition, ...]) -> None:
        # New connections each time: a broker that comes back may have another address.
        cluster = self._bus.cluster()
        try:
            for first in range(0, len(spared), ASKED_MAX):
                places: dict[tuple[str, int], list[SparedPartition]] = defaultdict(list)
                for each in spared[first:][:ASKED_MAX]:  # Several shards may spare it.
                    places[each.topic, each.partition].append(each)
                try:
                    answering = cluster.answering(places, TIMEOUT_MS)
                except KafkaUnreachableError:
                    continue
                for place in answering:
                    for each in places[place]:
                        self._delivery.probe_answered(each)
        finally:
            cluster.close()
