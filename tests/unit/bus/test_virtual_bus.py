"""The bus of a virtual cluster: every time that a broker gave is mapped, in both directions."""

import fcntl
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

from manual_clock import ManualClock

from delayd.bus import Ack, Position
from delayd.bus.memory import MemoryBus
from delayd.bus.memory.kafka import MemoryKafka
from delayd.bus.virtual import VirtualBus
from delayd.runtime.virtual_time import Changes, VirtualTime

DAY_MS = 86_400_000
TIMEOUT_MS = 1_000
HANGS_S = 20
MOVED_MS = 5_000
APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}


def test_a_batch_waits_for_an_announcement_before_its_end(tmp_path: Path) -> None:
    """Its writer is at work when the batch is read, and done when that has got the lock."""
    clock = ManualClock(1_000)
    time = VirtualTime(tmp_path / "time")
    changes = Changes().after(MOVED_MS, DAY_MS)
    time.file.write_text(Changes().announcing(MOVED_MS).text())
    bus = VirtualBus(MemoryBus(MemoryKafka(clock)), time)
    with closing(bus.cluster()) as cluster, closing(bus.idempotent_producer()) as producer:
        cluster.create_topic(
            "t", partitions=1, replication_factor=1, config=APPEND_TIME, timeout_ms=TIMEOUT_MS
        )
        for at_ms in (1_000, MOVED_MS):
            clock.now_ms = at_ms
            producer.send("t", key=None, value=b"", headers=[])
            producer.flush(TIMEOUT_MS)
    with time.file.with_name("time.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with ThreadPoolExecutor(1) as pool, closing(bus.consumer("t")) as consumer:
            consumer.assign({0: Position(0)})
            read = pool.submit(consumer.poll, 10, TIMEOUT_MS)
            wait([read], 0.2)
            is_waiting = not read.done()
            time.file.write_text(changes.text())
            fcntl.flock(held, fcntl.LOCK_UN)
            records = read.result(HANGS_S)

    assert is_waiting
    assert [record.append_ms for record in records] == [1_000, MOVED_MS + DAY_MS]


def test_records_and_acknowledgements_have_the_time_of_the_cluster(tmp_path: Path) -> None:
    clock = ManualClock(1_000)
    time = VirtualTime(tmp_path / "time")
    time.file.write_text(Changes().after(MOVED_MS, DAY_MS).text())
    bus = VirtualBus(MemoryBus(MemoryKafka(clock)), time)
    acks: list[Ack] = []
    with closing(bus.cluster()) as cluster, closing(bus.idempotent_producer()) as producer:
        cluster.create_topic(
            "t", partitions=1, replication_factor=1, config=APPEND_TIME, timeout_ms=TIMEOUT_MS
        )
        for at_ms in (1_000, MOVED_MS - 1, MOVED_MS):
            clock.now_ms = at_ms
            producer.send("t", key=None, value=b"", headers=[], on_ack=acks.append)
            producer.flush(TIMEOUT_MS)
        since = [
            cluster.offsets_since("t", at_ms, TIMEOUT_MS).get(0)
            for at_ms in (1_001, MOVED_MS, DAY_MS, DAY_MS + MOVED_MS, DAY_MS + MOVED_MS + 1)
        ]
    with closing(bus.consumer("t", may_be_flat=True)) as consumer:
        consumer.assign({0: Position(0)})
        records = consumer.poll(10, TIMEOUT_MS)

    expected = [1_000, MOVED_MS - 1, MOVED_MS + DAY_MS]
    assert [record.append_ms for record in records] == expected
    assert [ack.append_ms for ack in acks] == expected
    assert since == [1, 2, 2, 2, None]
