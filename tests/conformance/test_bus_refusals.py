"""One suite for every bus: whose records a broker would not take, and who is innocent."""

from uuid import uuid4

import pytest
import test_bus_desk
from test_bus_desk import TIMEOUT_MS, Desk, send

from delayd.errors import FencedError, ProducerError

site = test_bus_desk.site
desk = test_bus_desk.desk


def test_the_topics_that_refused_records_are_named_and_no_others(desk: Desk) -> None:
    """docs/design/frontier.md, Targets: a broker's error names a batch, not a message."""
    small = desk.topic(max_message_bytes="1000")
    compacted = desk.topic(cleanup_policy="compact")
    innocent = desk.topic()
    named: dict[str, str] = {}
    while guilty := {small, compacted} - named.keys():
        producer = desk.begun()
        with pytest.raises(ProducerError) as raised:
            for topic in (innocent, *guilty, innocent):
                send(producer, topic, b"x" * 5_000)
            producer.flush(TIMEOUT_MS)
            producer.commit(TIMEOUT_MS)
        # What was sent after the first refusal became known is judged when it is sent again.
        assert raised.value.refusals
        named.update(raised.value.refusals)
    assert named == {small: "MSG_SIZE_TOO_LARGE", compacted: "INVALID_RECORD"}


def test_a_refused_record_gives_the_transaction_its_cause_wherever_it_stands(desk: Desk) -> None:
    """What is told of its neighbours in the batch is not the cause."""
    compacted, innocent = desk.topic(cleanup_policy="compact"), desk.topic()
    producer = desk.begun()
    send(producer, innocent, b"x")
    send(producer, compacted, b"fine", key=b"k")
    send(producer, compacted, b"no key")
    send(producer, compacted, b"fine", key=b"k")
    with pytest.raises(ProducerError, match="INVALID_RECORD") as raised:
        producer.flush(TIMEOUT_MS)
        producer.commit(TIMEOUT_MS)
    assert raised.value.refusals == {compacted: "INVALID_RECORD"}


def test_a_topic_that_does_not_exist_is_named(desk: Desk) -> None:
    """docs/design/frontier.md, Targets."""
    absent, innocent = f"absent-{uuid4().hex}", desk.topic()
    producer = desk.begun()
    with pytest.raises(ProducerError) as raised:
        for topic in (innocent, absent):
            send(producer, topic, b"x")
        producer.flush(TIMEOUT_MS)
    assert raised.value.refusals == {absent: "UNKNOWN_TOPIC_OR_PART"}
    assert raised.value.topics == {absent}


def test_a_partition_that_does_not_exist_is_named_by_its_topic(desk: Desk) -> None:
    """docs/design/frontier.md, Targets."""
    topic, innocent = desk.topic(), desk.topic()
    producer = desk.begun()
    with pytest.raises(ProducerError) as raised:
        send(producer, innocent, b"x")
        send(producer, topic, b"x")  # so that it is known
        send(producer, topic, b"x", partition=7)
        producer.flush(TIMEOUT_MS)
    assert raised.value.refusals == {topic: "_UNKNOWN_PARTITION"}


def test_a_record_that_the_producer_itself_refuses_is_named_by_its_topic(desk: Desk) -> None:
    """docs/design/frontier.md, Targets."""
    topic, innocent = desk.topic(), desk.topic()
    producer = desk.begun()
    send(producer, innocent, b"x")
    with pytest.raises(ProducerError) as raised:
        send(producer, topic, b"x" * (test_bus_desk.RECORD_BYTES_MAX + 1))
    assert raised.value.refusals == {topic: "MSG_SIZE_TOO_LARGE"}


def test_a_zombie_learns_in_flush_and_accuses_no_topic(desk: Desk) -> None:
    """docs/design/frontier.md, Targets: only what is said of a topic is held against it."""
    topic = desk.topic()
    zombie = desk.open_transaction(topic, b"x")
    desk.producer()
    send(zombie, topic, b"y")
    with pytest.raises(FencedError) as raised:
        zombie.flush(TIMEOUT_MS)
    assert raised.value.topics == frozenset()
