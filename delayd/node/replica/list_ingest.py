"""Ingest of records in a list: what the fast path takes becomes frames, the rest is parsed."""

from collections.abc import Iterator, Sequence

from delayd.bus import Record
from delayd.node.replica.fast_ingest import FastIngest
from delayd.node.replica.ingest_batch import IngestBatch
from delayd.node.replica.request_rates import asked_topic
from delayd.node.replica.switching import behind
from delayd.node.replica.told import Rejected
from delayd.request import Reject, Request, RequestLimits, parse


class ListPiece:
    """Records that are ingested together; see `Piece`."""

    def __init__(self, records: Sequence[Record], fast: FastIngest, limits: RequestLimits) -> None:
        self._records = records
        self._frames = fast.pack(records)
        self._others = dict[int, Request | Reject]()
        for place, frame in enumerate(self._frames):
            if frame and limits.full and frame.topic in limits.full.get(frame.partition, ()):
                frame = self._frames[place] = None
            if frame is None:
                self._others[place] = asked = parse(records[place], limits)
                if isinstance(asked, Request):
                    limits = behind(limits, records[place], asked)
        self.limits = limits
        self.count = len(records)
        self.epochs = {record[0]: record[2] for record in records}

    def add_to(self, batch: IngestBatch) -> None:
        """Apply the rules to the records."""
        batch.add_all(self._frames, lambda place: (self._records[place], self._others[place]))

    def asked(self) -> Iterator[tuple[str, int]]:
        """Yield target and append time of each request that is taken."""
        for frame in self._frames:
            if frame is not None:
                yield frame.topic, frame.append_ms
        for place, outcome in self._others.items():
            if (topic := asked_topic(outcome)) is not None:
                yield topic, self._records[place].append_ms

    @property
    def rejected(self) -> list[Rejected]:
        """Return what gets a dead letter."""
        return [
            Rejected(self._records[place].partition, self._records[place].offset, outcome)
            for place, outcome in self._others.items()
            if isinstance(outcome, Reject)
        ]
