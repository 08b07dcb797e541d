"""One node's way to the brokers: the twin of Kafka, with time and lost answers in between."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Condition
from typing import Any, TypeVar

from flattening import FlatteningConsumer
from hooked_producer import Call, HookedProducer
from kernel import Kernel, Waiting

from delayd.bus import Ack, Consumer, Record, Survey
from delayd.bus.guarded import GuardedConsumer
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.bus.memory.cluster import MemoryCluster
from delayd.bus.memory.consumer import MemoryConsumer
from delayd.bus.memory.idempotent import MemoryIdempotentProducer
from delayd.bus.memory.link import Link
from delayd.errors import FencedError, KafkaUnreachableError, ProducerError
from delayd.runtime import native
from delayd.runtime.clock import Clock
from delayd.runtime.native.flat import Surveyor
from simulated.history import History
from simulated.weather import Weather, Wire

FRONTIER = "delayd-frontier"
COMMIT_WEIGHT = 15
"""A step sends many records and commits once, which is when a death matters most."""
SLOW_FENCE = 10
"""Until it is fenced the last master goes on, which its successor must not overlook."""
MEND_US = (2_000_000, 15_000_000)
"""How long a lost marker of the frontier stops all takeovers."""

RECORDS_MAX = 10**9
BATCH_BYTES_MAX = 32 * 1024
"""What a batch may weigh. A run of requests in one ms may weigh more, and is read all the same."""

T = TypeVar("T")


class Bell(Condition):
    """The brokers' bell: wakes simulated threads. Its lock is never held across a turn."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.waiting = Waiting(kernel)

    def notify_all(self) -> None:
        """Wake those that wait for new records or transaction markers."""
        self.waiting.ring()


class SimulatedBus(MemoryBus):
    """Made anew by each life of a node; the link is the machine's."""

    def __init__(
        self,
        kafka: MemoryKafka,
        link: Link,
        clock: Clock,
        wire: Wire,
        weather: Weather,
        history: History,
        record_bytes_max: int | None,
        *,
        is_coarse: bool = False,
    ) -> None:
        """`is_coarse`: it reads with librdkafka, which the guard of `delayd.bus.guarded` needs."""
        super().__init__(kafka, clock=clock, record_bytes_max=record_bytes_max)
        self._is_coarse = is_coarse
        self._history = history
        self.link = link
        self._wire = wire
        self._weather = weather

    def consumer(
        self,
        topic: str,
        *,
        careful: bool = False,
        careful_to: Mapping[int, int] | None = None,
        may_be_flat: bool = False,
        wait_ms: int | None = None,
    ) -> Consumer:
        """See the port."""
        parts = (self._wire, self._weather, self._kafka, self.link, topic)
        if may_be_flat and native.library is not None:
            read = self.consumer(topic, careful=careful, careful_to=careful_to)
            return FlatteningConsumer(read, Surveyor(native.library))
        if careful or not self._is_coarse:
            return SimulatedConsumer(*parts)
        fast = SimulatedConsumer(*parts, is_coarse=True)
        return CappedConsumer(
            GuardedConsumer(
                topic, fast, partial(SimulatedConsumer, *parts), BATCH_BYTES_MAX, careful_to
            ),
            self._weather.habits.poll_records_max,
        )

    def transactional_producer(self, transactional_id: str) -> "SimulatedProducer":
        """See the port."""
        return SimulatedProducer(
            self._wire,
            self._weather,
            self._kafka,
            self.link,
            self._clock,
            transactional_id,
            self._record_bytes_max,
        )

    def idempotent_producer(self) -> "SimulatedIdempotentProducer":
        """See the port."""
        return SimulatedIdempotentProducer(
            self._wire,
            self._weather,
            self._history,
            self._kafka,
            self.link,
            self._clock,
            self._record_bytes_max,
        )

    def cluster(self) -> "SimulatedCluster":
        """See the port."""
        return SimulatedCluster(self._wire, self._kafka, self.link)


