"""How delayd connects to Kafka and etcd: protocol, certificates, names and passwords.

One set of keys for nodes, commands, audits and the Python client, from a TOML file or as
`DELAYD_<KEY>`; the environment wins. A secret may stand in a file of its own, which is how
orchestrators hand them out.

Not here: what a driver makes of it (`delayd/bus`, `delayd/client`, `delayd/coordination`).

Invariants:
- what contradicts itself, or names a file that is of no use, is refused before anybody connects;
- no secret is in a `repr`, in an error or in what is dumped; `properties` alone shows those of
  Kafka, to the driver.
"""

import hashlib
import re
import ssl
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from delayd.errors import ConfigError

SECRET_BYTES_MAX: Final = 64 * 1024
"""More than any password or key: what is larger is the wrong file."""

PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)

Mechanism: TypeAlias = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
MECHANISMS: Final[tuple[str, ...]] = get_args(Mechanism)

_SASL: Final = ("SASL_PLAINTEXT", "SASL_SSL")
_TLS: Final = ("SSL", "SASL_SSL")

_PROPERTIES: Final[Mapping[str, str]] = {
    "kafka_security_protocol": "security.protocol",
    "kafka_sasl_mechanism": "sasl.mechanism",
    "kafka_user": "sasl.username",
    "kafka_password": "sasl.password",
    "kafka_ca_file": "ssl.ca.location",
    "kafka_cert_file": "ssl.certificate.location",
    "kafka_key_file": "ssl.key.location",
    "kafka_key_password": "ssl.key.password",
}
"""A key, and librdkafka's name for it, which both drivers understand."""


class FileSettings(BaseSettings):
    """Settings from a file; the environment goes before it."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the environment before the file."""
        return (env_settings, init_settings)


class Security(FileSettings):
    """The keys. Files are in PEM; of each secret, itself or its file is given, never both."""

    model_config = SettingsConfigDict(
        env_prefix="DELAYD_", extra="forbid", frozen=True, hide_input_in_errors=True
    )

    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """With `SSL` the brokers are verified; with `SASL` delayd shows a name and a password."""
    kafka_sasl_mechanism: Mechanism | None = None
    kafka_user: str | None = Field(default=None, min_length=1)
    kafka_password: SecretStr | None = Field(default=None, min_length=1)
    kafka_password_file: Path | None = None
    kafka_ca_file: Path | None = None
    """Authorities to trust; without it, those that the machine trusts."""
    kafka_cert_file: Path | None = None
    """delayd's own certificate, with the chain behind it, for brokers that want one."""
    kafka_key_file: Path | None = None
    kafka_key_password: SecretStr | None = Field(default=None, min_length=1)
    kafka_key_password_file: Path | None = None
    kafka: dict[str, str] = Field(default_factory=dict, repr=False)
    """More properties of the driver, under librdkafka's names."""
    etcd_ca_file: Path | None = None
    etcd_cert_file: Path | None = None
    etcd_key_file: Path | None = None
    """Not encrypted: etcd's client takes no password for it."""
    etcd_user: str | None = Field(default=None, min_length=1)
    etcd_password: SecretStr | None = Field(default=None, min_length=1)
    etcd_password_file: Path | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_secrets(cls, values: dict[str, Any]) -> dict[str, Any]:
        return with_secrets(values, ("kafka_password", "kafka_key_password", "etcd_password"))

    @model_validator(mode="after")
    def _makes_sense(self) -> "Security":
        problems = [*_contradictions(self), *_useless_files(self)]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @classmethod
    def none(cls) -> "Security":
        """Return the settings of a local cluster, whatever the environment says."""
        return cls.model_construct()

    def properties(self) -> dict[str, str]:
        """Return librdkafka's properties, secrets among them, for a driver of `delayd.bus`."""
        said = {
            theirs: _plain(getattr(self, ours))
            for ours, theirs in _PROPERTIES.items()
            if ours in self.model_fields_set and getattr(self, ours) is not None
        }
        return {**self.kafka, **said}


def load_security(file: Path | None = None) -> Security:
    """Return the settings of the environment and of a TOML file; a node's own file will do.

    ConfigError names every key that is wrong and what it should be."""
    values = {} if file is None else read_toml(file)
    try:
        return Security(**{k: v for k, v in values.items() if k in Security.model_fields})
    except ValidationError as error:
        raise config_error(problems_of(error), file) from error


def read_toml(file: Path) -> dict[str, Any]:
    """Return the file's keys; ConfigError if it cannot be read, or is not TOML."""
    try:
        return tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot read {file}: {why}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error


def problems_of(error: ValidationError) -> list[str]:
    """Return what is wrong, a line for each key; never the values, which may be secrets."""
    return [
        ": ".join(
            part
            for part in (
                ".".join(map(str, issue["loc"])),
                str(issue["ctx"]["error"])
                if issue["type"] == "value_error"
                else issue["msg"].lower(),
            )
            if part
        )
        for issue in error.errors(include_input=False)
    ]


def config_error(problems: Iterable[str], file: Path | None) -> ConfigError:
    """Return the error for a configuration with these problems."""
    return ConfigError(
        f"configuration: {'; '.join(problems)}",
        remedy=f"correct {file or 'the environment'}; every key is also DELAYD_<KEY>",
    )


