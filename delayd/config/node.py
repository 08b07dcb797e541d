"""The configuration of a node: a TOML file, every key also as `DELAYD_<KEY>`; the environment wins.

The same file says how the node connects to Kafka and etcd, in the keys of
`delayd/config/security.py`.

Only what may differ from node to node is here. What replicas must agree on is fixed by
`delayd topics create` and read from the frontier record.
"""

import re
import socket
import ssl
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SecretStr,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import NoDecode, SettingsConfigDict

from delayd.config.cancel_on import RULES_MAX, CancelOn
from delayd.config.cluster_key import refuse_weak_key
from delayd.config.security import (
    FileSettings,
    Security,
    certificate_digest,
    config_error,
    pair_problem,
    problems_of,
    read_toml,
    with_secrets,
)
from delayd.errors import ConfigError
from replication.election_times import ElectionTimes
from replication.smoothing import RATE_MAX, TOPICS_MAX

YIELD_POLLS_MAX = 2
"""What the node that is restarted last yields, in poll intervals: one more than the node before."""

TOKEN = re.compile(r"[!-~]{16,}")

TopicName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
"""What Kafka allows."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class NodeConfig(FileSettings):
    """Settings of one node. Times carry their unit in the name."""

    model_config = SettingsConfigDict(
        env_prefix="DELAYD_", extra="forbid", frozen=True, hide_input_in_errors=True
    )

    cluster: str = "delayd"
    """Name of the cluster: the first part of its realm (docs/design/election.md, "Realm")."""
    node: str = Field(default_factory=socket.gethostname)
    """This node's name, unique within the cluster."""
    bootstrap: str
    """Kafka brokers, `host:port,host:port`."""
    etcd: Annotated[tuple[str, ...], NoDecode]
    """etcd endpoints as URLs; in the environment separated by commas."""
    cluster_key: SecretStr
    """The cluster's secret, as `delayd topics create` printed it; the same on every node."""
    cluster_key_file: Path | None = None
    """A file that holds it instead."""
    data_dir: Path
    """Where the wheel lives; one directory per node."""
    prefix: str = "delayd-"
    """Prefix of delayd's own topics."""
    admin_host: str = "127.0.0.1"
    admin_port: int = Field(default=7070, ge=0, le=65535)
    admin_advertised: str | None = Field(default=None, pattern=r"^[^\s/:]+:[0-9]{1,5}$")
    """Where others reach the admin port, `host:port`, if not there where it listens."""
    admin_cert_file: Path | None = None
    """The admin port's certificate, with the chain behind it: with it, the port speaks TLS."""
    admin_key_file: Path | None = None
    export_token: SecretStr | None = None
    """A request for an export must carry it. None: anyone who reaches the admin port gets one."""
    export_token_file: Path | None = None
    """A file that holds it instead."""
    api_ca_file: Path | None = None
    """Certificate authorities whose certificates clients may show to the HTTP API in place of a
    token. None: certificates are not asked for."""
    api_tokens_file: Path | None = None
    """The tokens of the HTTP API (`delayd/config/api_tokens.py`). None: nobody may change
    anything through it."""
    api_anonymous_reads: bool = False
    """Everybody who reaches the admin port may read through the HTTP API, without a token."""
    api_requests_per_s: int = Field(default=100, ge=1, le=100_000)
    """Requests to the HTTP API that a token, or an address without one, may make; for a moment
    twice as many."""
    lease_ttl_s: int = Field(default=3, ge=2, le=60)
    """TTL of the leader key: how soon a dead master is replaced."""
    pulse_suspicion_ms: int = Field(default=1000, ge=0)
    """After so much silence of a master whose process has not ended, a follower misses it; if most
    members do, it is deposed. 0: never, its lease decides."""
    campaign_order: int | None = Field(default=None, ge=0)
    """Nodes 0 and 1 let others campaign first when there is no master: in a rolling update they are
    restarted last, and what they won they would soon give away. None: at once."""
    connect_timeout_s: float = Field(default=30, gt=0)
    """How long Kafka and etcd may be unreachable at start before the node gives up (exit 3)."""
    export_hold_s: float = Field(default=900, ge=0)
    """How long delivered slots are kept, so that audits can compare nodes at an older cut."""
    checkpoint_interval_ms: int = Field(default=1000, ge=10)
    clock_drift_max_ms: int = Field(default=500, ge=1)
    """How far the broker's clock may be from this node's before it refuses to be master."""
    idle_step_interval_ms: int = Field(default=5000, ge=10, le=15_000)
    """How often a master with nothing to do writes an empty step."""
    step_records_max: int = Field(default=10_000, ge=1)
    step_bytes_max: int = Field(default=16 * 1024 * 1024, ge=1024)
    unreplicated_targets: bool = False
    """Deliver to partitions with one replica in sync although there are more brokers."""
    rate_max: dict[TopicName, Annotated[int, Field(ge=1, le=RATE_MAX)]] = Field(
        default_factory=dict, max_length=TOPICS_MAX
    )
    """Records a second at most, by target: smoothing. Only the master's counts, so give all nodes
    the same."""
    traces: bool = False
    """Send a span of each delivery whose request was traced, as the settings of OpenTelemetry say
    (`OTEL_EXPORTER_OTLP_ENDPOINT`)."""
    cancel_on: tuple[CancelOn, ...] = Field(default_factory=tuple, max_length=RULES_MAX)
    """Topics of events that cancel messages (`delayd/config/cancel_on.py`). Only the master's
    count, so give all nodes the same."""
    disk_free_min_bytes: int = Field(default=256 * 1024 * 1024, ge=0)
    """With less free space than this the node takes in no new messages, and goes on delivering."""
    snapshot_bytes_per_s: int = Field(default=64 * 1024 * 1024, ge=64 * 1024)
    """How fast other nodes may copy this node's wheel, all together."""
    compare_s: float = Field(default=600, ge=0)
    """How often a node compares a part of its wheel with another node's; 0: never, and it answers
    no other node either."""
    on_damage: Literal["fetch", "stop"] = "fetch"
    """What a node does that cannot start on its wheel because it is damaged, or because the buffer
    was trimmed beyond it: fetch another node's wheel, or end."""
    on_difference: Literal["repair", "alert"] = "repair"
    """What a node does whose wheel seems to be wrong where it differs from the others': set it
    aside and build another one from the log, if that is provably enough; or leave it to people."""
    replay_max_s: float = Field(default=60, ge=0)
    """With a longer replay of the buffer to come, by estimate, a node that starts copies another
    node's wheel, if that takes less than half as long; 0: never."""
    guarantee: Literal["exactly-once", "at-least-once", "either"] = "either"
    """What the cluster must have been made for, or the node does not start."""
    driver: Literal["confluent", "kafka-python"] = "confluent"
    """The Kafka client that moves records: librdkafka, or kafka-python."""
    log_json: bool = False
    """Log lines as JSON objects."""
    security: Annotated[Security, NoDecode] = Field(default_factory=Security)
    """How it gets into Kafka and etcd: not a key, its keys stand beside these."""

    @property
    def election_times(self) -> ElectionTimes:
        """Return the times of this node's election."""
        order = YIELD_POLLS_MAX if self.campaign_order is None else self.campaign_order
        yields = max(0, YIELD_POLLS_MAX - order)
        return ElectionTimes(lease_ttl_s=self.lease_ttl_s, yield_polls=yields)

    @property
    def admin_address(self) -> str:
        """Return where others reach the admin port: `host:port`, or `https://DIGEST@host:port`
        where it speaks TLS, DIGEST being that of the certificate as it is in its file now."""
        address = self.admin_advertised or f"{self.admin_host}:{self.admin_port}"
        if self.admin_cert_file is None:
            return address
        return f"https://{certificate_digest(self.admin_cert_file)}@{address}"

    @property
    def admin_listener(self) -> tuple[str, int, Path | None, Path | None, Path | None]:
        """Return where the admin port listens, the files of its certificate and key, and that of
        the authorities of clients."""
        return (
            *(self.admin_host, self.admin_port),
            *(self.admin_cert_file, self.admin_key_file, self.api_ca_file),
        )

    @model_validator(mode="after")
    def _has_admin_pair(self) -> "NodeConfig":
        if problem := pair_problem("admin", self.admin_cert_file, self.admin_key_file):
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _reads_events(self) -> "NodeConfig":
        for rule in self.cancel_on:
            if rule.topic.startswith((self.prefix, "__")):
                raise ValueError(
                    f"cancel_on: {rule.topic} holds no events: it belongs to delayd or to Kafka"
                )
        return self

    @model_validator(mode="after")
    def _has_authorities(self) -> "NodeConfig":
        if self.api_ca_file is None:
            return self
        if self.admin_cert_file is None:
            raise ValueError(
                "api_ca_file needs TLS on the admin port: give admin_cert_file and admin_key_file"
            )
        try:
            ssl.create_default_context(cafile=self.api_ca_file)
        except OSError as error:  # ssl.SSLError, too
            raise ValueError(
                f"api_ca_file: {self.api_ca_file} has no certificates: {error}"
            ) from error
        return self

    @model_validator(mode="before")
    @classmethod
    def _read_secrets(cls, values: dict[str, Any]) -> dict[str, Any]:
        return with_secrets(values, ("cluster_key", "export_token"))

    @field_validator("etcd", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    @field_validator("etcd")
    @classmethod
    def _urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            if not re.match(r"https?://[^/]+", url):
                raise ValueError(f"{url!r} is not a URL such as http://127.0.0.1:2379")
        if not value:
            raise ValueError("at least one endpoint is needed")
        return value

    @field_validator("cluster_key")
    @classmethod
    def _secret(cls, value: SecretStr) -> SecretStr:
        try:
            refuse_weak_key(value.get_secret_value())
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return value

    @field_validator("export_token")
    @classmethod
    def _token(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not TOKEN.fullmatch(value.get_secret_value()):
            raise ValueError("it must be at least 16 visible ASCII characters, without spaces")
        return value

    @field_validator("cluster", "node")
    @classmethod
    def _name(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError(f"{value!r} is not a name (letters, digits, dot, dash, underscore)")
        return value


def load(file: Path | None, data_dir: Path | None = None) -> NodeConfig:
    """Read a node's settings; ConfigError names every key that is wrong and what it should be.

    With `data_dir` that one holds, whatever file and environment say.
    """
    values = {} if file is None else read_toml(file)
    if data_dir is not None:
        values["data_dir"] = data_dir
    of_security = {key: values.pop(key) for key in Security.model_fields if key in values}
    # It is a field, and no key.
    problems = ["security: extra inputs are not permitted"] if values.pop("security", None) else []
    security, config = None, None
    try:
        security = Security(**of_security)
    except ValidationError as error:
        problems += problems_of(error)
    try:
        config = NodeConfig(**values, security=security or Security.none())
    except ValidationError as error:
        problems = [*problems_of(error), *problems]
    if problems or config is None:
        raise config_error(problems, file)
    # The environment wins over the file, and must not win over what a command names.
    return config if data_dir is None else config.model_copy(update={"data_dir": data_dir})
