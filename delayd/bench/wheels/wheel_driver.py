"""A wheel driven as a node drives it, and the messages: what ingest would hand to the wheel.

All calls that the benchmark makes of the wheel are here: ingest, checkpoints, the passing of time,
retention. Values have 300 random bytes; each message has two headers, one in ten an id; ids come in
random order. The n-th message has offset `n // PARTITIONS` of partition `n % PARTITIONS`, so that
the offsets in a wheel say where to go on.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from delayd.bench.load import USER_HEADERS, VALUE_BYTES
from delayd.bus import Headers
from delayd.request import Op, Request, message_body
from delayd.wheel import Frame, FrameKind, Progress
from delayd.wheel.id_memory import id_name
from delayd.wheel.layout import hour_of
from delayd.wheel.storage import Wheel, WheelStats
from replication.frontier import Frontier
from replication.ids import NOTHING, IdState, LiveMessage
from replication.rank import SLOT_MS, Rank, lane_of, slot_of
from replication.settings import LANES

PARTITIONS: Final = 4
SEED: Final = 1
VALUES: Final = 64
TOPICS: Final = 16
HEADERS: Final[Headers] = list(USER_HEADERS)
HEADER_BYTES: Final = sum(len(name) + len(value) for name, value in USER_HEADERS)
ID_EVERY: Final = 10
ID_MODULO: Final = 1 << 64
SCATTER: Final = 0x9E3779B97F4A7C15
"""Odd, so that no two numbers below ID_MODULO have one id."""
DIGEST: Final = b"d" * 16
ID_MEMORY_MS: Final = 3_600_000
READ_FRAMES: Final = 10_000
"""Frames to read at once: as many as a step delivers."""


class Batch(NamedTuple):
    """What one round of ingest stores."""

    frames: list[Frame]
    ids: list[tuple[int, bytes, IdState]]
    """Partition, name, state."""
    message_bytes: int
    """Of keys, values and headers as a producer sent them."""


class Load:
    """An endless row of messages, due at any time of `span_ms` from `first_due_ms` on."""

    def __init__(self, first: int, *, first_due_ms: int, span_ms: int) -> None:
        """`first`: the number of the first message. All are appended at `first_due_ms`."""
        self._next = first
        self._first_due_ms = first_due_ms
        self._span_ms = span_ms
        self._random = Random(f"{SEED} {first}")
        values = Random(SEED)
        self._values = [values.randbytes(VALUE_BYTES) for _ in range(VALUES)]
        names = [f"orders-{number}" for number in range(TOPICS)]
        self._topics = [(name, lane_of(name, LANES)) for name in names]

    @property
    def offsets(self) -> tuple[int, ...]:
        """Return 1 + the last offset taken, by partition."""
        return tuple((self._next + PARTITIONS - 1 - p) // PARTITIONS for p in range(PARTITIONS))

    def take(self, count: int) -> Batch:
        """Return the next messages."""
        frames = []
        ids = []
        key_bytes = 0
        draw = self._random.random
        for number in range(self._next, self._next + count):
            partition = number % PARTITIONS
            offset = number // PARTITIONS
            due_ms = self._first_due_ms + int(draw() * self._span_ms)
            topic, lane = self._topics[number % TOPICS]
            id = f"order-{number * SCATTER % ID_MODULO:016x}"
            key = id.encode()
            key_bytes += len(key)
            has_id = number % ID_EVERY == 0
            request = Request(
                Op.SCHEDULE,
                topic,
                due_ms,
                due_ms,
                key,
                self._values[number % VALUES],
                HEADERS,
                None,
                id if has_id else None,
                DIGEST if has_id else b"",
            )
            body = message_body(request)
            append_ms = self._first_due_ms
            frames.append(
                Frame(due_ms, partition, offset, lane, FrameKind.MESSAGE, append_ms, body)
            )
            if has_id:
                live = LiveMessage(due_ms, offset, lane, DIGEST)
                ids.append((partition, id_name(id), IdState((live,), (), -1)))
        self._next += count
        return Batch(frames, ids, key_bytes + count * (VALUE_BYTES + HEADER_BYTES))


class DrivenWheel:
    """One wheel. `now_ms` is what it is told of the time."""

    def __init__(self, directory: Path, now_ms: int) -> None:
        """Open it, or make a new one."""
        self._wheel = Wheel.open(directory, partitions=PARTITIONS)
        self._now_ms = now_ms
        progress = self._wheel.progress
        self.offsets = (0,) * PARTITIONS if progress is None else progress.offsets

    @property
    def stored(self) -> int:
        """Return how many messages were ever stored."""
        return sum(self.offsets)

    @property
    def stats(self) -> WheelStats:
        """Return what it holds."""
        return self._wheel.stats()

    def store(self, batch: Batch, offsets: tuple[int, ...]) -> None:
        """Take in what ingest decided; `offsets` are those behind it."""
        ids = self._wheel.ids
        for partition, name, _ in batch.ids:
            assert ids.state(partition, name) == NOTHING, "an id of the load was used before"
        self._wheel.append(batch.frames)
        self._wheel.split_some()
        for partition, name, state in batch.ids:
            ids.remember(partition, name, state, ID_MEMORY_MS)
        self.offsets = offsets

    def checkpoint(self) -> None:
        """Make a whole checkpoint, synced, in this thread, as the ingest thread does."""
        while self._wheel.write_out():
            pass
        log_ms = (self._now_ms,) * PARTITIONS
        pending = self._wheel.begin_checkpoint(
            Progress(self.offsets, (0,) * PARTITIONS, log_ms, b"")
        )
        pending.sync()
        self._wheel.finish_checkpoint(pending)

    def pass_time(self, now_ms: int) -> None:
        """Set the time, and do all that the wheel does in the background because of that."""
        self._now_ms = now_ms
        self._wheel.advance(now_ms)
        while self._wheel.split_some():
            pass

    def forget_due(self) -> None:
        """Forget all slots before now: they are delivered, and old enough."""
        slot = slot_of(self._now_ms)
        cursor = Rank(self._now_ms, 0, 0)
        cut = Frontier(0, (cursor,) * LANES, self.offsets, (-1,) * PARTITIONS, 1, 1)
        self._wheel.ids.forget(cut, (self._now_ms,) * PARTITIONS, self._now_ms)
        hours = [hour for hour in self._wheel.hours() if hour < hour_of(slot)]
        self._wheel.forget(self._wheel.slots(0, slot - 1), hours)

    def read_slot(self, slot: int) -> Iterator[list[Frame]]:
        """Yield the messages of a slot as frames, in rank order."""
        index = self._wheel.index(slot)
        assert index is not None, f"slot {slot} holds nothing"
        while not index.is_complete:
            index.advance(READ_FRAMES)
        since, end = Rank(slot * SLOT_MS, 0, 0), Rank((slot + 1) * SLOT_MS, 0, 0)
        while since < end:
            run = index.run(since, READ_FRAMES)
            yield self._wheel.read(run.entries)
            since = run.until

    def close(self) -> None:
        """Close it without a checkpoint."""
        self._wheel.close()
