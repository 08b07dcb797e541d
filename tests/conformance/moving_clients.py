"""Run as a program where a hosts file is mounted: one client of each kind and driver, used all the
time. Prints `DRIVER/KIND MONOTONIC_MS` for each success, and nothing for failures.

    python moving_clients.py BOOTSTRAP TOPIC
"""

import os
import sys
import threading
from collections.abc import Callable
from functools import partial

from delayd.bus import Bus, Position
from delayd.bus.confluent import ConfluentBus
from delayd.bus.kafka_python import KafkaPythonBus
from delayd.errors import DelaydError
from delayd.runtime.clock import SystemClock

CLOCK = SystemClock()
TIMEOUT_MS = 10_000
PAUSE_S = 0.1


def reading(bus: Bus, topic: str) -> Callable[[], bool]:
    """Reads partition 0, from its begin."""
    consumer = bus.consumer(topic)
    consumer.assign({0: Position(0)})
    return lambda: bool(consumer.poll(100, 100))


def writing(bus: Bus, topic: str) -> Callable[[], bool]:
    """Writes to partition 1, with a new producer after each failure."""
    producer = None

    def write() -> bool:
        nonlocal producer
        writer, producer = producer or bus.idempotent_producer(), None
        try:
            writer.send(topic, key=None, value=b"v", headers=[], partition=1)
            writer.flush(TIMEOUT_MS)
        except DelaydError:
            writer.close()
            raise
        producer = writer
        return True

    return write


def asking(bus: Bus, topic: str) -> Callable[[], bool]:
    """Asks for the ends, by one client."""
    cluster = bus.cluster()
    return lambda: bool(cluster.end_offsets(topic, TIMEOUT_MS, committed=True))


def use(name: str, action: Callable[[], bool]) -> None:
    """Do it again and again."""
    while True:
        try:
            if action():
                os.write(1, f"{name} {CLOCK.monotonic_ms()}\n".encode())
        except DelaydError:
            pass
        threading.Event().wait(PAUSE_S)


def main(bootstrap: str, topic: str) -> None:
    """Use all of them until it is killed."""
    for bus in (ConfluentBus(bootstrap), KafkaPythonBus(bootstrap)):
        for kind in (reading, writing, asking):
            name = f"{type(bus).__name__}/{kind.__name__}"
            threading.Thread(target=partial(use, name, kind(bus, topic)), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
