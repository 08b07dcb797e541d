"""A producer that is written to in C: the same suite, and what only it could get wrong."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import test_bus
import test_bus_desk
import test_bus_idempotent
import test_bus_refusals
import test_bus_transactions
from test_bus_desk import TIMEOUT_MS, Desk, RealSite, read, send
from test_bus_idempotent import (  # noqa: F401
    test_a_refused_record_fails_the_flush_and_names_its_topic_and_the_others_stay as test_refused,
)

from delayd.bus import Ack, Headers, Record
from delayd.bus.confluent import ConfluentBus
from delayd.bus.confluent.producer import ConfluentProducer
from delayd.bus.flat import Outgoing, flattened
from delayd.errors import ProducerError
from delayd.runtime import native

pytestmark = pytest.mark.real
desk = test_bus_desk.desk

test_untouched = test_bus.test_key_value_and_headers_arrive_untouched
test_null_and_empty = test_bus.test_null_and_empty_are_different
test_a_megabyte = test_bus.test_a_record_of_a_megabyte_arrives
test_key_partition = test_bus.test_a_key_goes_to_the_partition_that_java_gives_it
test_named_partition = (
    test_bus.test_a_named_partition_overrules_the_key_and_a_null_key_goes_anywhere
)
test_committed_only = test_bus_transactions.test_a_transaction_is_seen_after_its_commit_only
test_many_transactions = test_bus_transactions.test_one_producer_runs_many_transactions
test_lost_a_record = test_bus_transactions.test_a_transaction_that_lost_a_record_never_commits
test_raised = test_bus_transactions.test_a_producer_that_raised_is_not_used_again
test_zombie_commits = test_bus_transactions.test_a_zombie_learns_in_commit
test_zombie_begins = test_bus_transactions.test_a_zombie_that_begins_anew_gets_nothing_committed
test_refusing_topics = (
    test_bus_refusals.test_the_topics_that_refused_records_are_named_and_no_others
)
test_cause = (
    test_bus_refusals.test_a_refused_record_gives_the_transaction_its_cause_wherever_it_stands
)
test_no_topic = test_bus_refusals.test_a_topic_that_does_not_exist_is_named
test_no_partition = test_bus_refusals.test_a_partition_that_does_not_exist_is_named_by_its_topic
test_too_large = (
    test_bus_refusals.test_a_record_that_the_producer_itself_refuses_is_named_by_its_topic
)
test_zombie_flushes = test_bus_refusals.test_a_zombie_learns_in_flush_and_accuses_no_topic
test_in_order = test_bus_idempotent.test_what_is_flushed_is_in_the_log_in_its_order_without_a_commit
test_side_by_side = test_bus_idempotent.test_two_of_them_write_side_by_side_and_nobody_is_fenced
test_unreachable = test_bus_idempotent.test_brokers_that_cannot_be_reached_are_an_error_in_time


class FlatProducer(ConfluentProducer):
    """Sends in C all that needs no report of its own."""

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None = None,
        on_ack: Callable[[Ack], None] | None = None,
    ) -> None:
        assert self._writer is not None, "it is written to in C"
        if on_ack is not None:
            super().send(
                topic, key=key, value=value, headers=headers, partition=partition, on_ack=on_ack
            )
            return
        number = -1 if partition is None else partition
        data = flattened([Record(number, 0, 0, 0, key, value, headers)])
        self.send_flat(Outgoing([topic], data, 0, len(data)))


class FlatBus(ConfluentBus):
    """Hands out producers that are written to in C."""

    def transactional_producer(self, transactional_id: str) -> FlatProducer:
        properties = self._settings.producer(transactional_id)
        return FlatProducer(transactional_id, properties, native.library)

    def idempotent_producer(self) -> FlatProducer:
        return FlatProducer(None, self._settings.producer(None), native.library)


@pytest.fixture
def site(kafka_and_etcd: Any, library: native.Library) -> Iterator[RealSite]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", library)
        yield RealSite(kafka_and_etcd.bootstrap, FlatBus)


def test_reports_of_python_s_come_among_those_that_nobody_gets(desk: Desk) -> None:
    topic, producer = desk.topic(), desk.begun()
    acks: list[Ack] = []
    for number in range(3_000):
        on_ack = acks.append if number % 7 == 0 else None
        send(producer, topic, b"%d" % number, on_ack=on_ack)
    producer.commit(TIMEOUT_MS)
    records = read(desk.consumer(topic), 3_000)
    assert [record.value for record in records] == [b"%d" % number for number in range(3_000)]
    wanted = [(each.offset, each.append_ms) for each in records[::7]]
    assert [(ack.offset, ack.append_ms) for ack in acks] == wanted


def test_a_batch_with_records_that_a_broker_refuses_one_by_one_is_lost(desk: Desk) -> None:
    """Without a transaction nobody else would notice: such a batch has no error of its own."""
    compacted, producer = desk.topic(cleanup_policy="compact"), desk.idempotent()
    keys = (b"k", None, b"k", None, b"k")
    data = flattened([Record(0, 0, 0, 0, key, b"v", []) for key in keys])
    with pytest.raises(ProducerError, match="INVALID") as raised:
        producer.send_flat(Outgoing([compacted], data, 0, len(data)))
        producer.flush(TIMEOUT_MS)
    assert raised.value.refusals == {compacted: "INVALID_RECORD"}
