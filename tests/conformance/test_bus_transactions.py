"""One suite for every bus: transactions and fencing (docs/design/frontier.md, "Fence")."""

from uuid import uuid4

import pytest
import test_bus_desk
from test_bus_desk import POLL_MS, TIMEOUT_MS, Desk, eventually, read, send

from delayd.errors import FencedError, ProducerError

site = test_bus_desk.site
desk = test_bus_desk.desk


def test_a_transaction_is_seen_after_its_commit_only(desk: Desk) -> None:
    one, other = desk.topic(), desk.topic()
    producer = desk.open_transaction(one, b"x")
    send(producer, other, b"y")
    producer.flush(TIMEOUT_MS)
    consumers = [desk.consumer(one), desk.consumer(other)]
    for consumer in consumers:
        assert [consumer.poll(10, POLL_MS) for _ in range(5)] == [[]] * 5
        assert consumer.position(0) == 0
    producer.commit(TIMEOUT_MS)
    assert [[r.value for r in read(c, 1)] for c in consumers] == [[b"x"], [b"y"]]


def test_an_abandoned_transaction_is_aborted_by_the_successor_and_never_seen(desk: Desk) -> None:
    topic = desk.topic()
    desk.open_transaction(topic, b"lost").close()
    assert (desk.stable_offset(topic), desk.end_offset(topic)) == (0, 1), "close must not abort"
    desk.commit(topic, b"kept")
    assert [r.value for r in read(desk.consumer(topic), 1)] == [b"kept"]


def test_an_open_transaction_holds_the_last_stable_offset(desk: Desk) -> None:
    topic = desk.topic()
    desk.commit(topic, b"a", b"b")
    producer = desk.open_transaction(topic, b"c")
    assert (desk.stable_offset(topic), desk.end_offset(topic)) == (3, 4)
    producer.commit(TIMEOUT_MS)
    eventually(lambda: desk.stable_offset(topic) == 5, "the commit marker")
    assert desk.end_offset(topic) == 5


def test_other_producers_records_wait_behind_an_open_transaction(desk: Desk) -> None:
    topic = desk.topic()
    producer = desk.open_transaction(topic, b"open")
    later = desk.producer(f"{desk.id}-other")
    later.begin()
    send(later, topic, b"later")
    later.commit(TIMEOUT_MS)
    consumer = desk.consumer(topic)
    assert [consumer.poll(10, POLL_MS) for _ in range(5)] == [[]] * 5
    producer.commit(TIMEOUT_MS)
    assert [r.value for r in read(consumer, 2)] == [b"open", b"later"]


def test_one_producer_runs_many_transactions(desk: Desk) -> None:
    topic, producer = desk.topic(), desk.producer()
    for n in range(5):
        producer.begin()
        send(producer, topic, b"%d" % n)
        producer.flush(TIMEOUT_MS)
        producer.commit(TIMEOUT_MS)
    records = read(desk.consumer(topic), 5)
    assert [(r.offset, r.value) for r in records] == [(2 * n, b"%d" % n) for n in range(5)]


def test_an_empty_transaction_commits(desk: Desk) -> None:
    producer = desk.begun()
    producer.commit(TIMEOUT_MS)


def group_offsets(desk: Desk, group: str, *places: tuple[str, int]) -> dict[tuple[str, int], int]:
    return desk.cluster.group_offsets(group, places, TIMEOUT_MS)


def test_where_a_group_reads_on_is_true_with_the_commit_and_not_before(desk: Desk) -> None:
    """Without the commit never: of that which the successor aborts."""
    topic, other, group = desk.topic(), desk.topic(), f"group-{uuid4().hex}"
    places = ((topic, 0), (other, 0))
    assert group_offsets(desk, group, *places) == {}
    for offset in (3, 7):
        producer = desk.begun()
        send(producer, topic, b"v")
        producer.send_offsets(group, {places[0]: offset}, TIMEOUT_MS)
        producer.commit(TIMEOUT_MS)
        assert group_offsets(desk, group, *places) == {places[0]: offset}
    producer = desk.begun()
    producer.send_offsets(group, dict.fromkeys(places, 9), TIMEOUT_MS)
    producer.close()
    desk.begun()
    assert group_offsets(desk, group, *places) == {places[0]: 7}
    producer = desk.begun()
    producer.send_offsets(group, dict.fromkeys(places, 9), TIMEOUT_MS)
    producer.commit(TIMEOUT_MS)
    assert group_offsets(desk, group, *places) == dict.fromkeys(places, 9)


def test_a_fenced_producer_commits_no_offsets(desk: Desk) -> None:
    topic, group = desk.topic(), f"group-{uuid4().hex}"
    old = desk.begun()
    desk.begun()
    with pytest.raises(FencedError):
        old.send_offsets(group, {(topic, 0): 1}, TIMEOUT_MS)
        old.commit(TIMEOUT_MS)
    assert group_offsets(desk, group, (topic, 0)) == {}


@pytest.mark.parametrize("flush_first", [True, False])
def test_a_transaction_that_lost_a_record_never_commits(desk: Desk, flush_first: bool) -> None:
    topic, producer = desk.topic(), desk.begun()
    send(producer, topic, b"good")
    send(producer, f"absent-{uuid4().hex}", b"bad")
    with pytest.raises(ProducerError, match="UNKNOWN_TOPIC_OR_PART"):
        if flush_first:
            producer.flush(TIMEOUT_MS)
        else:
            producer.commit(TIMEOUT_MS)
    producer.close()
    desk.commit(topic, b"next")
    assert [r.value for r in read(desk.consumer(topic), 1)] == [b"next"]


def test_a_producer_that_raised_is_not_used_again(desk: Desk) -> None:
    producer = desk.begun()
    send(producer, f"absent-{uuid4().hex}", b"bad")
    with pytest.raises(ProducerError):
        producer.flush(TIMEOUT_MS)
    with pytest.raises(AssertionError, match="dead"):
        producer.begin()
    producer.close()
    producer.close()


def test_a_zombie_learns_in_commit(desk: Desk) -> None:
    topic = desk.topic()
    zombie = desk.open_transaction(topic, b"before")
    desk.producer()
    with pytest.raises(FencedError):
        zombie.commit(TIMEOUT_MS)


def test_a_zombie_that_begins_anew_gets_nothing_committed(desk: Desk) -> None:
    topic, zombie = desk.topic(), desk.producer()
    successor = desk.producer()
    with pytest.raises(FencedError):
        zombie.begin()
        send(zombie, topic, b"zombie")
        zombie.commit(TIMEOUT_MS)
    successor.begin()
    send(successor, topic, b"successor")
    successor.commit(TIMEOUT_MS)
    assert [r.value for r in read(desk.consumer(topic), 1)] == [b"successor"]
