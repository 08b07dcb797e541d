"""What users and masters have committed to the buffer so far: how far it goes, and when it is due.

Each record is read once: a run of months asks often.
"""

from bisect import bisect_left, insort

from log_rules import planned_of

from delayd.bus import Record
from delayd.bus.memory import MemoryKafka

BUFFER = "delayd-buffer"


class Backlog:
    """The buffer of one run."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._kafka = kafka
        self._read_to: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._dues_ms: list[int] = []

    def last_offsets(self) -> dict[int, int]:
        """Return the offset of the last committed record, by partition that has one."""
        self._read()
        return self._last

    def last_due_ms(self, before_ms: int) -> int:
        """Return the latest due time before this one; 0 if there is none. What came overdue is due
        when it was stamped."""
        self._read()
        place = bisect_left(self._dues_ms, before_ms)
        return self._dues_ms[place - 1] if place else 0

    def _read(self) -> None:
        for log in self._kafka.topics[BUFFER].partitions:
            since = self._read_to.get(log.number, log.start_offset)
            records, self._read_to[log.number] = log.read(since, 10**9)
            for record in records:
                self._last[log.number] = record.offset
                insort(self._dues_ms, _due_ms(record))


def _due_ms(record: Record) -> int:
    headers = {name: (content or b"").decode() for name, content in record.headers}
    planned_ms = planned_of(headers, f"{record.partition}/{record.offset}")
    due = int(headers.get("delayd-next-due", planned_ms))
    return max(record.append_ms, due)  # far too, if a broker's clock had leapt
