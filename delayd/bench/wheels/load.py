"""The messages of the benchmark: frames and states of ids, as ingest would hand them to the wheel.

Values have 300 random bytes; each message has two headers, one in ten an id; ids come in random
order. The n-th message has offset `n // PARTITIONS` of partition `n % PARTITIONS`, so that the
offsets in a wheel say where to go on.
"""

from random import Random
from typing import Final, NamedTuple

from delayd.bench.load import USER_HEADERS, VALUE_BYTES
from delayd.bus import Headers
from delayd.request import Op, Request, message_body
from delayd.wheel import Frame, FrameKind
from delayd.wheel.id_memory import id_name
from replication.ids import IdState, LiveMessage
from replication.rank import lane_of
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
