"""What clients hold of a process, threads and descriptors, and whether they give it back: measured
in a process of their own, where no client of another test comes, goes or connects meanwhile.
"""

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, suppress
from multiprocessing import get_context
from pathlib import Path
from threading import Event
from typing import TypeAlias

from test_bus_desk import DRIVERS, POLL_MS, TIMEOUT_MS

from delayd.bus import Bus, Cluster, Consumer, Position, Producer
from delayd.errors import KafkaUnreachableError, ProducerError
from delayd.runtime.clock import SystemClock

CLOSE_MS_MAX = 5_000
"""Less than any time-out of a driver; a slow machine begins a process meanwhile."""

Clients: TypeAlias = Sequence[Cluster | Consumer | Producer]


def alone(work: Callable[..., None], *arguments: str) -> None:
    """Carry out work of this module in a new process; raises what it raises."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(work, *arguments).result()


def held() -> frozenset[tuple[str, str]]:
    """The threads and descriptors of this process."""
    found = {("task", thread.name) for thread in Path("/proc/self/task").iterdir()}
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists them
            found.add((descriptor.name, str(descriptor.readlink())))
    return frozenset(found)


def gives_back(use: Callable[[], Clients], within_ms: int = TIMEOUT_MS) -> None:
    """Fail unless clients that were used and closed hold nothing soon afterwards that was not held
    before. They are kept meanwhile: the collector may close what `close` did not. They are used
    twice: what a process has once and for all was made the first time."""
    kept = [*use()]
    before = held()
    kept += use()
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + within_ms
    while left := held() - before:
        assert clock.monotonic_ms() < deadline_ms, f"{kept} hold {sorted(left)}"
        Event().wait(0.005)


def clients_that_work(driver: str, bootstrap: str, topic: str, id: str) -> None:
    """Each client, closed twice in the midst of its work."""
    bus = DRIVERS[driver](bootstrap)

    def use() -> Clients:
        idle = held()
        consumer = bus.consumer(topic)
        for _ in range(3):
            consumer.assign({0: Position(0)})
            consumer.poll(10, 100)
        producer = bus.transactional_producer(id)
        producer.init_transactions(TIMEOUT_MS)
        producer.begin()
        for _ in range(100):
            producer.send(topic, key=None, value=b"x", headers=[], partition=0)
        cluster = bus.cluster()
        cluster.broker_count(TIMEOUT_MS)
        assert any(what == "task" for what, _ in held() - idle), "clients have threads"
        for client in (consumer, producer, cluster):
            client.close()
            client.close()
        return consumer, producer, cluster

    gives_back(use)


def clients_that_were_never_used(driver: str, bootstrap: str) -> None:
    bus = DRIVERS[driver](bootstrap)

    def use() -> Clients:
        clients = bus.transactional_producer("never"), bus.consumer("never"), bus.cluster()
        for client in clients:
            client.close()
        return clients

    gives_back(use)


def clients_of_a_silent_broker(driver: str, address: str) -> None:
    """Each call ends when it has to, and closing takes no longer."""
    bus = DRIVERS[driver](address)
    gives_back(lambda: _hear_nothing(bus), CLOSE_MS_MAX)


def _hear_nothing(bus: Bus) -> Clients:
    clock = SystemClock()
    begun_ms = clock.monotonic_ms()
    cluster, consumer = bus.cluster(), bus.consumer("any")
    producer = bus.transactional_producer("held")
    with closing(cluster), closing(consumer), closing(producer):
        consumer.assign({0: Position(0)})
        with suppress(KafkaUnreachableError):
            cluster.describe(["any"], 300)
            raise AssertionError("nobody described a topic")
        with suppress(ProducerError):
            producer.init_transactions(300)
            raise AssertionError("nobody gave an id")
        assert consumer.poll(10, 300) == []
    took_ms = clock.monotonic_ms() - begun_ms
    assert took_ms < 900 + CLOSE_MS_MAX, f"it took {took_ms} ms"
    return cluster, consumer, producer


def a_consumer_of_no_broker(driver: str) -> None:
    """However often it is asked, it holds no more than at first."""
    with closing(DRIVERS[driver]("127.0.0.1:1").consumer("any")) as consumer:
        consumer.assign({0: Position(0)})
        consumer.poll(1, POLL_MS)
        gc.collect()
        gc.disable()
        before = len(held())
        for _ in range(40):
            consumer.poll(1, POLL_MS)
        assert len(held()) <= before + 2, "one may be on its way"
