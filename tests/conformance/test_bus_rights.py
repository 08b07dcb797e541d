"""What only brokers with an authorizer can be asked: rights, as they show in a topic's state."""

from collections.abc import Iterator

import pytest
import test_bus_desk
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub exports none
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from test_bus_desk import (
    DRIVERS,
    TIMEOUT_MS,
    Desk,
    RealSite,
    eventually,
    poll_until_it_raises,
    send,
)

from delayd.bus import TopicState
from delayd.dev.cluster import LocalCluster
from delayd.dev.startup import ClusterOptions
from delayd.errors import ConsumerError, ProducerError, TopicMismatchError

pytestmark = pytest.mark.real
desk = test_bus_desk.desk

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
DESCRIBE, DESCRIBE_CONFIGS, READ, WRITE = (
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.READ,
    AclOperation.WRITE,
)


@pytest.fixture(scope="module")
def guarded_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker that asks for rights on every topic that has an access control list."""
    options = ClusterOptions(nodes=0, broker_settings=AUTHORIZER)
    with LocalCluster(tmp_path_factory.mktemp("guarded-kafka"), options) as cluster:
        yield cluster


@pytest.fixture(params=DRIVERS)
def site(guarded_kafka: LocalCluster, request: pytest.FixtureRequest) -> RealSite:
    return RealSite(guarded_kafka.bootstrap, DRIVERS[request.param])


def guard(site: RealSite, topic: str, *allowed: AclOperation, denied: AclOperation) -> None:
    """A list for everybody: these operations and no others."""
    bindings = [
        AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            "User:ANONYMOUS",
            "*",
            operation,
            permission,
        )
        for operation, permission in [
            *((operation, AclPermissionType.ALLOW) for operation in allowed),
            (denied, AclPermissionType.DENY),
        ]
    ]
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    for future in admin.create_acls(bindings).values():
        future.result(TIMEOUT_MS / 1000)


def state(desk: Desk, topic: str) -> TopicState:
    return desk.cluster.survey([topic], TIMEOUT_MS).states[topic]


def test_the_right_to_write_shows_in_a_topics_state(desk: Desk, site: RealSite) -> None:
    """docs/design/frontier.md, Targets: allowed."""
    open_, guarded = desk.topic(), desk.topic()
    assert state(desk, open_).may_write is state(desk, guarded).may_write is True
    guard(site, guarded, READ, DESCRIBE, DESCRIBE_CONFIGS, denied=WRITE)
    eventually(lambda: state(desk, guarded).may_write is False, "the list is known")
    assert state(desk, open_).may_write is True
    assert desk.cluster.describe([guarded], TIMEOUT_MS)[guarded].may_write is False


@pytest.mark.parametrize(
    ("allowed", "denied"),
    [((WRITE, DESCRIBE_CONFIGS), DESCRIBE), ((WRITE, DESCRIBE), DESCRIBE_CONFIGS)],
    ids=["topic", "settings"],
)
def test_a_topic_that_may_not_be_described_is_refused_by_itself(
    desk: Desk, site: RealSite, allowed: tuple[AclOperation, ...], denied: AclOperation
) -> None:
    """docs/design/frontier.md, Targets: one refusal does not stand for all."""
    open_, hidden = desk.topic(), desk.topic()
    guard(site, hidden, *allowed, denied=denied)
    eventually(lambda: bool(desk.cluster.survey([hidden], TIMEOUT_MS).refused), "the list is known")
    survey = desk.cluster.survey([open_, hidden, "absent"], TIMEOUT_MS)
    assert survey.states.keys() == {open_}
    assert survey.refused.keys() == {hidden}
    assert "TOPIC_AUTHORIZATION_FAILED" in survey.refused[hidden]
    assert survey.silent == frozenset()
    with pytest.raises(TopicMismatchError, match=f"describing {hidden} was refused"):
        desk.cluster.describe([open_, hidden], TIMEOUT_MS)


def test_a_record_that_may_not_be_written_fails_its_transaction_with_that_cause(
    desk: Desk, site: RealSite
) -> None:
    """docs/design/frontier.md, Targets: rights that were taken away after the check.

    Which topic it was is often not told: the coordinator refuses before a record is sent.
    """
    open_, guarded = desk.topic(), desk.topic()
    guard(site, guarded, DESCRIBE, DESCRIBE_CONFIGS, denied=WRITE)
    eventually(lambda: state(desk, guarded).may_write is False, "the list is known")
    producer = desk.begun()
    with pytest.raises(ProducerError, match="TOPIC_AUTHORIZATION_FAILED") as raised:
        for topic in (open_, guarded, open_):
            send(producer, topic, b"x")  # The refusal may be here before the third.
        producer.flush(TIMEOUT_MS)
        producer.commit(TIMEOUT_MS)
    assert raised.value.topics <= {guarded}, "and never an innocent one"


def test_a_record_for_a_topic_that_may_not_be_described_fails_its_transaction_with_that_cause(
    desk: Desk, site: RealSite
) -> None:
    """docs/design/frontier.md, Targets."""
    hidden = desk.topic()
    guard(site, hidden, WRITE, denied=DESCRIBE)
    eventually(lambda: bool(desk.cluster.survey([hidden], TIMEOUT_MS).refused), "the list is known")
    producer = desk.begun()
    with pytest.raises(ProducerError, match="TOPIC_AUTHORIZATION_FAILED") as raised:
        send(producer, hidden, b"x")
        producer.flush(TIMEOUT_MS)
    assert raised.value.topics <= {hidden}


@pytest.mark.parametrize(
    ("allowed", "denied"), [(DESCRIBE, READ), (READ, DESCRIBE)], ids=["read", "describe"]
)
def test_a_topic_that_may_not_be_read_fails_its_reader(
    desk: Desk, site: RealSite, allowed: AclOperation, denied: AclOperation
) -> None:
    """Else a node would wait for its buffer without end, and say nothing."""
    topic = desk.topic()
    guard(site, topic, allowed, denied=denied)
    with pytest.raises(ConsumerError, match="TOPIC_AUTHORIZATION_FAILED"):
        poll_until_it_raises(desk.consumer(topic))
