"""A real Kafka that lets in only who shows the right password or certificate.

One broker with a listener for each way in. The plain one is the dev cluster's own, by which it is
started and watched; nothing under test uses it.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from certificates import Authority, Leaf
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub exports none
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from nodes import HANGS_S

from delayd.dev.cluster import LocalCluster
from delayd.dev.ports import LOOPBACK, pick_ports
from delayd.dev.startup import ClusterOptions

USER: Final = "postman"
PASSWORD: Final = "un-guessable=pass;word"
KEY_PASSWORD: Final = "open-the-key-9"
WRONG: Final = "wrong-guess-77"
SECRETS: Final = (PASSWORD, KEY_PASSWORD, WRONG)
"""Whatever delayd prints must not hold one of them."""

_LISTENERS: Final[Mapping[str, str]] = {
    "SASLSSL": "SASL_SSL",
    "SASLPLAIN": "SASL_PLAINTEXT",
    "MUTUAL": "SSL",
    "EXPIRED": "SSL",
    "ELSEWHERE": "SSL",
}
SCRAM: Final = {
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}


@dataclass(frozen=True, slots=True)
class GuardedKafka:
    """Where each way in is, and the files that open it."""

    plain: str
    addresses: Mapping[str, str]
    ca: Path
    other_ca: Path
    client: Leaf
    encrypted: Leaf
    expired: Leaf
    stranger: Leaf
    cluster: LocalCluster

    def change_password(self, password: str) -> None:
        """Let the user in with this one from now on; who is in is thrown out."""
        _set_password(self.plain, password)
        [broker] = self.cluster.status()["brokers"]
        self.cluster.restart(broker["name"])

    @property
    def sasl(self) -> str:
        """TLS and a password."""
        return self.addresses["SASLSSL"]

    def keys(self, mechanism: str = "SCRAM-SHA-512", password: str = PASSWORD) -> dict[str, Any]:
        """delayd's settings for `sasl`."""
        return {
            "kafka_security_protocol": "SASL_SSL",
            "kafka_sasl_mechanism": mechanism,
            "kafka_user": USER,
            "kafka_password": password,
            "kafka_ca_file": str(self.ca),
        }


@contextlib.contextmanager
def guarded_kafka(folder: Path) -> Iterator[GuardedKafka]:
    """The broker, up inside."""
    files = folder / "files"
    files.mkdir()
    ours, theirs = Authority(files, "authority"), Authority(files, "other-authority")
    server = ours.leaf("server")
    old = ours.leaf("old-server", lasts=timedelta(days=-1))
    elsewhere = ours.leaf("elsewhere", address="192.0.2.1")
    ports = pick_ports(len(_LISTENERS))
    addresses = {name: f"{LOOPBACK}:{port}" for name, port in zip(_LISTENERS, ports, strict=True)}
    options = ClusterOptions(
        nodes=0,
        broker_settings=_broker_settings(ours.file, server, old, elsewhere),
        broker_listeners=tuple(f"{name}://{address}" for name, address in addresses.items()),
    )
    with LocalCluster(folder / "kafka", options) as cluster:
        _set_password(cluster.bootstrap, PASSWORD)
        yield GuardedKafka(
            plain=cluster.bootstrap,
            addresses=addresses,
            ca=ours.file,
            other_ca=theirs.file,
            client=ours.leaf("client"),
            encrypted=ours.leaf("encrypted", password=KEY_PASSWORD),
            expired=ours.leaf("expired", lasts=timedelta(days=-1)),
            stranger=theirs.leaf("stranger"),
            cluster=cluster,
        )


def _broker_settings(ca: Path, server: Leaf, old: Leaf, elsewhere: Leaf) -> dict[str, str]:
    protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **_LISTENERS}
    settings = {
        "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAM)),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server.both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ca),
    }
    for name, leaf in (("EXPIRED", old), ("ELSEWHERE", elsewhere)):
        settings[f"listener.name.{name.lower()}.ssl.keystore.type"] = "PEM"
        settings[f"listener.name.{name.lower()}.ssl.keystore.location"] = str(leaf.both)
    settings["listener.name.mutual.ssl.client.auth"] = "required"
    module = "org.apache.kafka.common.security"
    for name in ("saslssl", "saslplain"):
        known = f'{module}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        settings[f"listener.name.{name}.plain.sasl.jaas.config"] = known
        for mechanism in SCRAM:
            key = f"listener.name.{name}.{mechanism.lower()}.sasl.jaas.config"
            settings[key] = f"{module}.scram.ScramLoginModule required;"
    return settings


def _set_password(bootstrap: str, password: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [
        UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), password.encode())
        for mechanism in SCRAM.values()
    ]
    for each in wanted:  # one change of a user in a request
        for future in admin.alter_user_scram_credentials([each]).values():
            future.result(HANGS_S)
