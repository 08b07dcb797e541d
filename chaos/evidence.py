"""What the topics hold, read by kafka-python as any read_committed consumer sees them.

The buffer is read too: what the brokers committed there, and only that, are the requests. So it
does not matter what a producer believes of a request whose acknowledgement was lost.

Invariant: a record is read once; `read` returns when it has all that was committed at its call.
"""

import warnings
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

READ_TIMEOUT_MS: Final = 60_000
POLL_MS: Final = 50
POLL_RECORDS_MAX: Final = 5_000


class Logged(NamedTuple):
    """A committed record. `append_ms` is the broker's clock if the topic has LogAppendTime."""

    topic: str
    partition: int
    offset: int
    append_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def place(self) -> str:
        """`partition/offset`; of a record of the buffer, its source."""
        return f"{self.partition}/{self.offset}"

    def header(self, name: str) -> str | None:
        """The one value of a header as text; None if it is not there; ValueError if repeated."""
        found = [content for header, content in self.headers if header == name]
        if len(found) > 1:
            raise ValueError(f"{name} stands there {len(found)} times")
        return (found[0] or b"").decode() if found else None


class Evidence:
    """All records of delayd's topics and of the targets so far."""

    def __init__(
        self, bootstrap: str, *, buffer: str, dead: str, receipts: str, targets: Sequence[str]
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # kafka-python's own code; not ours to mend
            from kafka import KafkaConsumer, TopicPartition
        self._partition_type = TopicPartition
        self._consumer: Any = KafkaConsumer(
            bootstrap_servers=bootstrap.split(","),
            group_id=None,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            allow_auto_create_topics=False,
            fetch_max_wait_ms=20,
            max_poll_records=POLL_RECORDS_MAX,
            metadata_max_age_ms=1_000,
        )
        self._topics = (buffer, dead, receipts, *targets)
        self._of_topic: dict[str, list[Logged]] = {topic: [] for topic in self._topics}
        self.requests = self._of_topic[buffer]
        self.dead = self._of_topic[dead]
        self.receipts = self._of_topic[receipts]
        self.targets = tuple(targets)

    @property
    def delivered(self) -> list[Logged]:
        """The records of all targets."""
        return [record for topic in self.targets for record in self.of(topic)]

    def of(self, topic: str) -> list[Logged]:
        """The records of one target."""
        return self._of_topic[topic]

    def read(self) -> None:
        """Read on; topics that do not exist yet are passed over. TimeoutError if it takes long."""
        partitions = self._assign()
        ends: dict[Any, int] = self._consumer.end_offsets(partitions)  # the stable ends
        polls = 0
        while any(self._consumer.position(each) < end for each, end in ends.items()):
            polled = self._consumer.poll(timeout_ms=POLL_MS)
            polls = 0 if polled else polls + 1
            if polls * POLL_MS > READ_TIMEOUT_MS:
                raise TimeoutError("the topics could not be read to their ends")
            for records in polled.values():
                for record in records:
                    self._of_topic[record.topic].append(
                        Logged(
                            record.topic,
                            record.partition,
                            record.offset,
                            record.timestamp,
                            record.key,
                            record.value,
                            tuple(record.headers),
                        )
                    )

    def close(self) -> None:
        """Give back the sockets."""
        self._consumer.close()

    def _assign(self) -> list[Any]:
        """All partitions that exist by now; those known before go on where they stood."""
        known = self._consumer.assignment()
        found = set(known)
        for topic in self._topics:
            numbers = self._consumer.partitions_for_topic(topic) or ()
            found |= {self._partition_type(topic, number) for number in numbers}
        if found != known:
            positions = {each: self._consumer.position(each) for each in known}
            self._consumer.assign(sorted(found))
            for each in found:
                if each in positions:
                    self._consumer.seek(each, positions[each])
                else:
                    self._consumer.seek_to_beginning(each)
        return sorted(found)
