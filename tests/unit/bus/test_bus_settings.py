"""What a user may and may not say to librdkafka."""

import pytest

from delayd.bus import Position
from delayd.bus.confluent import ConfluentBus
from delayd.bus.confluent.settings import FETCH_WAIT_MS, Settings
from delayd.bus.kafka_python import KafkaPythonBus
from delayd.bus.overrides import PROMISED
from delayd.errors import ConfigError


def settings(**overrides: str) -> Settings:
    named = {name.replace("__", "."): value for name, value in overrides.items()}
    return Settings("kafka:9092", "delayd", named, None)


@pytest.mark.parametrize("size", ["1000001", "0", "-1", "many", ""])
def test_a_batch_may_not_be_larger_than_what_targets_are_checked_for(size: str) -> None:
    with pytest.raises(ConfigError, match=r"batch\.size is .*1 to 1000000"):
        settings(producer__batch__size=size)
    assert settings(batch__size="1000000").producer("id")["batch.size"] == "1000000"


@pytest.mark.parametrize("name", sorted(PROMISED))
@pytest.mark.parametrize("role", ["", "consumer.", "producer.", "admin."])
@pytest.mark.parametrize("driver", [ConfluentBus, KafkaPythonBus])
def test_what_carries_a_promise_cannot_be_overridden(
    driver: type[ConfluentBus | KafkaPythonBus], role: str, name: str
) -> None:
    with pytest.raises(ConfigError, match="cannot be overridden"):
        driver("kafka:9092", overrides={f"{role}{name}": "x"})


def test_a_plain_name_reaches_every_client() -> None:
    got = settings(security__protocol="SSL")
    for properties in (got.consumer(), got.producer("id"), got.admin()):
        assert properties["security.protocol"] == "SSL"


def test_a_role_s_name_reaches_that_client_only() -> None:
    got = settings(producer__linger__ms="2", consumer__fetch__wait__max__ms="50")
    assert got.producer("id")["linger.ms"] == "2"
    assert got.consumer()["fetch.wait.max.ms"] == "50"
    assert "linger.ms" not in got.consumer() | got.admin()
    assert "fetch.wait.max.ms" not in got.producer("id") | got.admin()
    assert not [name for name in got.admin() if name.startswith(("producer.", "consumer."))]


def test_a_reader_may_let_brokers_wait_longer_unless_the_user_says_how_long() -> None:
    assert settings().consumer()["fetch.wait.max.ms"] == FETCH_WAIT_MS
    assert settings().consumer(40)["fetch.wait.max.ms"] == 40
    assert settings(consumer__fetch__wait__max__ms="50").consumer(40)["fetch.wait.max.ms"] == "50"


def test_the_promises_are_kept_by_default() -> None:
    consumer, producer = settings().consumer(), settings().producer("an-id")
    assert consumer["isolation.level"] == "read_committed"
    assert consumer["auto.offset.reset"] == "error"
    assert consumer["enable.auto.commit"] is False
    assert producer["transactional.id"] == "an-id"
    assert producer["acks"] == "all"
    assert producer["partitioner"] == "murmur2_random"


def test_the_record_limit_is_the_producer_s_message_limit() -> None:
    got = Settings("kafka:9092", "delayd", {}, 123_456)
    assert got.producer("id")["message.max.bytes"] == 123_456
    assert settings().producer("id")["message.max.bytes"] == 1_048_588


def test_no_client_waits_long_at_an_address_that_a_broker_has_left() -> None:
    """Attempts that hang end, names are looked up again, and silent connections are closed."""
    for properties in (
        settings().consumer(),
        settings().producer("id"),
        settings().producer(None),
        settings().admin(),
    ):
        assert properties["socket.connection.setup.timeout.ms"] <= 2_000
        assert properties["reconnect.backoff.max.ms"] <= 500
        assert properties["metadata.recovery.rebootstrap.trigger.ms"] <= 2_000
        assert properties["socket.timeout.ms"] < 10_000
        assert "broker.address.ttl" not in properties, "a second, by default"
    bus = ConfluentBus("127.0.0.1:1")
    for client in (bus.cluster(), bus.idempotent_producer(), bus.transactional_producer("id")):
        client.close()  # librdkafka takes them together
    consumer = bus.consumer("t")
    consumer.assign({0: Position(0)})
    consumer.close()
