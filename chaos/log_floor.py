"""The time as of which a record is judged: no earlier than its partition's log says. Pure.

Independent of the product, as the reference model that uses it.
Source: docs/design/frontier.md, "Log time".
"""

from collections import Counter

from chaos.records import Logged

TRAIL_MS = 10 * 60 * 1000
PROOF_MS = 2 * 60 * 60 * 1000


class LogFloor:
    """Feed `take` with the records of a buffer, in order in each partition."""

    def __init__(self) -> None:
        self._floor_ms: Counter[int] = Counter()
        """By partition: no record is judged as of an earlier time. 10 minutes behind the times of
        its log, and behind a time that is further ahead until the log has been beyond it for 2
        hours."""
        self._leap_ms: dict[int, int] = {}
        """By partition: the first of such times."""

    def take(self, record: Logged) -> None:
        """Note the time of the next record."""
        partition, append_ms = record.partition, record.append_ms
        leap_ms = self._leap_ms.pop(partition, append_ms)
        if append_ms <= self._floor_ms[partition] + 2 * TRAIL_MS:
            self._floor_ms[partition] = max(self._floor_ms[partition], append_ms - TRAIL_MS)
        elif append_ms < leap_ms + PROOF_MS:
            self._leap_ms[partition] = min(leap_ms, append_ms)
        elif append_ms <= leap_ms + PROOF_MS + TRAIL_MS:
            self._floor_ms[partition] = append_ms - TRAIL_MS
        else:
            self._floor_ms[partition] = leap_ms - TRAIL_MS
            self._leap_ms[partition] = append_ms

    def as_of_ms(self, record: Logged) -> int:
        """Return the time as of which the record that was taken last is judged."""
        return max(record.append_ms, self._floor_ms[record.partition])
