"""A piece: records on their way into a replica, which takes all of them or none."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from delayd.node.replica.ingest_batch import IngestBatch
from delayd.request import RequestLimits


class Piece(Protocol):
    """What the records of a piece say of themselves."""

    @property
    def limits(self) -> RequestLimits:
        """By which the records behind it are ruled."""

    @property
    def count(self) -> int:
        """How many records these are."""

    @property
    def epochs(self) -> Mapping[int, int]:
        """The leader epoch of the last record, by partition."""

    def asked(self) -> Iterable[tuple[str, int]]:
        """As `Asking` has it."""

    def add_to(self, batch: IngestBatch) -> None:
        """Apply the rules to the records."""
