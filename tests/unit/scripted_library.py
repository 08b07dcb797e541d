"""A client's driver without Kafka."""

from delayd.bus import Ack
from delayd.client.driver import Failure, OnOutcome, PlainRecord


class Library:
    """A driver that answers each record with an outcome that the test chose."""

    def __init__(self, outcome: Ack | Failure) -> None:
        self.outcome = outcome
        self.sent: list[PlainRecord] = []

    def sender(self) -> "Library":
        return self

    def refusal(self, record: PlainRecord) -> None: ...

    def cluster(self, owner: str) -> "Library":
        return self

    def partition_count(self, topic: str, timeout_ms: int) -> int:
        return 3

    def send(self, record: PlainRecord, on_outcome: OnOutcome) -> bool:
        self.sent.append(record)
        on_outcome(self.outcome)
        return True

    def close(self, timeout_ms: int = 0) -> None: ...
