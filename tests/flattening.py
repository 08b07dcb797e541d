"""A reader whose records are made flat, as a driver gives them that reads in C."""

from collections.abc import Sequence
from typing import Any

from delayd.bus import Consumer, Record
from delayd.bus.flat import FlatRecords, flattened
from delayd.bus.unreadable import UnreadableBatch
from delayd.runtime.native.flat import Surveyor


class FlatteningConsumer:
    """Hands out flat records, as a driver does that reads in C."""

    def __init__(self, consumer: Consumer, surveyor: Surveyor) -> None:
        self._consumer = consumer
        self._surveyor = surveyor

    def poll(self, records_max: int, timeout_ms: int) -> Sequence[Record]:
        """See the port."""
        records = self._consumer.poll(records_max, timeout_ms)
        if any(isinstance(record, UnreadableBatch) for record in records):
            return records  # of the careful reader
        return FlatRecords(self._surveyor, flattened(records)) if records else []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)
