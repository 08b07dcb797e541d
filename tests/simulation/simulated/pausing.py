"""People who pause targets and resume them, renew pauses, and forge orders to do so."""

from contextlib import suppress
from random import Random

from kernel import SECOND_US, Kernel

from delayd.bus import Headers
from delayd.bus.memory import MemoryKafka, Refused, Silence
from delayd.request.holds import order_record
from delayd.request.request import RequestLimits
from replication.holds import ORDER_AGE_MS_MAX, Order
from simulated.weather import Weather

BUFFER = "delayd-buffer"
EVERY_US = 2 * SECOND_US
PAUSE_MS_MAX = 8_000
PAUSE, RESUME, FORGED = "pause", "resume", "forged order"


class Pausers:
    """They act by a stream of their own: seeds without them stay as they are."""

    def __init__(
        self,
        kernel: Kernel,
        weather: Weather,
        chance: Random,
        kafka: MemoryKafka,
        limits: RequestLimits,
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
                self._chance.choice([self._pause, self._pause, self._resume, self._forge])()

    def _order(self, for_ms: int) -> Order:
        chance, now_ms = self._chance, self._kafka.clock.wall_ms()
        until_ms = now_ms + for_ms if for_ms else 0
        rate = chance.choice([0, 0, 3, 40, 2_000])
        return Order(chance.choice(self._topics), now_ms, until_ms, rate)

    def _pause(self) -> None:
        order = self._order(self._chance.randrange(1, PAUSE_MS_MAX))
        self._weather.inject(PAUSE, f"{order.topic} for {order.until_ms - order.at_ms} ms")
        self._append(order, is_order=True)

    def _resume(self) -> None:
        order = self._order(0)
        self._weather.inject(RESUME, order.topic)
        self._append(order, is_order=True)

    def _forge(self) -> None:
        """Write an order without a proof, with that of other words, or one that is too old."""
        order = self._order(PAUSE_MS_MAX)
        way = self._chance.randrange(3)
        if way == 2:
            order = order._replace(at_ms=order.at_ms - ORDER_AGE_MS_MAX - 60_000)
            order = order._replace(until_ms=order.at_ms + ORDER_AGE_MS_MAX + 120_000)
        self._weather.inject(FORGED, f"{order.topic}, way {way}")
        self._append(order, is_order=way == 2, way=way)

    def _append(self, order: Order, *, is_order: bool, way: int = 2) -> None:
        partition, key, value, headers = order_record(order, self._limits)
        [said, (proof, _)] = headers
        other: Headers = [("delayd-hold", b"pause/1/2/3/orders"), headers[1]]
        headers = [[said, (proof, b"0" * 64)], other, headers][way]
        with suppress(Refused, Silence):  # No leader, or one that hangs; this person gives up.
            ack = self._kafka.append(BUFFER, partition, key, value, headers)
            self.written[partition, ack.offset] = is_order