def with_secrets(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the values, with each secret whose file is named read from that file.

    ValueError if both are given, or the file holds none; it names the file, never its content."""
    found, problems = dict(values), []
    for name in names:
        key = f"{name}_file"
        file = found.get(key)
        if file is None:
            continue
        if found.get(name) is not None:
            problems.append(f"{name} and {key} are both given: remove one of them")
            continue
        try:
            found[name] = read_secret(Path(file), has_lines=name == "cluster_key")
        except (TypeError, ValueError) as error:
            problems.append(f"{key}: {error}")
    if problems:
        raise ValueError("; ".join(problems))
    return found


def read_secret(file: Path, *, has_lines: bool = False) -> str:
    """Return the one line of a file, without its end, or all of them if it may have several.
    ValueError if there is none."""
    try:
        with file.open("rb") as opened:
            content = opened.read(SECRET_BYTES_MAX + 1)
        text = content.decode()
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not UTF-8: is it the right file?") from None
    secret = text.removesuffix("\n").removesuffix("\r")
    if not secret:
        raise ValueError(f"{file} is empty")
    is_long = len(content) > SECRET_BYTES_MAX or ("\n" in secret and not has_lines)
    if is_long or "\0" in secret:
        raise ValueError(f"{file} holds more than one line: is it the right file?")
    return secret


def pair_problem(side: str, cert: Path | None, key: Path | None) -> str | None:
    """Return what is wrong with a server's certificate and its key, which may not be encrypted;
    None if they are a pair, or none is given."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        missing = f"{side}_key_file" if key is None else f"{side}_cert_file"
        return f"{missing}: a certificate and its key go together"
    if why := _unreadable(cert):
        return f"{side}_cert_file: {why}"
    why = _unreadable(key) or _no_pair(cert, key, None)
    return f"{side}_key_file: {why}" if why else None


def certificate_digest(file: Path) -> str:
    """Return the SHA-256 of the first certificate in a PEM file, in hexadecimal. ConfigError."""
    try:
        found = PEM.search(file.read_text())
        if found is None:
            raise ValueError("it holds no certificate in PEM")
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(found[0])).hexdigest()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot use the certificate in {file}: {error}") from error


def _plain(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def _contradictions(said: Security) -> Iterable[str]:
    own = [name for name in _PROPERTIES if name in said.model_fields_set]
    elsewhere = sorted(name for name in said.kafka if _bare(name) in _PROPERTIES.values())
    if own and elsewhere:
        yield (
            f"{', '.join(own)}: kafka says {', '.join(elsewhere)}; say all of Kafka's security in "
            "one of the two ways"
        )
    elif not elsewhere:
        yield from _contradictions_about_kafka(said, own)
    for side in ("kafka", "etcd"):
        cert, key = getattr(said, f"{side}_cert_file"), getattr(said, f"{side}_key_file")
        if (cert is None) != (key is None):
            missing = f"{side}_key_file" if key is None else f"{side}_cert_file"
            yield f"{missing}: a certificate and its key go together"
    if said.kafka_key_password is not None and said.kafka_key_file is None:
        yield "kafka_key_password: there is no kafka_key_file"
    if (said.etcd_user is None) != (said.etcd_password is None):
        missing = "etcd_user" if said.etcd_user is None else "etcd_password (or etcd_password_file)"
        yield f"{missing}: a user and a password go together"


def _contradictions_about_kafka(said: Security, own: list[str]) -> Iterable[str]:
    protocol = said.kafka_security_protocol
    for name in own:
        useless = f"{name}: of no use with kafka_security_protocol = {protocol}"
        if _PROPERTIES[name].startswith("sasl.") and protocol not in _SASL:
            yield f"{useless}; set SASL_SSL"
        if _PROPERTIES[name].startswith("ssl.") and protocol not in _TLS:
            yield f"{useless}; set SSL or SASL_SSL"
    if protocol in _SASL:
        if said.kafka_sasl_mechanism is None:
            yield f"kafka_sasl_mechanism: {protocol} needs one: {', '.join(MECHANISMS)}"
        if said.kafka_user is None:
            yield f"kafka_user: {protocol} needs one"
        if said.kafka_password is None:
            yield f"kafka_password (or kafka_password_file): {protocol} needs one"


def _bare(name: str) -> str:
    role, _, rest = name.partition(".")
    plain = rest if role in ("consumer", "producer", "admin") else name
    return "sasl.mechanism" if plain == "sasl.mechanisms" else plain


def _useless_files(said: Security) -> Iterable[str]:
    for side in ("kafka", "etcd"):
        ca = getattr(said, f"{side}_ca_file")
        cert, key = getattr(said, f"{side}_cert_file"), getattr(said, f"{side}_key_file")
        unread = False
        for name, file in ((f"{side}_cert_file", cert), (f"{side}_key_file", key)):
            if file is not None and (why := _unreadable(file)):
                unread = True
                yield f"{name}: {why}"
        if ca is not None and (why := _unreadable(ca) or _no_authority(ca)):
            yield f"{side}_ca_file: {why}"
        if cert is not None and key is not None and not unread:
            password = said.kafka_key_password if side == "kafka" else None
            if why := _no_pair(cert, key, password):
                yield f"{side}_key_file: {why}"


def _unreadable(file: Path) -> str | None:
    try:
        with file.open("rb") as opened:
            opened.read(1)
    except OSError as error:
        return f"cannot read {file}: {error.strerror}"
    return None


def _no_authority(file: Path) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(file)
    except (ssl.SSLError, OSError):
        return f"{file} holds no certificate in PEM"
    return None


class _NoPasswordError(Exception):
    """The key wants a password and there is none; never leaves this file."""


def _no_pair(cert: Path, key: Path, password: SecretStr | None) -> str | None:
    def ask() -> str:  # without it OpenSSL would ask at the terminal
        if password is None:
            raise _NoPasswordError
        return password.get_secret_value()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_cert_chain(cert, key, ask)
    except _NoPasswordError:
        return f"{key} is encrypted, and no password is given for it"
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or "no certificate and key in PEM"
        secret = "" if password is None else ", or kafka_key_password is not its password"
        return f"{key} is not the key of {cert}{secret} ({reason})"
    return None
