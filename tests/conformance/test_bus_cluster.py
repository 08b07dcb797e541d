"""One suite for every bus: administration and metadata."""

from uuid import uuid4

import pytest
import test_bus_desk
from test_bus_desk import TIMEOUT_MS, Desk, eventually, read

from delayd.bus import Position
from delayd.errors import KafkaUnreachableError, ProducerError, TopicMismatchError
from delayd.runtime.clock import SystemClock

site = test_bus_desk.site
desk = test_bus_desk.desk


def test_topics_are_created_once(desk: Desk) -> None:
    name = f"t-{uuid4().hex}"

    def create() -> bool:
        return desk.cluster.create_topic(
            name,
            partitions=3,
            replication_factor=1,
            config={"retention.ms": "12345"},
            timeout_ms=TIMEOUT_MS,
        )

    assert create()
    [state] = desk.cluster.describe([name], TIMEOUT_MS).values()
    assert state.name == name and state.topic_id
    assert [(p.leader is not None, p.replicas, p.in_sync) for p in state.partitions] == [
        (True, 1, 1)
    ] * 3
    assert state.config["retention.ms"] == "12345"
    assert state.config["message.timestamp.type"] == "CreateTime", "defaults are told too"
    assert not create()


def test_partitions_are_added_once_and_keep_what_is_there(desk: Desk) -> None:
    """docs/design/shards.md, More or fewer."""
    topic = desk.topic(partitions=2)
    desk.commit(topic, b"kept")
    assert desk.cluster.add_partitions(topic, 5, TIMEOUT_MS)
    [state] = desk.cluster.describe([topic], TIMEOUT_MS).values()
    assert len(state.partitions) == 5
    assert desk.cluster.start_offsets(topic, TIMEOUT_MS) == dict.fromkeys(range(5), 0)
    assert [r.value for r in read(desk.consumer(topic), 1)] == [b"kept"]
    for fewer in (5, 3):
        assert not desk.cluster.add_partitions(topic, fewer, TIMEOUT_MS)
    assert len(desk.cluster.end_offsets(topic, TIMEOUT_MS, committed=True)) == 5
    with pytest.raises(TopicMismatchError, match="does not exist"):
        desk.cluster.add_partitions(f"absent-{uuid4().hex}", 2, TIMEOUT_MS)


def test_describe_leaves_out_what_does_not_exist_and_creates_nothing(desk: Desk) -> None:
    topic, absent = desk.topic(), f"absent-{uuid4().hex}"
    for _ in range(2):
        assert desk.cluster.describe([topic, absent], TIMEOUT_MS).keys() == {topic}
    assert desk.cluster.describe([], TIMEOUT_MS) == {}


def test_a_survey_tells_of_each_topic_by_itself(desk: Desk) -> None:
    """docs/design/frontier.md, Targets: many topics, few requests."""
    topics, absent = [desk.topic(partitions=2), desk.topic()], f"absent-{uuid4().hex}"
    survey = desk.cluster.survey([*topics, absent, topics[0]], TIMEOUT_MS)
    assert dict(survey.states) == desk.cluster.describe(topics, TIMEOUT_MS)
    assert survey.states.keys() == set(topics)
    assert (survey.refused, survey.silent) == ({}, frozenset())
    nothing = desk.cluster.survey([], TIMEOUT_MS)
    assert not nothing.states and not nothing.refused and not nothing.silent


def test_brokers_without_an_authorizer_let_everybody_write(desk: Desk) -> None:
    """docs/design/frontier.md, Targets: allowed."""
    [state] = desk.cluster.survey([desk.topic()], TIMEOUT_MS).states.values()
    assert state.may_write is True and state.may_read is True


def test_every_topic_has_an_id_of_its_own(desk: Desk) -> None:
    states = desk.cluster.describe([desk.topic(), desk.topic()], TIMEOUT_MS)
    assert len({state.topic_id for state in states.values()}) == 2


