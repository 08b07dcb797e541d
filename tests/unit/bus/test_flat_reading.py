"""Reading in C, against librdkafka's own mock brokers: memory, closing, and what is not a record.

Whether the records are right, and committed ones only, real brokers say
(`tests/conformance/test_bus_flat.py`).
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer as Client
from confluent_kafka import Producer

from delayd.bus import Headers, Position, Record
from delayd.bus.confluent.consumer import ConfluentConsumer
from delayd.bus.confluent.settings import Settings
from delayd.runtime import native
from delayd.runtime.native.kafka import KafkaReader, readable

TOPIC = "buffer"
RECORDS = 500
TIMEOUT_S = 30
POLLS_MAX = 600


class Mock:
    """One mock broker with a topic of two partitions."""

    def __init__(self) -> None:
        self._producer = Producer(
            {"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0}
        )
        metadata = self._producer.list_topics(timeout=TIMEOUT_S)
        [broker] = metadata.brokers.values()
        self.bootstrap = f"{broker.host}:{broker.port}"

    def fill(self) -> list[Record]:
        """Write records of two partitions; return them as they must be read, but for time and
        epoch."""
        written = []
        for number in range(RECORDS):
            headers: Headers = [("h", b"x" * (number % 50)), ("null", None), ("", b"")]
            sent: list[tuple[str, str | bytes | None]] = [*headers]
            key, value = (
                (None, b"", b"k")[number % 3],
                (b"v" * (number % 700), None)[number % 7 == 0],
            )
            partition, offset = number % 2, number // 2
            written.append(Record(partition, offset, 0, 0, key, value, headers))
            self._producer.produce(TOPIC, value, key, partition=partition, headers=sent)
        assert self._producer.flush(TIMEOUT_S) == 0
        return sorted(written)

    def properties(self) -> dict[str, Any]:
        return Settings(self.bootstrap, "delayd", {}, None).consumer() | {"check.crcs": False}


@pytest.fixture(scope="module")
def mock() -> Mock:
    return Mock()


@pytest.fixture(scope="module")
def written(mock: Mock) -> list[Record]:
    return mock.fill()


@pytest.fixture
def reader(mock: Mock, written: list[Record], library: native.Library) -> Iterator[KafkaReader]:
    kept = readable(library, mock.properties())
    made = KafkaReader(library, lambda: Client(kept))
    yield made
    made.close()


@pytest.mark.parametrize("records_max", [1, 7, 1_000])
def test_all_that_was_written_is_read(
    mock: Mock, written: list[Record], library: native.Library, records_max: int
) -> None:
    with closing(ConfluentConsumer(TOPIC, mock.properties(), library)) as consumer:
        for _ in range(2):  # a new assignment has a new client
            consumer.assign({0: Position(0), 1: Position(0)})
            found: list[Record] = []
            for _ in range(POLLS_MAX + RECORDS):
                found += consumer.poll(records_max, 50)
                if len(found) == RECORDS:
                    break
            as_written = [each._replace(leader_epoch=0, append_ms=0) for each in found]
            assert sorted(as_written) == written
            assert [consumer.position(number) for number in (0, 1)] == [RECORDS // 2] * 2


def test_what_was_fetched_and_not_taken_is_let_go(
    mock: Mock, reader: KafkaReader, library: native.Library
) -> None:
    """By the next fetch, and by a close; the sanitizer counts."""
    from confluent_kafka import TopicPartition

    from delayd.runtime.native.kafka import _Fetched

    reader.client.assign([TopicPartition(TOPIC, 0, 0)])
    held = 0
    for _ in range(POLLS_MAX):
        found = _Fetched()
        reader._fetch.free(reader._reader, 10, 50, found)
        held += found.messages
        if held > 50:
            break
    assert held > 50
    reader.close()


def test_a_second_client_does_not_take_the_first_one_s_place(
    mock: Mock, written: list[Record], library: native.Library
) -> None:
    kept = readable(library, mock.properties())
    other = Client(kept)  # made by somebody who does not ask for its handle
    with closing(ConfluentConsumer(TOPIC, mock.properties(), library)) as consumer:
        consumer.assign({0: Position(0), 1: Position(0)})
        other.close()
        found = sum(len(consumer.poll(100, 50)) for _ in range(20))
        assert found > 0


def test_the_properties_of_a_user_are_kept(library: native.Library) -> None:
    named = {"plugin.library.paths": "/some/other.so", "client.rack": "r", "logger": print}
    kept = readable(library, named)
    assert kept["plugin.library.paths"] == f"/some/other.so;{library.path}"
    assert kept["client.rack"] == "r" and "logger" not in kept
