"""How delayd gets into Kafka and etcd: what makes sense, what does not, and no secret shows."""

import os
import traceback
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from pydantic import SecretStr

from delayd.bus.refusals import remedy_of
from delayd.config.security import Security, load_security
from delayd.errors import ConfigError, ExitCode

SECRET = "nobody-may-see-this"
SASL = {
    "kafka_security_protocol": "SASL_SSL",
    "kafka_sasl_mechanism": "SCRAM-SHA-512",
    "kafka_user": "u",
    "kafka_password": SECRET,
}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("DELAYD_"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pem")
    authority = Authority(folder, "authority")
    one, two = authority.leaf("one"), authority.leaf("two")
    locked = authority.leaf("locked", password=SECRET)
    (folder / "text").write_text("no certificate")
    return {
        "ca": authority.file,
        "cert": one.cert,
        "key": one.key,
        "other_key": two.key,
        "locked_cert": locked.cert,
        "locked_key": locked.key,
        "text": folder / "text",
    }


def file_of(tmp_path: Path, **keys: object) -> Path:
    file = tmp_path / "delayd.toml"
    file.write_text("".join(f'{key} = "{value}"\n' for key, value in keys.items()))
    return file


def problem(tmp_path: Path, **keys: object) -> str:
    with pytest.raises(ConfigError) as raised:
        load_security(file_of(tmp_path, **keys))
    assert raised.value.exit_code is ExitCode.USAGE
    shown = "".join(traceback.format_exception(raised.value))
    assert SECRET not in shown, "neither in the message nor in its causes"
    assert "DELAYD_<KEY>" in raised.value.remedy
    return raised.value.message


def test_without_any_setting_nothing_is_said_to_the_driver() -> None:
    assert load_security().properties() == {}


def test_the_drivers_are_told_in_librdkafkas_words(tmp_path: Path, pem: dict[str, Path]) -> None:
    said = load_security(
        file_of(
            tmp_path,
            **SASL,
            kafka_ca_file=pem["ca"],
            kafka_cert_file=pem["locked_cert"],
            kafka_key_file=pem["locked_key"],
            kafka_key_password=SECRET,
        )
    )
    assert said.properties() == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": SECRET,
        "ssl.ca.location": str(pem["ca"]),
        "ssl.certificate.location": str(pem["locked_cert"]),
        "ssl.key.location": str(pem["locked_key"]),
        "ssl.key.password": SECRET,
    }


def test_other_keys_of_a_nodes_file_are_left_alone(tmp_path: Path) -> None:
    assert load_security(file_of(tmp_path, bootstrap="b:1", kafka_security_protocol="SSL"))


def test_the_environment_wins_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELAYD_KAFKA_USER", "other")
    assert load_security(file_of(tmp_path, **SASL)).kafka_user == "other"


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_secret_may_stand_in_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    secret = tmp_path / "password"
    secret.write_bytes(f" {SECRET} {end}".encode())
    for name, value in SASL.items():
        if name != "kafka_password":
            monkeypatch.setenv(f"DELAYD_{name.upper()}", value)
    monkeypatch.setenv("DELAYD_KAFKA_PASSWORD_FILE", str(secret))
    assert load_security().properties()["sasl.password"] == f" {SECRET} "


