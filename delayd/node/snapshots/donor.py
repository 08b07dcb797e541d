"""Giving: this node's wheel at a checkpoint, for other nodes to copy while it goes on.

A *pin* is one snapshot for one node. It holds files that would have been unlinked, and so takes
room as time passes. It ends

1. when the node that asked for it has it all, or begins another one,
2. when nobody has asked for anything of it for IDLE_S,
3. PIN_S after its beginning, unless the copy has advanced within IDLE_S; PIN_MAX_S in any case,
4. when the disk is short of room, or this node ends.

The replica's lock is taken to hold and release files, for some microseconds. All pins together give
`snapshot_bytes_per_s`.

Source: docs/design/storage.md, "Snapshots".
"""

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from delayd.errors import DelaydError, DiskError
from delayd.node.replica.held import held_snapshot
from delayd.node.replica.replica import Replica
from delayd.runtime.clock import Clock
from delayd.wheel.layout import FORMAT_VERSION
from delayd.wheel.snapshot import Line, Snapshot

log = structlog.get_logger()

PINS_MAX: Final = 2
IDLE_S: Final = 600
"""A node that was killed while it copied is started again within it, and goes on."""
PIN_S: Final = 6 * 3600
PIN_MAX_S: Final = 48 * 3600
"""At the default rate a copy gets 11 TB by then. The next snapshot keeps what it has."""
LINES_BYTES: Final = 256 * 1024
"""Of one answer with lines: some 5 ms."""
CHUNK_BYTES: Final = 1024 * 1024
"""Of one answer with bytes of files."""


class NoSnapshotError(Exception):
    """This node gives no snapshot now, or not that one; it is well."""


@dataclass(eq=False, slots=True)
class Pin:
    """One snapshot for one node."""

    id: str
    fetcher: str
    snapshot: Snapshot
    began_ms: int
    used_ms: int
    advanced_ms: int
    """When it last got lines or bytes for the first time."""
    sent_bytes: int = 0
    key: bytes = b""
    """How far the lines were given."""
    position: int = 0
    """How far the stream of files was given."""
    timer: threading.Timer | None = field(default=None)


