"""Chunks: what one step sends to topics that take only small batches.

Source: docs/design/frontier.md, "Targets".
"""

from collections import Counter
from collections.abc import Callable

from delayd.bus import Producer
from delayd.node.delivery.commits import FLUSH_TIMEOUT_MS
from delayd.node.targets.checks import CHUNKS_MAX, Targets


class Chunks:
    """Of one step."""

    def __init__(
        self, targets: Targets, producer: Producer, note_progress: Callable[[], None]
    ) -> None:
        self._targets = targets
        self._producer = producer
        self._note_progress = note_progress
        self._unflushed_bytes: dict[str, int] = {}
        self._chunks: Counter[str] = Counter()

    def make_room(self, topic: str, size_bytes: int) -> bool:
        """Send chunks that fit to a topic that takes only small batches, for Kafka judges whole
        batches. False if the step has sent it enough of them. Raises ProducerError."""
        chunk_bytes_max = self._targets.chunk_bytes_max(topic)
        if chunk_bytes_max is None:
            return True
        waiting = self._unflushed_bytes.get(topic, 0)
        if waiting and waiting + size_bytes > chunk_bytes_max:
            if self._chunks[topic] >= CHUNKS_MAX:
                return False
            self._chunks[topic] += 1
            self._producer.flush(FLUSH_TIMEOUT_MS)
            self._note_progress()
            self._unflushed_bytes.clear()
            waiting = 0
        self._unflushed_bytes[topic] = waiting + size_bytes
        return True
