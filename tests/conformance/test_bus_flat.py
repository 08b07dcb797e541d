"""A client that is read in C: the same suite, and what only it could get wrong."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest
import test_bus
import test_bus_desk
import test_bus_transactions
from confluent_kafka import KafkaException
from test_bus_desk import POLL_MS, RECORD_BYTES_MAX, TIMEOUT_MS, Desk, RealSite, eventually, send

from delayd.bus import Consumer, Headers, Position, Record
from delayd.bus.confluent import ConfluentBus
from delayd.bus.confluent.consumer import ConfluentConsumer
from delayd.bus.confluent.settings import Settings
from delayd.bus.flat import FlatRecords
from delayd.runtime import native
from delayd.runtime.native.kafka import KafkaReader

pytestmark = pytest.mark.real
desk = test_bus_desk.desk

test_untouched = test_bus.test_key_value_and_headers_arrive_untouched
test_null_and_empty = test_bus.test_null_and_empty_are_different
test_a_megabyte = test_bus.test_a_record_of_a_megabyte_arrives
test_offset_order = test_bus.test_records_come_in_offset_order_and_no_more_than_asked_for
test_append_time = test_bus.test_append_time_in_the_ack_is_the_record_s
test_gaps = test_bus.test_offsets_have_gaps_where_markers_and_aborted_records_are
test_position_passes = (
    test_bus.test_position_passes_markers_and_aborted_records_up_to_the_stable_offset
)
test_position_follows = test_bus.test_position_follows_each_record_within_a_batch
test_position_waits = test_bus.test_position_never_passes_a_record_that_was_not_handed_out
test_assigned_anew = test_bus.test_a_new_assignment_replaces_the_old_one
test_epochs = test_bus.test_reading_goes_on_where_a_record_and_its_epoch_say
test_no_such_position = test_bus.test_a_position_that_the_log_does_not_hold_raises
test_trimmed = test_bus.test_a_position_below_the_start_of_the_log_raises
test_committed_only = test_bus_transactions.test_a_transaction_is_seen_after_its_commit_only
test_open_transaction = test_bus_transactions.test_an_open_transaction_holds_the_last_stable_offset


class FlatBus(ConfluentBus):
    """Hands out readers for which C reads."""

    def consumer(self, topic: str, **how: Any) -> Consumer:
        return super().consumer(topic, **how, may_be_flat=True)


@pytest.fixture
def site(kafka_and_etcd: Any, library: native.Library) -> Iterator[RealSite]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", library)
        yield RealSite(kafka_and_etcd.bootstrap, FlatBus)


def properties(bootstrap: str, **more: Any) -> dict[str, Any]:
    overrides: Mapping[str, str] = {}
    return Settings(bootstrap, "delayd", overrides, RECORD_BYTES_MAX).consumer() | more


def test_both_ways_to_read_give_the_same_and_this_one_is_flat(
    desk: Desk, site: RealSite, library: native.Library
) -> None:
    topic, producer = desk.topic(partitions=2), desk.begun()
    headers: Headers = [("h", b""), ("null", None), ("n\xfc", b"\0"), ("", b"x")]
    for number in range(60):
        key = None if number % 3 else b"k"
        send(producer, topic, b"v" * number, key=key, headers=headers, partition=number % 2)
    producer.commit(TIMEOUT_MS)
    desk.abort(topic, b"never seen")
    seen: list[list[Record]] = []
    for used in (library, None):
        with closing(ConfluentConsumer(topic, properties(site.bootstrap), used)) as consumer:
            consumer.assign({0: Position(0), 1: Position(0)})
            found: list[Record] = []
            while consumer.position(0) < desk.stable_offset(topic) or len(found) < 60:
                records = consumer.poll(7, POLL_MS)
                assert not records or isinstance(records, FlatRecords) is (used is not None)
                found += records
            seen.append(sorted(found))
    assert seen[0] == seen[1] and len(seen[0]) == 60


def test_no_callback_of_python_s_is_called_from_c(library: native.Library) -> None:
    """confluent-kafka ends the process if one is; see native/driver.h."""
    lines: list[str] = []

    class Logger:
        def log(self, severity: int, text: str, *arguments: object) -> None:
            lines.append(text % arguments)

    lost = properties("127.0.0.1:1", logger=Logger(), error_cb=lines.append)
    with closing(ConfluentConsumer("topic", lost, library)) as consumer:
        consumer.assign({0: Position(0)})

        def has_failed() -> bool:
            assert len(consumer.poll(10, POLL_MS)) == 0
            return any("brokers are down" in line for line in lines)

        eventually(has_failed, "librdkafka says that no broker is there")


def test_a_client_is_closed_while_it_is_read(site: RealSite, library: native.Library) -> None:
    """A close waits for the read, and nothing is read behind it."""
    from confluent_kafka import Consumer as Client

    from delayd.runtime.native.kafka import readable

    kept = readable(library, properties(site.bootstrap))
    reader = KafkaReader(library, lambda: Client(kept))
    begun = threading.Event()
    outcomes: list[str] = []

    def read() -> None:
        try:
            while True:
                reader.fetch(100, 20)
                begun.set()
        except AssertionError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert begun.wait(TIMEOUT_MS / 1000)
    reader.close()
    reader.close()
    for thread in threads:
        thread.join(TIMEOUT_MS / 1000)
    assert outcomes == ["a client is not read after it was closed"] * 2


def test_properties_that_are_wrong_are_refused_as_ever(library: native.Library) -> None:
    wrong = properties("127.0.0.1:1", **{"no.such.property": "1"})
    with pytest.raises(KafkaException, match=r"no\.such\.property"):
        ConfluentConsumer("topic", wrong, library).assign({0: Position(0)})


def test_a_client_that_tells_no_handle_is_read_in_python(
    library: native.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.runtime.native.kafka.PLUGINS", "client.rack")
    with closing(ConfluentConsumer("topic", properties("127.0.0.1:1"), library)) as consumer:
        consumer.assign({0: Position(0)})
        assert consumer.poll(10, 0) == []
