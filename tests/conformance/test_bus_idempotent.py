"""One suite for every bus: producers without transactions (docs/design/frontier.md, "At least
once")."""

import pytest
import test_bus_desk
from test_bus_desk import TIMEOUT_MS, Desk, read, send

from delayd.bus import Ack
from delayd.errors import ProducerError

site = test_bus_desk.site
desk = test_bus_desk.desk


def test_what_is_flushed_is_in_the_log_in_its_order_without_a_commit(desk: Desk) -> None:
    topic, producer = desk.topic(), desk.idempotent()
    acks: list[Ack] = []
    values = [b"%d" % number for number in range(1_200)]
    for value in values:
        send(producer, topic, value, headers=[("h", b"x"), ("h", None)], on_ack=acks.append)
    producer.flush(TIMEOUT_MS)
    records = read(desk.consumer(topic), len(values))
    assert [record.value for record in records] == values
    assert records[0].headers == [("h", b"x"), ("h", None)]
    assert [(ack.offset, ack.append_ms) for ack in acks] == [
        (record.offset, record.append_ms) for record in records
    ]
    assert desk.stable_offset(topic) == desk.end_offset(topic) == len(values), "no markers"


def test_two_of_them_write_side_by_side_and_nobody_is_fenced(desk: Desk) -> None:
    topic, first, second = desk.topic(), desk.idempotent(), desk.idempotent()
    for producer, value in ((first, b"1"), (second, b"2"), (first, b"3")):
        send(producer, topic, value)
        producer.flush(TIMEOUT_MS)
    assert [record.value for record in read(desk.consumer(topic), 3)] == [b"1", b"2", b"3"]


def test_a_refused_record_fails_the_flush_and_names_its_topic_and_the_others_stay(
    desk: Desk,
) -> None:
    kept, compacted = desk.topic(), desk.topic(cleanup_policy="compact")
    producer = desk.idempotent()
    send(producer, kept, b"x")
    send(producer, compacted, b"without a key")
    with pytest.raises(ProducerError) as raised:
        producer.flush(TIMEOUT_MS)
    assert list(raised.value.refusals) == [compacted]
    producer.close()
    assert [record.value for record in read(desk.consumer(kept), 1)] == [b"x"]


def test_brokers_that_cannot_be_reached_are_an_error_in_time(desk: Desk) -> None:
    producer = desk.site.unreachable_bus().idempotent_producer()
    with pytest.raises(ProducerError):
        send(producer, "t", b"x")
        producer.flush(1_000)
    producer.close()
