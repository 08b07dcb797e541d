"""Reading a client in C: what `Consumer.consume` of confluent-kafka gives, without an object a
record.

Its client has neither logger nor any other callback (`delayd.runtime.native.kafka` says why):
librdkafka's log lines are fetched with the records.
"""

from typing import NamedTuple

import structlog
from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException

from delayd.bus.confluent.settings import Properties
from delayd.bus.flat import FlatRecords
from delayd.runtime.native import Library
from delayd.runtime.native.flat import Surveyor
from delayd.runtime.native.kafka import FetchError, KafkaReader, readable

log = structlog.get_logger()


class FlatFault(NamedTuple):
    """What a message with an error says, as `confluent_kafka.Message` does."""

    fault: KafkaError
    at_partition: int
    at_offset: int

    def error(self) -> KafkaError:
        """Return the error."""
        return self.fault

    def partition(self) -> int:
        """Return the partition it is about."""
        return self.at_partition

    def offset(self) -> int:
        """Return the offset it is about."""
        return self.at_offset


class FlatMessages:
    """Messages of one fetch."""

    def __init__(self, records: FlatRecords, faults: list[FlatFault], count: int) -> None:
        self.records = records
        self.faults = faults
        """Ends of partitions, too."""
        self._count = count

    def __len__(self) -> int:
        return self._count


def open_flat(library: Library, properties: Properties) -> "FlatReader | None":
    """Return a reader of a new client; None if this librdkafka cannot be read in C. A client whose
    properties are wrong cannot be made here either, and is left to who says what is wrong."""
    try:
        return FlatReader(library, properties)
    except (KafkaException, OSError) as error:
        log.warning("native_reader_refused", error=str(error))
        return None


class FlatReader:
    """One client, and how it is read."""

    def __init__(self, library: Library, properties: Properties) -> None:
        self._logger = properties.get("logger")
        kept = readable(library, properties)
        self._surveyor = Surveyor(library)
        self._reader = KafkaReader(library, lambda: Client(kept))
        self.client: Client = self._reader.client

    def consume(self, messages_max: int, timeout_ms: int) -> FlatMessages:
        """Return up to so many messages; wait for the first one. Raises KafkaException."""
        try:
            fetched = self._reader.fetch(messages_max, timeout_ms)
        except FetchError as error:
            raise KafkaException(KafkaError(error.code)) from error
        self._pass_on_log()
        records = FlatRecords(self._surveyor, fetched.records)
        faults = [
            FlatFault(KafkaError(event.code, event.text), event.partition, event.offset)
            for event in fetched.events
        ]
        return FlatMessages(records, faults, fetched.messages)

    def close(self) -> None:
        """Close the client."""
        self._pass_on_log()
        self._reader.close()

    def _pass_on_log(self) -> None:
        for severity, line in self._reader.log_lines():
            if self._logger is not None:
                self._logger.log(severity, "%s", line)
