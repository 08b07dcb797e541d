"""What the new cluster made of a move: what its buffer holds, and which messages it refused.

The buffer is read back, committed records only, at the places that the progress names. What
became of a request is in the dead letters (rejects, conflicts) and the receipts (duplicates), which
the new master writes as soon as it has passed it.
"""

import json
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from delayd.bus import Bus, Record
from delayd.bus.reading import read_between
from delayd.cluster.topics import last_frontier
from delayd.commands.move.progress import Progress
from delayd.commands.move.requests import content_of
from delayd.request import DIED, Verdict
from delayd.runtime.clock import Clock
from replication.settings import Settings

RECORDS_MAX: Final = 10_000
POLL_S: Final = 0.2


class NotTaken(NamedTuple):
    """A message that is not pending in the new cluster."""

    id: str | None
    source: str
    """In the new cluster."""
    why: str
    """`conflict`, `duplicate`, or the reason of the reject."""
    detail: str


@dataclass(slots=True)
class Accepted:
    """What the new cluster has said."""

    is_judged: bool = False
    """Its master has passed all that was moved; else more may follow."""
    not_taken: dict[str, NotTaken] = field(default_factory=dict)
    """By source."""


class Places:
    """The records of the buffer that a move has written."""

    def __init__(self, progress: Progress) -> None:
        self._runs: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for partition, first, last in progress.places:
            self._runs[partition].append((first, last))

    @property
    def ends(self) -> dict[int, int]:
        """Return by partition the offset behind the last one."""
        return {partition: runs[-1][1] + 1 for partition, runs in self._runs.items()}

    @property
    def starts(self) -> dict[int, int]:
        """Return by partition the first offset."""
        return {partition: runs[0][0] for partition, runs in self._runs.items()}

    def holds(self, partition: int, offset: int) -> bool:
        """Return whether the record at this place was moved."""
        runs = self._runs.get(partition, [])
        at = bisect_right(runs, (offset, 1 << 63)) - 1
        return at >= 0 and runs[at][0] <= offset <= runs[at][1]

    def hold_source(self, source: str) -> bool:
        """Return whether the request with this source was moved."""
        partition, _, offset = source.partition("/")
        return source.count("/") == 1 and self.holds(int(partition), int(offset))


def read_back(
    bus: Bus, settings: Settings, progress: Progress, clock: Clock, timeout_ms: int
) -> tuple[int, int]:
    """Return how many records of the move the buffer holds, and the sum of their contents.

    Raises KafkaUnreachableError, ConsumerError.
    """
    places = Places(progress)
    count = content = 0
    for records in read_between(
        bus,
        settings.buffer.name,
        places.starts,
        places.ends,
        clock,
        records_max=RECORDS_MAX,
        timeout_ms=timeout_ms,
    ):
        for record in records:
            if places.holds(record.partition, record.offset):
                count += 1
                content += content_of(record.key, record.value, record.headers)
    return count, content


def answers_end(
    bus: Bus, settings: Settings, timeout_ms: int
) -> tuple[dict[int, int], dict[int, int]]:
    """Return where the dead letters and the receipts end now, by partition: what the master says of
    a request that is written later lies behind that. Raises KafkaUnreachableError."""
    with closing(bus.cluster()) as kafka:
        return (
            kafka.end_offsets(settings.dead.name, timeout_ms, committed=True),
            kafka.end_offsets(settings.receipts.name, timeout_ms, committed=True),
        )


def accepted(
    bus: Bus, settings: Settings, progress: Progress, clock: Clock, timeout_ms: int, wait_ms: int
) -> Accepted:
    """Wait until the new cluster's master has passed all that was moved, `wait_ms` at most; return
    what it has said of it by then. Raises KafkaUnreachableError, ConsumerError."""
    places = Places(progress)
    deadline_ms = clock.monotonic_ms() + wait_ms
    while not (is_judged := _has_passed(bus, settings, places, timeout_ms)):
        if clock.monotonic_ms() >= deadline_ms:
            break
        threading.Event().wait(POLL_S)
    found = Accepted(is_judged)
    begun = progress.begun
    for record in _records(bus, settings.dead.name, begun.dead, clock, timeout_ms):
        headers = dict(record.headers)
        source = _text(headers.get("delayd-source"))
        why = _text(headers.get("delayd-reason"))
        if why not in DIED and places.hold_source(source):
            id = headers.get("delayd-id")
            detail = _text(headers.get("delayd-detail"))
            found.not_taken[source] = NotTaken(
                None if id is None else _text(id), source, why, detail
            )
    for record in _records(bus, settings.receipts.name, begun.receipts, clock, timeout_ms):
        said = json.loads(record.value or b"{}")
        if said.get("verdict") == Verdict.DUPLICATE.slug and places.hold_source(said["source"]):
            found.not_taken[said["source"]] = NotTaken(
                said["id"], said["source"], Verdict.DUPLICATE.slug, said["detail"]
            )
    return found


def _has_passed(bus: Bus, settings: Settings, places: Places, timeout_ms: int) -> bool:
    seen = last_frontier(bus, settings.frontier.name, timeout_ms)
    if seen is None:
        return False
    offsets = seen.record.frontier.offsets
    return all(offsets[partition] >= end for partition, end in places.ends.items())


def _records(
    bus: Bus, topic: str, since: Mapping[int, int], clock: Clock, timeout_ms: int
) -> Iterator[Record]:
    """Yield the committed records of a topic from these offsets on."""
    with closing(bus.cluster()) as kafka:
        first = kafka.start_offsets(topic, timeout_ms)
        ends = kafka.end_offsets(topic, timeout_ms, committed=True)
    starts = {partition: max(since.get(partition, 0), first[partition]) for partition in ends}
    for records in read_between(
        bus, topic, starts, ends, clock, records_max=RECORDS_MAX, timeout_ms=timeout_ms
    ):
        yield from records


def _text(content: bytes | None) -> str:
    return (content or b"").decode(errors="replace")