class SimulatedConsumer(MemoryConsumer):
    """Waits for records in virtual time."""

    def __init__(
        self,
        wire: Wire,
        weather: Weather,
        kafka: MemoryKafka,
        *parts: Any,
        is_coarse: bool = False,
    ) -> None:
        super().__init__(kafka, *parts, is_coarse=is_coarse)
        self._wire = wire
        # Its guard must know by what it asked for whether a batch was cut.
        self._batch_max = RECORDS_MAX if is_coarse else weather.habits.poll_records_max

    def poll(self, records_max: int, timeout_ms: int) -> list[Record]:
        """See the port."""
        self._wire.travel("poll")
        records_max = min(records_max, self._batch_max)
        before = dict(self._offsets)
        records = super().poll(records_max, 0)
        if records or timeout_ms == 0 or before != self._offsets:
            return records
        bell = self._kafka.changed
        assert isinstance(bell, Bell), "simulated brokers ring a simulated bell"
        bell.waiting.wait(timeout_ms * 1_000)
        return super().poll(records_max, 0)


class CappedConsumer:
    """Hands out few records at a time."""

    def __init__(self, consumer: Consumer, records_max: int) -> None:
        self._consumer = consumer
        self._records_max = records_max

    def poll(self, records_max: int, timeout_ms: int) -> Sequence[Record]:
        """See the port."""
        return self._consumer.poll(min(records_max, self._records_max), timeout_ms)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


class SimulatedProducer(HookedProducer):
    """Every call takes time before and after it is carried out."""

    def __init__(self, wire: Wire, weather: Weather, kafka: MemoryKafka, *parts: Any) -> None:
        super().__init__(kafka, *parts)
        self._wire = wire
        self._weather = weather

    @contextmanager
    def around(self, call: Call) -> Iterator[None]:
        """Take time on the way there, and back."""
        if call.name == "begin":
            yield  # It asks no broker.
            return
        if call.name == "send":
            self._wire.travel("send")
            yield
            return
        weather, weight = self._weather, COMMIT_WEIGHT if call.name == "commit" else 5
        slow = SLOW_FENCE if call.name == "init_transactions" else 1
        self._wire.travel(f"before {call.name}", weight=weight, slow=slow)
        if weather.strikes(weather.habits.stuck) and not weather.faults["stuck call"]:
            weather.inject("stuck call", f"{self._wire.process.name}: {call.name}")
            self._wire.get_stuck()
        if call.name == "flush" and weather.strikes(weather.habits.lost_answer / 4):
            is_gone = weather.chance.random() < 0.5
            what = "broker gone" if is_gone else "lost answer"
            weather.inject(what, f"{self._wire.process.name}: flush")
            self._kafka.fail_next_flush(self._id, is_broker_gone=is_gone)
        is_last = call.name == "commit" and self._draw_outcome()
        try:
            yield
        except FencedError:
            raise
        except ProducerError:
            self._wire.wait(weather.chance.randrange(1_000_000))  # What times out takes time.
            raise
        if is_last:
            self._lose_frontier_marker()
        self._wire.travel(f"after {call.name}", weight=weight)

    def _draw_outcome(self) -> bool:
        """Draw whether the answer gets lost, and the commit is applied, or not, or later. Return
        True if this is the last commit of this process, and its marker on the frontier gets
        lost."""
        weather = self._weather
        self.flush(0)  # Before it is drawn what becomes of the commit itself.
        will_apply = self._link.up and self._coordinator.is_current(self._id, self._epoch or 0)
        if will_apply and weather.strikes(weather.habits.lost_marker):
            self._kafka.lose_next_marker(FRONTIER, 0, self._id)
            return True
        if weather.strikes(weather.habits.lost_answer):
            outcome = weather.chance.choice(["applied", "not applied", "applied late"])
            weather.inject("lost answer", f"{self._wire.process.name}: commit {outcome}")
            self._kafka.fail_next_commit(self._id, applied=outcome == "applied")
            if outcome == "applied late":
                self._commit_late()
        return False

    def _lose_frontier_marker(self) -> None:
        """Lose the marker of an acknowledged commit with a broker, until somebody mends that."""
        weather, name = self._weather, self._wire.process.name
        weather.inject("lost frontier marker", f"{name} dies after its commit")
        weather.at_brokers("mend", weather.chance.randrange(*MEND_US), weather.mend)
        self._wire.process.kernel.kill(self._wire.process)

    def _commit_late(self) -> None:
        """Have the coordinator commit in its own time, unless the producer is fenced by then."""
        kafka, epoch = self._kafka, self._epoch
        delay_us = self._weather.chance.randrange(3_000_000)
        assert epoch is not None, "who commits has an epoch"

        def commit() -> None:
            with kafka.changed:
                if kafka.coordinator.is_current(self._id, epoch):
                    kafka.coordinator.commit(self._id)
                    kafka.changed.notify_all()

        self._weather.at_brokers("late commit", delay_us, commit)