class Donor:
    """Hands out snapshots. Thread safe."""

    def __init__(self, replica: Replica, clock: Clock, *, node: str, bytes_per_s: int) -> None:
        self._replica = replica
        self._clock = clock
        self._node = node
        self._bytes_per_s = bytes_per_s
        self._beginning = threading.Lock()
        """Held while a snapshot is made, which takes as long as reading all lines of files."""
        self._lock = threading.Lock()
        self._pins: dict[str, Pin] = {}
        self._free_at_ms = 0
        """When the next bytes may be given, by the rate."""
        self._is_stopped = False
        replica.room_makers.append(self.give_way)

    def begin(self, fetcher: str) -> dict[str, Any]:
        """Pin the last checkpoint for this node, in place of what was pinned for it before.

        Return what it is. Raises NoSnapshotError.
        """
        with self._beginning:
            self._end_all(lambda pin: pin.fetcher == fetcher)
            if self._is_stopped or self._replica.room.is_low:
                raise NoSnapshotError("the node is being stopped, or its disk is short")
            if len(self._pins) >= PINS_MAX:
                raise NoSnapshotError(f"{len(self._pins)} other nodes are copying this one")
            snapshot = self._held_snapshot()
            now_ms = self._clock.monotonic_ms()
            pin = Pin(secrets.token_hex(8), fetcher, snapshot, now_ms, now_ms, now_ms)
            with self._lock:
                self._pins[pin.id] = pin
                self._watch(pin)
        log.info("snapshot_begun", fetcher=fetcher, bytes=snapshot.stream.size_bytes)
        return self.described(pin.id)

    def _held_snapshot(self) -> Snapshot:
        try:
            return held_snapshot(self._replica)
        except DelaydError as error:
            raise NoSnapshotError(str(error)) from error

    def described(self, id: str) -> dict[str, Any]:
        """Return what a snapshot is. Raises NoSnapshotError."""
        snapshot, settings = self._pin(id).snapshot, self._replica.settings
        return {
            "snapshot": id,
            "node": self._node,
            "realm": settings.realm,
            "buffer": settings.buffer.topic_id,
            "format": FORMAT_VERSION,
            "partitions": settings.partitions,
            "catalogue_bytes": snapshot.catalogue_bytes,
            "files": len(snapshot.stream),
            "bytes": snapshot.stream.size_bytes,
            "ingested": snapshot.progress.offsets,
            "reached": snapshot.progress.reached or snapshot.progress.offsets,
        }

    def lines_after(self, id: str, key: bytes) -> list[Line]:
        """Return some lines of the catalogue after this one. Raises NoSnapshotError."""
        pin = self._pin(id)
        lines: list[Line] = self._read(pin, lambda: pin.snapshot.lines_after(key, LINES_BYTES))
        pin.sent_bytes += sum(len(key) + len(value) for key, value in lines)
        if lines and lines[-1][0] > pin.key:
            pin.key, pin.advanced_ms = lines[-1][0], self._clock.monotonic_ms()
        return lines

    def bytes_at(self, id: str, position: int, size_bytes: int | None = None) -> bytes:
        """Return some bytes of the stream of files, so many at most; none at its end. Raises
        NoSnapshotError."""
        pin = self._pin(id)
        size = min(size_bytes or CHUNK_BYTES, CHUNK_BYTES)
        data: bytes = self._read(pin, lambda: pin.snapshot.bytes_at(position, size))
        pin.sent_bytes += len(data)
        if position + len(data) > pin.position:
            pin.position, pin.advanced_ms = position + len(data), self._clock.monotonic_ms()
        return data

    def _read(self, pin: Pin, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except DiskError as error:
            # Damage is this node's own matter: it meets it when it needs these bytes.
            self.end(pin.id)
            raise NoSnapshotError(str(error)) from error

    def pause_s(self, sent_bytes: int) -> float:
        """Return how long an answer of so many bytes must wait, so that the rate is kept."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            at_ms = max(now_ms, self._free_at_ms)
            self._free_at_ms = at_ms + -(-sent_bytes * 1000 // self._bytes_per_s)
        return (at_ms - now_ms) / 1000

    def shown(self) -> list[dict[str, Any]]:
        """Return who copies this node: how far it is, with which rate and estimate."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            pins = list(self._pins.values())
        return [
            {
                "fetcher": pin.fetcher,
                "age_ms": now_ms - pin.began_ms,
                "idle_ms": now_ms - pin.used_ms,
                "sent_bytes": pin.sent_bytes,
                "bytes": pin.snapshot.stream.size_bytes,
                "position": pin.position,
                **rate_and_rest(
                    pin.sent_bytes,
                    pin.snapshot.stream.size_bytes - pin.position,
                    now_ms - pin.began_ms,
                ),
            }
            for pin in pins
        ]

    def end(self, id: str) -> None:
        """Let go of a snapshot; idempotent."""
        self._end_all(lambda pin: pin.id == id)

    def give_way(self) -> None:
        """Let go of all, because the disk is short."""
        self._end_all(lambda pin: True)

    def stop(self) -> None:
        """Let go of all and begin no other; nobody uses the replica afterwards."""
        with self._beginning:
            self._is_stopped = True
        self.give_way()

    def _pin(self, id: str) -> Pin:
        with self._lock:
            pin = self._pins.get(id)
            if pin is None:
                raise NoSnapshotError("there is no such snapshot, or it has ended")
            pin.used_ms = self._clock.monotonic_ms()
            return pin

    def _watch(self, pin: Pin) -> None:
        pin.timer = threading.Timer(IDLE_S / 4, self._look, [pin])
        pin.timer.daemon = True
        pin.timer.start()

    def _look(self, pin: Pin) -> None:
        if _is_over(pin, self._clock.monotonic_ms()):
            self.end(pin.id)
            return
        with self._lock:
            if pin.id in self._pins:
                self._watch(pin)

    def _end_all(self, which: Callable[[Pin], bool]) -> None:
        with self._lock:
            ended = [self._pins.pop(pin.id) for pin in [*self._pins.values()] if which(pin)]
        for pin in ended:
            if pin.timer is not None:
                pin.timer.cancel()
            pin.snapshot.close()
            with self._replica.changed:
                self._replica.wheel.snapshots.release()
            log.info("snapshot_ended", fetcher=pin.fetcher, sent_bytes=pin.sent_bytes)


def _is_over(pin: Pin, now_ms: int) -> bool:
    """Return whether nobody needs this snapshot any more, or had it for long enough."""
    age_s, unused_s, unmoved_s = (
        (now_ms - then_ms) / 1000 for then_ms in (pin.began_ms, pin.used_ms, pin.advanced_ms)
    )
    return unused_s >= IDLE_S or age_s >= PIN_MAX_S or (age_s >= PIN_S and unmoved_s >= IDLE_S)


def rate_and_rest(done_bytes: int, left_bytes: int, took_ms: int) -> dict[str, int | None]:
    """Return the rate so far, and the seconds that are left at that rate; None if unknown."""
    rate = done_bytes * 1000 // max(1, took_ms)
    return {"bytes_per_s": rate, "left_s": -(-left_bytes // rate) if rate else None}
