"""What a user may say to kafka-python, in librdkafka's words."""

from pathlib import Path

import pytest

from delayd.bus.kafka_python import KafkaPythonBus
from delayd.bus.kafka_python.library import Fetcher, KafkaNetClient, RecordAccumulator, Sender
from delayd.bus.kafka_python.settings import Settings
from delayd.cluster.connect import open_bus
from delayd.errors import ConfigError

OWN = {"queue_bytes_max", "queue_records_max", "record_bytes_max"}
"""Settings that the adapter keeps for itself."""


def settings(
    overrides: dict[str, str] | None = None, record_bytes_max: int | None = None
) -> Settings:
    return Settings("kafka:9092", "delayd", overrides or {}, record_bytes_max)


@pytest.fixture
def pem(tmp_path: Path) -> str:
    file = tmp_path / "some.pem"
    file.write_text("")
    return str(file)


def test_the_promises_are_kept_by_default() -> None:
    assert settings().consumer()["isolation_level"] == "read_committed"
    assert settings().producer()["acks"] == -1
    assert settings(record_bytes_max=123_456).producer()["record_bytes_max"] == 123_456
    assert settings().producer()["record_bytes_max"] == 1_048_588


def test_new_partitions_are_known_in_time_and_no_fetch_session_can_get_out_of_step() -> None:
    for properties in (settings().consumer(), settings().producer(), settings().admin()):
        assert properties["metadata_max_age_ms"] <= 30_000, "kafka-python's 5 minutes are long"
    assert settings().consumer()["enable_incremental_fetch_sessions"] is False


def test_security_is_translated_for_every_client(pem: str) -> None:
    got = settings(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "scram-sha-512",
            "sasl.username": "u",
            "sasl.password": "p",
            "ssl.ca.location": pem,
            "ssl.certificate.location": pem,
            "ssl.key.location": pem,
            "ssl.key.password": "kp",
            "ssl.crl.location": pem,
            "ssl.cipher.suites": "ECDHE",
            "ssl.endpoint.identification.algorithm": "none",
            "enable.ssl.certificate.verification": "true",
        }
    )
    for properties in (got.consumer(), got.producer(), got.admin()):
        assert (
            properties.items()
            >= {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "SCRAM-SHA-512",
                "sasl_plain_username": "u",
                "sasl_plain_password": "p",
                "ssl_cafile": pem,
                "ssl_certfile": pem,
                "ssl_keyfile": pem,
                "ssl_password": "kp",
                "ssl_crlfile": pem,
                "ssl_ciphers": "ECDHE",
                "ssl_check_hostname": False,
            }.items()
        )


def test_a_role_s_name_reaches_that_client_only() -> None:
    got = settings(
        {
            "producer.linger.ms": "2.5",
            "consumer.fetch.wait.max.ms": "50",
            "admin.reconnect.backoff.ms": "7",
        }
    )
    assert got.producer()["linger_ms"] == 2.5
    assert got.consumer()["fetch_max_wait_ms"] == 50
    assert got.admin()["reconnect_backoff_ms"] == 7
    assert got.consumer()["reconnect_backoff_ms"] != 7
    assert "linger_ms" not in got.consumer() | got.admin()


def test_a_plain_name_reaches_the_clients_that_know_it() -> None:
    got = settings({"compression.codec": "lz4", "fetch.wait.max.ms": "50"})
    assert got.producer()["compression_attrs"] == 3
    assert got.consumer()["fetch_max_wait_ms"] == 50
    assert "fetch_max_wait_ms" not in got.producer() | got.admin()


@pytest.mark.parametrize(
    "overrides, named",
    [
        ({"socket.nagle.disable": "true"}, "socket.nagle.disable"),
        ({"consumer.linger.ms": "1"}, "linger.ms"),
        ({"producer.sasl.kerberos.keytab": "x"}, "sasl.kerberos.keytab"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "sasl.mechanism"),
        ({"security.protocol": "TLS"}, "security.protocol"),
        ({"enable.ssl.certificate.verification": "false"}, "enable.ssl.certificate.verification"),
        ({"ssl.ca.location": "/nowhere.pem"}, "ssl.ca.location"),
        ({"linger.ms": "soon"}, "linger.ms is 'soon', and must be a number"),
        ({"compression.type": "brotli"}, "compression.type"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "sasl.mechanism is missing"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.username is missing"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(overrides: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError) as raised:
        settings(overrides)
    assert named in str(raised.value)


def test_every_setting_is_one_that_kafka_python_knows(pem: str) -> None:
    """It drops what it does not know without a word."""
    known = set().union(
        *(part.DEFAULT_CONFIG for part in (Fetcher, RecordAccumulator, Sender)), OWN
    )
    connection = KafkaNetClient(bootstrap_servers="127.0.0.1:1")
    known |= connection._manager.config.keys()
    connection.close()
    every = settings(
        {
            "client.dns.lookup": "use_all_dns_ips",
            "connections.max.idle.ms": "600000",
            "metadata.max.age.ms": "1000",
            "reconnect.backoff.ms": "1",
            "reconnect.backoff.max.ms": "1",
            "ssl.ca.location": pem,
            "ssl.key.password": "x",
            "batch.size": "1000",
            "fetch.max.bytes": "1",
            "max.partition.fetch.bytes": "1",
            "queue.buffering.max.kbytes": "1",
        }
    )
    for properties in (every.consumer(), every.producer(), every.admin()):
        assert properties.keys() <= known


def test_a_node_s_configuration_chooses_the_driver() -> None:
    assert isinstance(open_bus("kafka:9092", {}, None, "kafka-python"), KafkaPythonBus)
    assert not isinstance(open_bus("kafka:9092", {}), KafkaPythonBus)


def test_no_client_waits_long_at_an_address_that_a_broker_has_left() -> None:
    for properties in (settings().consumer(), settings().producer(), settings().admin()):
        assert properties["socket_connection_setup_timeout_ms"] == 2_000
        assert properties["socket_connection_setup_timeout_max_ms"] == 2_000
    slow = settings({"consumer.socket.connection.setup.timeout.ms": "7000"})
    assert slow.consumer()["socket_connection_setup_timeout_ms"] == 7_000
    assert slow.consumer()["socket_connection_setup_timeout_max_ms"] == 7_000
    assert slow.admin()["socket_connection_setup_timeout_ms"] == 2_000