class SimulatedIdempotentProducer(MemoryIdempotentProducer):
    """As the other; what was sent stays, whatever is answered."""

    def __init__(
        self, wire: Wire, weather: Weather, history: History, kafka: MemoryKafka, *parts: Any
    ) -> None:
        super().__init__(kafka, *parts)
        self._wire = wire
        self._weather = weather
        self._history = history

    def send(
        self, topic: str, *, on_ack: Callable[[Ack], None] | None = None, **record: Any
    ) -> None:
        """See the port."""
        self._wire.travel("send")
        acknowledged = len(self._acks)
        super().send(topic, on_ack=on_ack or (lambda _: None), **record)
        for _, ack in self._acks[acknowledged:]:
            self._history.sends(self._wire.process.name, topic, ack.partition, ack.offset)

    def flush(self, timeout_ms: int) -> None:
        """See the port. A flush that fails leaves what was sent where it is."""
        self._wire.travel("before flush", weight=5)
        weather = self._weather
        try:
            if weather.strikes(weather.habits.lost_answer):
                weather.inject("lost answer", f"{self._wire.process.name}: flush")
                self._fail("flush", "_TIMED_OUT")
            super().flush(timeout_ms)
        except ProducerError:
            self._wire.wait(weather.chance.randrange(1_000_000))
            raise
        self._wire.travel("after flush", weight=5)


class SimulatedCluster(MemoryCluster):
    """Administration takes time too."""

    def __init__(self, wire: Wire, *parts: Any) -> None:
        super().__init__(*parts)
        self._wire = wire

    def broker_count(self, timeout_ms: int) -> int:
        """See the port."""
        return self._ask(lambda: super(SimulatedCluster, self).broker_count(timeout_ms))

    def survey(self, topics: Iterable[str], timeout_ms: int) -> Survey:
        """See the port."""
        names = list(topics)
        return self._ask(lambda: super(SimulatedCluster, self).survey(names, timeout_ms))

    def create_topic(self, name: str, **_parts: Any) -> bool:
        """Raise: nodes create no topics."""
        raise AssertionError("a node makes no topics")

    def add_partitions(self, topic: str, partitions: int, timeout_ms: int) -> bool:
        """See the port."""
        return self._ask(
            lambda: super(SimulatedCluster, self).add_partitions(topic, partitions, timeout_ms)
        )

    def start_offsets(self, topic: str, timeout_ms: int) -> dict[int, int]:
        """See the port."""
        return self._ask(lambda: super(SimulatedCluster, self).start_offsets(topic, timeout_ms))

    def end_offsets(self, topic: str, timeout_ms: int, *, committed: bool) -> dict[int, int]:
        """See the port."""
        return self._ask(
            lambda: super(SimulatedCluster, self).end_offsets(
                topic, timeout_ms, committed=committed
            )
        )

    def offsets_since(self, topic: str, at_ms: int, timeout_ms: int) -> dict[int, int]:
        """See the port."""
        return self._ask(
            lambda: super(SimulatedCluster, self).offsets_since(topic, at_ms, timeout_ms)
        )

    def answering(
        self, partitions: Iterable[tuple[str, int]], timeout_ms: int
    ) -> set[tuple[str, int]]:
        """See the port. A leader that does not answer is waited for."""
        places = set(partitions)
        found = self._ask(lambda: super(SimulatedCluster, self).answering(places, timeout_ms))
        if found != places:
            self._wire.wait(500_000)
        return found

    def _ask(self, question: Callable[[], T]) -> T:
        self._wire.travel("question")
        try:
            answer = question()
        except KafkaUnreachableError:
            self._wire.wait(500_000)
            raise
        self._wire.travel("answer")
        return answer
