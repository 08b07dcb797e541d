"""Writing any record that Kafka can carry: null header values, names that no library would write.

Not here: what the records mean.
"""

from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias

from confluent_kafka import Producer
from kafka import KafkaProducer
from nodes import HANGS_S

RawHeaders: TypeAlias = list[tuple[str | bytes, bytes | None]]
"""A name is bytes where it is not UTF-8 or holds a NUL."""

RECORD_BYTES_MAX = 2_000_000
"""Above what the brokers take: they shall judge."""


class Written(NamedTuple):
    """Where a record is, as the broker acknowledged it."""

    partition: int
    offset: int
    append_ms: int

    @property
    def source(self) -> str:
        """Its identity."""
        return f"{self.partition}/{self.offset}"


class RawWriter:
    """Writes to one topic; each record to a partition that the caller names."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._usual = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.max.bytes": RECORD_BYTES_MAX,
                "queue.buffering.max.messages": 200_000,
            }
        )
        # librdkafka takes names as C strings, kafka-python as whatever encodes itself.
        self._odd: Any = KafkaProducer(
            bootstrap_servers=bootstrap, acks="all", max_request_size=RECORD_BYTES_MAX
        )

    def send(
        self, partition: int, key: bytes | None, value: bytes | None, headers: RawHeaders
    ) -> "Future[Written]":
        """Write a record; the future fails if the broker does not take it.

        With odd names, nulls that kafka-python refuses become empty.
        """
        done: Future[Written] = Future()
        if any(isinstance(name, bytes) for name, _ in headers):
            sent = self._odd.send(
                self._topic,
                key=key,
                value=b"" if key is None and value is None else value,
                partition=partition,
                headers=[
                    (_RawName(name) if isinstance(name, bytes) else name, content or b"")
                    for name, content in headers
                ],
            )
            sent.add_callback(
                lambda at: done.set_result(Written(at.partition, at.offset, at.timestamp))
            )
            sent.add_errback(done.set_exception)
            return done

        def acknowledged(error: Any, message: Any) -> None:
            if error is not None:
                done.set_exception(AssertionError(f"not written: {error}"))
            else:
                place = (message.partition(), message.offset(), message.timestamp()[1])
                done.set_result(Written(*place))

        while True:
            try:
                self._usual.produce(
                    self._topic,
                    key=key,
                    value=value,
                    headers=[(str(name), content) for name, content in headers],
                    partition=partition,
                    on_delivery=acknowledged,
                )
                self._usual.poll(0)
                return done
            except BufferError:
                self._usual.poll(0.1)

    def flush(self) -> None:
        """Wait until everything is acknowledged, or failed."""
        assert self._usual.flush(HANGS_S) == 0, "the broker does not answer"
        self._odd.flush(HANGS_S)

    def close(self) -> None:
        """End its threads."""
        self._odd.close(HANGS_S)
        del self._usual


class _RawName(str):
    """A header name that kafka-python writes as these bytes."""

    raw: bytes

    def __new__(cls, raw: bytes) -> "_RawName":
        name = str.__new__(cls, raw.decode(errors="replace"))
        name.raw = raw
        return name

    def encode(self, *_: Any) -> bytes:
        return self.raw
