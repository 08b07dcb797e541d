"""What only brokers that let in not everybody can be asked, of each driver: ways in, and refusals.

The settings come from `delayd.config.security`, as those of a node do.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
from certificates import Leaf
from guarded_kafka import (
    KEY_PASSWORD,
    PASSWORD,
    SECRETS,
    USER,
    WRONG,
    GuardedKafka,
    guarded_kafka,
)
from test_bus_desk import DRIVERS, TIMEOUT_MS, eventually, read, send, silent_broker

from delayd.bus import Bus, Position
from delayd.bus.kafka_python import KafkaPythonBus
from delayd.bus.kafka_python.connections import close_driven, open_client, refusal
from delayd.bus.kafka_python.library import errors
from delayd.bus.kafka_python.settings import Settings
from delayd.config.security import Security
from delayd.errors import ExitCode, KafkaUnreachableError

pytestmark = pytest.mark.real

Keys: TypeAlias = dict[str, Any]

REFUSED_MS = 500
"""Brokers hold back the news of a wrong password for a while."""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedKafka]:
    with guarded_kafka(tmp_path_factory.mktemp("guarded")) as found:
        yield found


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Any:
    return DRIVERS[request.param]


def tls(kafka: GuardedKafka, leaf: Leaf | None = None, **more: Any) -> Keys:
    keys: Keys = {"kafka_security_protocol": "SSL", "kafka_ca_file": kafka.ca}
    if leaf is not None:
        keys |= {"kafka_cert_file": leaf.cert, "kafka_key_file": leaf.key}
    return keys | more


WAYS_IN: dict[str, Callable[[GuardedKafka], tuple[str, Keys]]] = {
    "plain password over TLS": lambda kafka: (kafka.sasl, kafka.keys("PLAIN")),
    "SCRAM-SHA-256 over TLS": lambda kafka: (kafka.sasl, kafka.keys("SCRAM-SHA-256")),
    "SCRAM-SHA-512 over TLS": lambda kafka: (kafka.sasl, kafka.keys("SCRAM-SHA-512")),
    "a password without TLS": lambda kafka: (
        kafka.addresses["SASLPLAIN"],
        {
            "kafka_security_protocol": "SASL_PLAINTEXT",
            "kafka_sasl_mechanism": "SCRAM-SHA-512",
            "kafka_user": USER,
            "kafka_password": PASSWORD,
        },
    ),
    "a certificate": lambda kafka: (kafka.addresses["MUTUAL"], tls(kafka, kafka.client)),
    "a certificate whose key is encrypted": lambda kafka: (
        kafka.addresses["MUTUAL"],
        tls(kafka, kafka.encrypted, kafka_key_password=KEY_PASSWORD),
    ),
}
"""By name: the address, and the settings that open it."""


@pytest.mark.parametrize("way", WAYS_IN)
def test_each_kind_of_client_gets_in(kafka: GuardedKafka, driver: Any, way: str) -> None:
    """docs/operations.md, "Getting into Kafka and etcd"."""
    address, keys = WAYS_IN[way](kafka)
    properties = Security(**keys).properties()
    bus: Bus = driver(address, overrides=properties)
    name = f"t-{uuid4().hex}"
    with (
        closing(bus.cluster()) as cluster,
        closing(bus.transactional_producer(name)) as producer,
        closing(bus.consumer(name)) as consumer,
    ):
        cluster.create_topic(
            name, partitions=1, replication_factor=1, config={}, timeout_ms=TIMEOUT_MS
        )
        producer.init_transactions(TIMEOUT_MS)
        producer.begin()
        send(producer, name, b"through the gate")
        producer.commit(TIMEOUT_MS)
        consumer.assign({0: Position(0)})
        assert [record.value for record in read(consumer, 1)] == [b"through the gate"]


OF_USER = "correct kafka_user, kafka_password"
OF_CLIENT = "the brokers refuse this client's certificate"
OF_BROKER = "check that an authority in kafka_ca_file signed"

REFUSALS: dict[str, tuple[str, Callable[[GuardedKafka], Keys], str]] = {
    "a wrong plain password": ("SASLSSL", lambda kafka: kafka.keys("PLAIN", WRONG), OF_USER),
    "a wrong SCRAM password": ("SASLSSL", lambda kafka: kafka.keys(password=WRONG), OF_USER),
    "no certificate": ("MUTUAL", tls, OF_CLIENT),
    "an expired certificate": ("MUTUAL", lambda kafka: tls(kafka, kafka.expired), OF_CLIENT),
    "a stranger's certificate": ("MUTUAL", lambda kafka: tls(kafka, kafka.stranger), OF_CLIENT),
    "another authority": (
        "MUTUAL",
        lambda kafka: tls(kafka, kafka_ca_file=kafka.other_ca),
        OF_BROKER,
    ),
    "an expired broker": ("EXPIRED", tls, OF_BROKER),
    "a broker of another address": ("ELSEWHERE", tls, OF_BROKER),
    "no TLS where it is wanted": ("SASLSSL", lambda _: {}, "kafka_security_protocol"),
    "TLS where there is none": ("plain", tls, "this listener speaks no TLS"),
}
"""By name: the listener, the settings, and what must be told."""


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_told_with_what_to_do_and_without_any_secret(
    kafka: GuardedKafka,
    driver: Any,
    name: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """docs/operations.md, "Getting into Kafka and etcd"."""
    listener, keys_of, wanted = REFUSALS[name]
    address, keys = kafka.addresses.get(listener, kafka.plain), keys_of(kafka)
    caplog.set_level("DEBUG")
    bus: Bus = driver(address, overrides=Security(**keys).properties())
    told: list[str] = []

    def says_so() -> bool:
        with pytest.raises(KafkaUnreachableError) as raised:
            cluster.broker_count(REFUSED_MS)
        assert raised.value.exit_code is ExitCode.UNREACHABLE
        told.append(str(raised.value))
        return wanted in told[-1]

    with closing(bus.cluster()) as cluster:
        eventually(says_so, f"{wanted!r} in {told}")
    said = f"{told} {caplog.text} {capfd.readouterr()}"
    assert not [secret for secret in SECRETS if secret in said]


def test_a_reader_that_is_refused_waits_until_it_is_let_in(
    kafka: GuardedKafka, driver: Any
) -> None:
    """A broker that starts may know no password yet: that is trouble that passes."""
    bus: Bus = driver(kafka.sasl, overrides=Security(**kafka.keys(password=WRONG)).properties())
    with closing(bus.consumer("any")) as consumer:
        consumer.assign({0: Position(0)})
        assert consumer.poll(10, REFUSED_MS) == []


def test_with_kafka_python_a_broker_that_never_answers_a_handshake_is_tried_again(
    kafka: GuardedKafka,
) -> None:
    """kafka-python waits for it for ever."""
    with silent_broker() as (address, silent):
        properties = Security(**kafka.keys()).properties()
        client = open_client(
            {
                **Settings(address, "delayd", properties, None).admin(),
                "socket_connection_setup_timeout_ms": 200,
            }
        )
        client._net.start()
        client._manager.bootstrap_async()
        try:
            first, _ = silent.accept()
            second, _ = silent.accept()
            first.close()
            second.close()
            assert isinstance(refusal(client), errors.KafkaConnectionError)
        finally:
            close_driven(client)


def test_with_kafka_python_a_refusal_is_forgotten_once_a_broker_lets_it_in(
    kafka: GuardedKafka,
) -> None:
    properties = Security(**kafka.keys()).properties()
    bus = KafkaPythonBus(kafka.sasl, overrides=properties)
    with closing(bus.cluster()) as cluster:
        cluster._client._manager._auth_failures["bootstrap-0"] = errors.KafkaConnectionError()
        assert cluster.broker_count(TIMEOUT_MS) == 1
        assert refusal(cluster._client) is None
