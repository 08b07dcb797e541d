"""Writing to a producer in C: what `Producer.produce` of confluent-kafka takes, without an object a
record.

The producer keeps its logger and all other callbacks, and is polled as ever: in no call of these
does librdkafka call Python.
"""

from collections.abc import Callable

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from delayd.bus.confluent.settings import Properties
from delayd.bus.flat import Outgoing
from delayd.runtime.native import Library
from delayd.runtime.native.kafka import known
from delayd.runtime.native.writing import Failure, KafkaWriter

log = structlog.get_logger()


class WriteRefusedError(Exception):
    """librdkafka does not take a record to this topic."""

    def __init__(self, topic: str, error: KafkaError) -> None:
        super().__init__(error.str())
        self.topic = topic
        self.error = error


class FlatWriter:
    """How one producer is written to."""

    def __init__(self, writer: KafkaWriter) -> None:
        self._writer = writer

    def write(self, records: Outgoing) -> Outgoing:
        """Hand over records; return those that are left, if the local queue is full.

        Raises WriteRefusedError, and BufferError if there was not even room for one."""
        topics, data, begin, end = records
        written = self._writer.write(data, begin, end, topics)
        if written.error not in (0, KafkaError._QUEUE_FULL):
            raise WriteRefusedError(written.topic, KafkaError(written.error, written.why))
        if written.error and not written.bytes:
            raise BufferError(written.why)
        return records._replace(begin=begin + written.bytes)

    def failures(self) -> list[Failure]:
        """Return what was lost of all that was handed over."""
        return self._writer.failures()


def made(
    library: Library | None, make: Callable[[Properties], Producer], properties: Properties
) -> tuple[Producer, FlatWriter | None]:
    """Return a new producer, and its writer; None without a library, and where this librdkafka
    cannot be written to in C. Raises KafkaException if the properties are wrong."""
    if library is not None:
        try:
            writer = KafkaWriter(library, lambda: make(known(library, properties)))
        except (KafkaException, OSError) as error:
            log.warning("native_writer_refused", error=str(error))
        else:
            return writer.take_client(), FlatWriter(writer)
    return make(properties), None