def test_no_secret_is_shown(tmp_path: Path) -> None:
    said = load_security(
        file_of(tmp_path, **SASL, etcd_user="e", etcd_password=SECRET),
    )
    table = Security(kafka={"sasl.password": SECRET})
    assert SECRET not in f"{said!r} {said} {said.model_dump()} {table!r} {table}"


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"kafka_security_protocol": "TLS"}, "kafka_security_protocol: input should be "),
        ({"kafka_sasl_mechanism": "GSSAPI"}, "kafka_sasl_mechanism: input should be "),
        ({**SASL, "kafka_sasl_mechanism": None}, "kafka_sasl_mechanism: SASL_SSL needs one: PLAIN"),
        ({**SASL, "kafka_user": None}, "kafka_user: SASL_SSL needs one"),
        ({**SASL, "kafka_password": None}, "kafka_password_file): SASL_SSL needs one"),
        ({**SASL, "kafka_user": ""}, "kafka_user: string should have at least 1"),
        ({**SASL, "kafka_password": ""}, "kafka_password: value should have at least 1"),
        ({"kafka_user": "u"}, "kafka_user: of no use with kafka_security_protocol = PLAINTEXT"),
        ({"kafka_password": SECRET}, "kafka_password: of no use"),
        ({**SASL, "kafka_security_protocol": "SSL"}, "set SASL_SSL"),
        ({"kafka_ca_file": "{ca}"}, "kafka_ca_file: of no use"),
        ({"kafka_security_protocol": "SSL", "kafka_cert_file": "{cert}"}, "kafka_key_file: a cert"),
        ({"kafka_security_protocol": "SSL", "kafka_key_file": "{key}"}, "kafka_cert_file: a cert"),
        ({"kafka_security_protocol": "SSL", "kafka_key_password": SECRET}, "no kafka_key_file"),
        ({"kafka_security_protocol": "SSL", "kafka_ca_file": "/no/Such.pem"}, "/no/Such.pem: No"),
        ({"kafka_security_protocol": "SSL", "kafka_ca_file": "{text}"}, "no certificate in PEM"),
        ({**SASL, "kafka_password_file": "{text}"}, "kafka_password_file are both given"),
        (
            {**SASL, "kafka_password": None, "kafka_password_file": "/no/Such"},
            "kafka_password_file: cannot read /no/Such: No such file",
        ),
        (
            {**SASL, "kafka_password": None, "kafka_password_file": "{cert}"},
            "holds more than one line",
        ),
        ({"etcd_user": "u"}, "etcd_password (or etcd_password_file): a user and a password go"),
        ({"etcd_password": SECRET}, "etcd_user: a user and a password go together"),
        ({"etcd_cert_file": "{cert}"}, "etcd_key_file: a certificate and its key go together"),
        ({"etcd_ca_file": "{text}"}, "etcd_ca_file: "),
        (
            {"etcd_cert_file": "{locked_cert}", "etcd_key_file": "{locked_key}"},
            "is encrypted, and no password is given for it",
        ),
        (
            {
                "kafka_security_protocol": "SSL",
                "kafka_cert_file": "{cert}",
                "kafka_key_file": "{other_key}",
            },
            "is not the key of",
        ),
        (
            {
                "kafka_security_protocol": "SSL",
                "kafka_cert_file": "{locked_cert}",
                "kafka_key_file": "{locked_key}",
                "kafka_key_password": "another",
            },
            "or kafka_key_password is not its password",
        ),
        ({**SASL, "kafka.ssl.ca.location": "/ca"}, "one of the two ways"),
        ({**SASL, "kafka.producer.sasl.mechanisms": "PLAIN"}, "one of the two ways"),
    ],
)
def test_what_makes_no_sense_is_named_with_what_to_do(
    tmp_path: Path, pem: dict[str, Path], keys: dict[str, Any], says: str
) -> None:
    """docs/operations.md, "Getting into Kafka and etcd"."""
    given = {
        name if "." not in name else f'kafka."{name.removeprefix("kafka.")}"': value.format(**pem)
        for name, value in keys.items()
        if value is not None
    }
    assert says in problem(tmp_path, **given)


def test_an_empty_file_is_no_secret(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    keys = {**SASL, "kafka_password_file": str(empty)}
    del keys["kafka_password"]
    assert f"{empty} is empty" in problem(tmp_path, **keys)


def test_security_may_be_said_to_the_driver_alone() -> None:
    """As it was before there were keys for it, and for what only librdkafka can."""
    table = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "OAUTHBEARER"}
    assert Security(kafka=table).properties() == table


def test_a_program_may_give_the_settings_itself() -> None:
    said = Security(**{**SASL, "kafka_password": SecretStr(SECRET)})  # type: ignore[arg-type]
    assert said.properties()["sasl.password"] == SECRET


@pytest.mark.parametrize(
    ("said", "key"),
    [
        (
            "_SSL, sasl_ssl://b:1/1: SSL handshake failed: certificate verify failed",
            "kafka_ca_file",
        ),
        ("_AUTHENTICATION, sasl_ssl://b:1/1: SASL authentication error: no", "kafka_password"),
        ("SaslAuthenticationFailedError: Invalid username or password", "kafka_password"),
        ("Broker: Unsupported SASL mechanism", "kafka_sasl_mechanism"),
        ("_TRANSPORT, sasl_ssl://b:1/1: ssl/tls alert bad certificate", "kafka_cert_file"),
        ("_TRANSPORT, socket disconnected", "kafka_security_protocol"),
        ("something else", "check that Kafka runs"),
    ],
)
def test_whatever_a_library_says_there_is_something_to_do(said: str, key: str) -> None:
    """The name of a listener's protocol is in its address, and says nothing."""
    assert key in remedy_of(said)
