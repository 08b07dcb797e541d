"""People who limit what is pending for targets, change and end that, and forge such orders."""

from collections.abc import Callable
from contextlib import suppress
from random import Random

from kernel import SECOND_US, Kernel

from delayd.bus import Headers
from delayd.bus.memory import MemoryKafka, Refused, Silence
from delayd.request.quotas import gate_record, quota_record
from delayd.request.request import RequestLimits
from replication.holds import ORDER_AGE_MS_MAX
from replication.quotas import Gate, QuotaOrder
from simulated.weather import Weather

BUFFER = "delayd-buffer"
EVERY_US = 2 * SECOND_US
LIMIT, UNLIMIT, FORGED = "limit", "end of a limit", "forged quota"


class Limiters:
    """They act by a stream of their own: seeds without them stay as they are."""

    def __init__(
        self,
        kernel: Kernel,
        weather: Weather,
        chance: Random,
        kafka: MemoryKafka,
        limits: Callable[[], RequestLimits],
        topics: list[str],
    ) -> None:
        self._kernel = kernel
        self._weather = weather
        self._chance = chance
        self._kafka = kafka
        self._limits = limits
        self._topics = topics
        self.is_done = False
        self.written: dict[tuple[int, int], bool] = {}
        """By partition and offset: is it an order, or does it only look like one?"""

    def run(self) -> None:
        """Act now and then, until told to stop; as a task."""
        while not self.is_done:
            self._kernel.sleep(self._chance.randrange(EVERY_US))
            if not self.is_done:
                acts = [self._limit, self._limit, self._limit, self._end, self._forge]
                self._chance.choice(acts)()

    def _limit(self) -> None:
        max_pending, rate = self._chance.choice([1, 2, 5, 12, 30]), self._chance.choice([1, 1, 2])
        limits = self._chance.choice([(max_pending, 0), (0, rate), (0, 1), (max_pending, rate)])
        order = self._order(*limits)
        if limits == (0, 1):
            # Of one topic, so that it stands until there were too many requests.
            order = order._replace(topic=self._topics[0])
        self._weather.inject(
            LIMIT, f"{order.topic} to {order.max_pending} and {order.rate} a second"
        )
        self._append(order, is_order=True)

    def _end(self) -> None:
        order = self._order(0)
        self._weather.inject(UNLIMIT, order.topic)
        self._append(order, is_order=True)

    def _order(self, max_pending: int, rate: int = 0) -> QuotaOrder:
        topic = self._chance.choice(self._topics)
        return QuotaOrder(topic, self._kafka.clock.wall_ms(), max_pending, rate)

    def _forge(self) -> None:
        """Write an order without a proof, with that of other words, or one that is too old; or say
        that a topic is full."""
        order, way = self._order(1), self._chance.randrange(4)
        if way == 2:
            order = order._replace(at_ms=order.at_ms - ORDER_AGE_MS_MAX - 60_000)
        self._weather.inject(FORGED, f"{order.topic}, way {way}")
        self._append(order, is_order=way == 2, way=way)

    def _append(self, order: QuotaOrder, *, is_order: bool, way: int = 2) -> None:
        limits = self._limits()
        shards = range(limits.shards)
        if limits.shards > 1 and (not is_order or self._chance.random() < 0.1):
            # Whoever forges one does not care for others; whoever dies half-way has reached some.
            shards = shards[: self._chance.randrange(1, limits.shards)]
        for shard in shards:
            self._append_to(shard, order, limits, is_order=is_order, way=way)

    def _append_to(
        self, shard: int, order: QuotaOrder, limits: RequestLimits, *, is_order: bool, way: int
    ) -> None:
        partition, key, value, headers = quota_record(order, limits, shard)
        if way == 3:
            gate = Gate(order.topic, order.at_ms, 1, 5, 5)
            [said, (proof, _)] = gate_record(partition, gate, limits).headers
            headers = [said, (proof, b"0" * 64)]
        elif way < 2:
            [said, (proof, _)] = headers
            other: Headers = [("delayd-quota", b"limit/1/2/0/orders"), headers[1]]
            headers = [[said, (proof, b"0" * 64)], other][way]
        with suppress(Refused, Silence):  # No leader, or one that hangs; this person gives up.
            ack = self._kafka.append(BUFFER, partition, key, value, headers)
            self.written[partition, ack.offset] = is_order
