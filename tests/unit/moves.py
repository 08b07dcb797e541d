"""An old cluster whose only node was stopped, and a new one: both over Kafka in memory."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hooked_producer import Call, HookedProducer
from one_node import Maker, OneNode

from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.bus.memory.producer import MemoryProducer
from delayd.cluster.topics import last_frontier
from delayd.commands.move.moving import Move, Moved, planned, run
from delayd.commands.move.old_cluster import OldCluster
from delayd.commands.move.source import Source
from delayd.runtime.clock import SystemClock
from delayd.wheel.stopped import locked, open_stopped

TIMEOUT_MS = 1_000
HOUR_MS = 3_600_000
COUNT = 12
RECORD_BYTES_MAX = 1_048_588


class KilledError(Exception):
    """The process of the move is gone."""


class Kill:
    """Kills whoever makes the n-th call of a producer: before it, or right after it."""

    def __init__(self, at: int = -1, *, is_after: bool = False) -> None:
        self.at = at
        self.is_after = is_after
        self.calls: list[str] = []

    @contextmanager
    def around(self, call: Call) -> Iterator[None]:
        self.calls.append(call.name)
        is_now = len(self.calls) - 1 == self.at
        if is_now and not self.is_after:
            raise KilledError
        yield
        if is_now:
            raise KilledError


class KillableBus(MemoryBus):
    """A way to the brokers whose producers may be killed."""

    def __init__(self, kafka: MemoryKafka, kill: Kill) -> None:
        super().__init__(kafka)
        self._killed = kill
        self._brokers = kafka

    def transactional_producer(self, transactional_id: str) -> MemoryProducer:
        """See the port."""
        kill = self._killed

        class Told(HookedProducer):
            def around(self, call: Call) -> Any:
                return kill.around(call)

        return Told(
            self._brokers, self.link, self._brokers.clock, transactional_id, RECORD_BYTES_MAX
        )


class MovingClock(SystemClock):
    """The wall clock of the brokers in memory; time passes as it does."""

    def __init__(self, node: OneNode) -> None:
        self._node = node

    def wall_ms(self) -> int:
        """Return the clock of the node."""
        return self._node.clock.wall_ms()


@dataclass(slots=True)
class Site:
    """Two clusters, and the directory of the old one's node."""

    old: OneNode
    new: OneNode
    folder: Path

    def stop_old(self) -> None:
        """Stop the old node, with a checkpoint."""
        self.old.ingest()
        self.old.replica.checkpoint()
        self.old.stop_leading()
        self.old.replica.close()

    def copied(self, to: Path) -> Path:
        """A copy of the old node's directory, while it goes on."""
        self.old.ingest()
        self.old.replica.checkpoint()
        shutil.copytree(self.folder, to)
        return to

    def move(
        self,
        *,
        kill: Kill | None = None,
        knows_frontier: bool = True,
        takes_doubles: bool = False,
        is_mirrored: bool = False,
        stopped_ms: int | None = None,
        folder: Path | None = None,
        is_dry: bool = False,
    ) -> Moved:
        """One run of the command."""
        kill = kill or Kill()
        clock = MovingClock(self.new)
        bus = KillableBus(self.new.kafka, kill)
        seen = last_frontier(bus, self.new.settings.frontier.name)
        assert seen is not None
        with locked(folder or self.folder) as layout, open_stopped(layout) as wheel:
            source = Source(wheel)
            old_bus = KillableBus(self.old.kafka, kill)
            with OldCluster(old_bus, source.known.settings, TIMEOUT_MS) as old:
                what = Move(
                    bus=bus,
                    record=seen.record,
                    old=old if knows_frontier else None,
                    stopped_ms=clock.wall_ms() if stopped_ms is None else stopped_ms,
                    takes_doubles=takes_doubles,
                    is_mirrored=is_mirrored,
                    clock=clock,
                    timeout_ms=TIMEOUT_MS,
                )
                if is_dry:
                    return planned(what, source, lambda *_: None)
                return run(what, source, lambda *_: None, 0)

    def take_in(self) -> None:
        """Let the new node take in and judge what was moved."""
        self.new.ingest()
        for _ in range(3):
            self.new.step()

    def moved_values(self) -> list[bytes]:
        """The values in the new buffer, sorted."""
        return sorted(record.value or b"" for record in self.new.read("delayd-buffer"))


def site_in(folder: Path, make_node: Maker, **options: object) -> Site:
    """Two clusters; the old one's master leads."""
    old = make_node("orders", "late", partitions=2, **options)
    new = make_node("orders", "late", partitions=3, cluster="n")
    old.lead()
    return Site(old, new, folder / "0")


def fill(site: Site) -> list[bytes]:
    """Pending messages with and without ids, some delivered, cancelled and requeued before; return
    the values of what is pending."""
    old, now_ms = site.old, site.old.clock.now_ms
    pending = []
    for n in range(COUNT):
        value = b"value-%d" % n
        old.send("orders", now_ms + HOUR_MS + n % 5, id=f"id-{n}" if n % 2 else None, value=value,
                 partition=n % 2, more=[("trace", b"%d" % n)])  # fmt: skip
        pending.append(value)
    old.send("orders", now_ms, value=b"delivered")
    old.send("orders", now_ms + HOUR_MS, id="gone", value=b"cancelled")
    old.send("orders", id="gone", op="cancel")
    old.send("missing", now_ms, id="retried", value=b"retried")
    pending.append(b"retried")
    old.ingest()
    old.clock.now_ms += 1_000
    for _ in range(3):
        old.step()
    assert [record.value for record in old.read("orders")] == [b"delivered"]
    # Behind the last frontier: a request, and a cancel that no step has seen.
    old.send("orders", now_ms + HOUR_MS, id="after", value=b"after")
    old.send("orders", id="id-1", op="cancel")
    old.ingest()
    pending.append(b"after")
    pending.remove(b"value-1")
    return sorted(pending)