def test_a_topic_that_kafka_will_not_make_is_refused(desk: Desk) -> None:
    with pytest.raises(TopicMismatchError, match="INVALID_REPLICATION_FACTOR"):
        desk.cluster.create_topic(
            f"t-{uuid4().hex}",
            partitions=1,
            replication_factor=5,
            config={},
            timeout_ms=TIMEOUT_MS,
        )


def test_offsets_of_a_new_topic_are_zero(desk: Desk) -> None:
    topic = desk.topic(partitions=2)
    assert desk.cluster.start_offsets(topic, TIMEOUT_MS) == {0: 0, 1: 0}
    for committed in (True, False):
        assert desk.cluster.end_offsets(topic, TIMEOUT_MS, committed=committed) == {0: 0, 1: 0}


def test_the_first_record_since_a_moment_is_found(desk: Desk) -> None:
    topic = desk.topic(partitions=2)
    assert desk.cluster.offsets_since(topic, 0, TIMEOUT_MS) == {}
    desk.commit(topic, b"0", b"1")
    desk.commit(topic, b"2")
    eventually(lambda: desk.stable_offset(topic) == 5, "the commit markers")
    records = read(desk.consumer(topic), 3)
    for record in records:
        [(partition, offset)] = desk.cluster.offsets_since(
            topic, record.append_ms, TIMEOUT_MS
        ).items()
        first = next(r.offset for r in records if r.append_ms >= record.append_ms)
        assert (partition, offset) == (0, first)
    assert desk.cluster.offsets_since(topic, 0, TIMEOUT_MS) == {0: 0}
    assert desk.cluster.offsets_since(topic, records[-1].append_ms + 60_000, TIMEOUT_MS) == {}


def test_offsets_of_an_absent_topic_are_an_error(desk: Desk) -> None:
    with pytest.raises(TopicMismatchError, match="does not exist"):
        desk.cluster.end_offsets(f"absent-{uuid4().hex}", TIMEOUT_MS, committed=True)


def test_leaders_answer_and_so_does_who_knows_of_no_such_partition(desk: Desk) -> None:
    """docs/design/frontier.md, A leader that hangs."""
    topic = desk.topic(partitions=2)
    places = {(topic, 0), (topic, 1), (topic, 2), (f"absent-{uuid4().hex}", 0)}
    assert desk.cluster.answering(places, TIMEOUT_MS) == places
    assert desk.cluster.answering([], TIMEOUT_MS) == set()


def test_brokers_are_counted(desk: Desk) -> None:
    assert desk.cluster.broker_count(TIMEOUT_MS) == 1


def test_brokers_tell_their_settings(desk: Desk) -> None:
    [told] = desk.cluster.broker_settings(TIMEOUT_MS).values()
    assert int(told["broker.session.timeout.ms"]) > 0


def test_unreachable_brokers_are_an_error_of_administration_and_producer_only(desk: Desk) -> None:
    bus = desk.site.unreachable_bus()
    cluster, producer, consumer = (
        bus.cluster(),
        bus.transactional_producer(desk.id),
        bus.consumer("any"),
    )
    consumer.assign({0: Position(0)})
    clock = SystemClock()
    before_ms = clock.monotonic_ms()
    with pytest.raises(KafkaUnreachableError):
        cluster.broker_count(300)
    with pytest.raises(KafkaUnreachableError):
        cluster.broker_settings(300)
    with pytest.raises(KafkaUnreachableError):
        cluster.describe(["any"], 300)
    with pytest.raises(KafkaUnreachableError):
        cluster.survey(["any", "other"], 300)
    with pytest.raises(ProducerError):
        producer.init_transactions(300)
    assert consumer.poll(10, 300) == []
    assert clock.monotonic_ms() - before_ms < 3_000, "five calls of 300 ms"
    for client in (cluster, producer, consumer):
        client.close()
