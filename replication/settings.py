"""The cluster's fixed settings: chosen once by `delayd topics create`, carried by every frontier.

They decide what nodes compute from the log, so no node may choose its own. The frontier record is
authoritative; etcd holds a copy for people.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, get_args

RULES_VERSION = 7
"""Version of the ingest rules that a new cluster is made with."""

SMOOTHING_RULES = 3
"""The first version whose internal records may carry a turn (`replication.smoothing`). It changes
nothing else."""

STEADY_RULES = 4
"""The first version in which one wrong clock does not move log time (`replication.log_time`), the
digest of a request leaves tracing headers out, and a due time in another unit is refused."""

WISHES_RULES = 5
"""The first version in which a message may have wishes: headers that say how it is handled beside
its delivery (docs/design/wishes.md). Older ones refuse these headers."""

SERIES_RULES = 6
"""The first version in which a request may ask for a series (docs/design/series.md). Older ones
refuse its headers."""

RESCHEDULE_RULES = 7
"""The first version in which a request may give what is pending another due time
(docs/design/rescheduling.md). Older ones refuse its operations."""

LOCAL_TIME_RULES = RESCHEDULE_RULES
"""The first version in which a due time may be that of a zone's clock (docs/design/local-times.md).
Older ones refuse it."""

PAUSE_RULES = RESCHEDULE_RULES
"""The first version in which orders pause a target topic (docs/design/pauses.md). Older ones refuse
their records."""
DEBOUNCE_RULES = RESCHEDULE_RULES
"""The first version in which requests may be debounced (docs/design/debounce.md). Older ones refuse
it."""

QUOTA_RULES = RESCHEDULE_RULES
"""The first version in which a target topic may be full (docs/design/quotas.md). Older ones refuse
the records that say so."""

FORECAST_RULES = RESCHEDULE_RULES
"""The first version in which replicas store what a forecast needs beside a receipt `scheduled`
(docs/reference/requests.md, "Forecasts")."""

RULES_KNOWN: Final = (
    2,
    SMOOTHING_RULES,
    STEADY_RULES,
    WISHES_RULES,
    SERIES_RULES,
    RESCHEDULE_RULES,
)
"""Versions that this package follows; a node that reads another one must stop."""

TOPIC_ROLES: Final = ("buffer", "frontier", "receipts", "dead")

LANES = 64
"""Independent queues of delivery per shard (docs/design/frontier.md, "Lanes")."""

DAY_MS = 24 * 60 * 60 * 1000

_TRACING_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_.-")
_MINUTE_MS = 60 * 1000
RETRY_DELAYS_MS: Final = (
    *(10_000, 30_000),
    *(minutes * _MINUTE_MS for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)
"""Back-off of messages whose target fails, unless the cluster was made with another one:
RocketMQ's 16 steps from 10 s to 2 h."""

SHARDS_MAX = 64
"""Each is a thread and some connections of a node that leads it."""

RETRIES_MAX = 64
"""Longest back-off: every retry is a record in the buffer."""

RECEIPTS_VERDICTS: Final = "verdicts"
"""Receipts that a client needs: the outcome of requests with an id, and failures."""

RECEIPTS_ALL: Final = "all"
"""Also `scheduled` and `delivered` for every message."""

EXACTLY_ONCE: Final = "exactly-once"
"""Progress is committed with the deliveries, in Kafka transactions."""

AT_LEAST_ONCE: Final = "at-least-once"
"""Progress is written to etcd after the deliveries: for brokers without transactions."""

NAMED_BY_CLUSTER: Final = 1
"""Transactional id and etcd keys carry the cluster's name alone: two clusters of one name capture
each other. As all clusters were named whose settings do not say."""

NAMED_BY_TOPIC: Final = 2
"""They carry the id of the frontier topic too, which no other cluster has."""

TRACING_HEADERS: Final = (
    *("traceparent", "tracestate", "baggage", "b3", "x-b3-*", "sentry-trace", "uber-trace-id"),
    *("x-datadog-*", "elastic-apm-traceparent"),
)
"""Headers that tracing agents write anew at each send: no part of what a request asks for. They
are compared without regard to case; a `*` at the end stands for any more."""

OWN_TRACING_HEADERS_MAX = 32

FINGERPRINT_DIGITS = 16
"""Hexadecimal digits of `Settings.key_fingerprint`."""

KEYS_BEFORE_MAX = 3
"""Cluster keys that are remembered besides the one that signs."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A delayd topic. The id tells a topic from one that was deleted and created again."""

    name: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that replicas must agree on. Sizes in bytes, times in ms."""

    cluster: str
    partitions: int
    """P: partitions of the buffer, fixed for ever."""
    lanes: int
    max_delay_ms: int
    """Longest delay; the buffer's retention is at least a day more."""
    record_bytes_max: int
    """Largest decompressed request."""
    id_memory_ms: int
    """How long an id is remembered after its message was due, and what became of it."""
    rules_version: int
    prefix: str
    """Prefix of delayd's own topics, which no message may target."""
    retry_delays_ms: tuple[int, ...]
    """Pauses before the 1st, 2nd, ... retry; after the last one a message is dead."""
    receipts_written: str
    """Which receipts are written: RECEIPTS_VERDICTS or RECEIPTS_ALL."""
    key_fingerprint: str
    """Tells the cluster key from any other, and nothing about it (delayd/config/cluster_key.py)."""
    buffer: Topic
    frontier: Topic
    receipts: Topic
    dead: Topic
    guarantee: str = EXACTLY_ONCE
    """How often a message may be delivered: EXACTLY_ONCE or AT_LEAST_ONCE. It decides, beside the
    rules version, what becomes of records (`ingest.py`)."""
    naming: int = NAMED_BY_CLUSTER
    """How the cluster is named in Kafka and etcd: NAMED_BY_CLUSTER or NAMED_BY_TOPIC."""
    tracing_headers: tuple[str, ...] = ()
    """The cluster's own, besides TRACING_HEADERS: lower case, perhaps with a `*` at the end."""
    keys_before: tuple[str, ...] = ()
    """Cluster keys that signed before, the last one last: `fingerprint/time`, with the Unix ms
    until which records may have been signed by it."""
    shards: int = 1
    """S: how many parts of the buffer have masters of their own (`replication.shards`)."""
    virtual: bool = False
    """Its times are those of a clock that tests move (`delayd dev up --virtual`)."""
    unknown: str = ""
    """JSON of the fields that this version does not know, as they were read: they stay in the
    cluster's record whoever writes it. Empty if there are none."""

    def signed_by(self, key_fingerprint: str, now_ms: int) -> "Settings":
        """Return the settings that a master writes whose key has this fingerprint, if these are the
        ones that it has found; no other key signs anything after `now_ms`."""
        if key_fingerprint == self.key_fingerprint:
            return self
        before = [key for key in self.keys_before if not key.startswith(f"{key_fingerprint}/")]
        before.append(f"{self.key_fingerprint}/{now_ms}")
        return replace(
            self, key_fingerprint=key_fingerprint, keys_before=tuple(before[-KEYS_BEFORE_MAX:])
        )

    def keys_before_ms(self) -> dict[str, int]:
        """Return until when (Unix ms) a key may have signed, by fingerprint."""
        found = (key.split("/") for key in self.keys_before)
        return {digits: int(until_ms) for digits, until_ms in found}

    @property
    def realm(self) -> str:
        """The part of its transactional id and etcd keys that makes them the cluster's own."""
        if self.naming == NAMED_BY_CLUSTER:
            return self.cluster
        return f"{self.cluster}/{self.frontier.topic_id}"

    @property
    def topics(self) -> tuple[Topic, ...]:
        """All of delayd's own topics."""
        return (self.buffer, self.frontier, self.receipts, self.dead)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for the frontier record and for etcd; without what was the only
        choice once, and without tracing headers if there are none."""
        fields = asdict(self)
        if self.guarantee == EXACTLY_ONCE:
            del fields["guarantee"]
        if self.naming == NAMED_BY_CLUSTER:
            del fields["naming"]
        if not self.tracing_headers:
            del fields["tracing_headers"]
        if not self.keys_before:
            del fields["keys_before"]
        if self.shards == 1:
            del fields["shards"]
        if not self.virtual:
            del fields["virtual"]
        unknown = fields.pop("unknown")
        return {**json.loads(unknown), **fields} if unknown else fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Settings":
        """Invert `to_json`; raises ValueError for fields that are not as it writes them."""
        names = {each.name for each in dataclasses.fields(cls)} - {"unknown"}
        values = {name: value for name, value in fields.items() if name in names}
        if more := {name: value for name, value in fields.items() if name not in names}:
            values["unknown"] = json.dumps(more, separators=(",", ":"))
        try:
            for role in TOPIC_ROLES:
                values[role] = Topic(**values[role])
            for name in ("retry_delays_ms", "tracing_headers", "keys_before"):
                if type(values.get(name)) is list:
                    values[name] = tuple(values[name])
            made = cls(**values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"settings do not have the expected fields: {error}") from error
        for part in (made, *made.topics):
            for name, kind in part.__annotations__.items():
                if not _is_of(kind, getattr(part, name)):
                    raise ValueError(f"settings: {name} is not of type {kind}")
        problem = settings_problem(
            made.max_delay_ms,
            made.retry_delays_ms,
            made.receipts_written,
            made.guarantee,
            made.tracing_headers,
            made.id_memory_ms,
        )
        problem = problem or shards_problem(made.shards, made.partitions, made.guarantee)
        if problem is not None:
            raise ValueError(f"settings: {problem}")
        if made.naming not in (NAMED_BY_CLUSTER, NAMED_BY_TOPIC):
            raise ValueError(f"settings: naming {made.naming} is not known")
        for digits in (made.key_fingerprint, *(key.split("/")[0] for key in made.keys_before)):
            if len(digits) != FINGERPRINT_DIGITS or not set(digits) <= set("0123456789abcdef"):
                raise ValueError(f"settings: {digits!r} is no fingerprint of a key")
        made.keys_before_ms()
        return made


def settings_problem(
    max_delay_ms: int,
    retry_delays_ms: tuple[int, ...],
    receipts_written: str,
    guarantee: str = EXACTLY_ONCE,
    tracing_headers: tuple[str, ...] = (),
    id_memory_ms: int = DAY_MS,
) -> str | None:
    """Return why these may not be chosen; None if they may."""
    if not 1 <= id_memory_ms <= DAY_MS:
        # The buffer keeps a record for the longest delay and a day.
        return f"ids are remembered for 1 ms to {DAY_MS} ms, not for {id_memory_ms}"
    if not 1 <= len(retry_delays_ms) <= RETRIES_MAX:
        return f"{len(retry_delays_ms)} retry delays, where 1 to {RETRIES_MAX} are possible"
    if min(retry_delays_ms) < 1:
        return "a retry delay is at least 1 ms"
    if max(retry_delays_ms) > max_delay_ms:
        # The buffer keeps a record for the longest delay and a day; a retry is one.
        return f"a retry delay is at most the longest delay, {max_delay_ms} ms"
    if receipts_written not in (RECEIPTS_VERDICTS, RECEIPTS_ALL):
        return f"receipts are {RECEIPTS_VERDICTS} or {RECEIPTS_ALL}, not {receipts_written!r}"
    if guarantee not in (EXACTLY_ONCE, AT_LEAST_ONCE):
        return f"the guarantee is {EXACTLY_ONCE} or {AT_LEAST_ONCE}, not {guarantee!r}"
    if len(tracing_headers) > OWN_TRACING_HEADERS_MAX:
        return (
            f"{len(tracing_headers)} tracing headers, where {OWN_TRACING_HEADERS_MAX} are possible"
        )
    for name in tracing_headers:
        stem = name.removesuffix("*")
        is_named = 1 <= len(stem) <= 128 and _TRACING_CHARACTERS.issuperset(stem)
        if not is_named or stem.startswith("delayd-"):
            return (
                f"{name!r} is no name of a tracing header: up to 128 of a-z, 0-9, `_`, `.` and "
                "`-`, perhaps a `*` at the end, and not delayd's own"
            )
    return None


def shards_problem(shards: int, partitions: int, guarantee: str) -> str | None:
    """Return why a cluster may not have so many shards; None if it may."""
    if not 1 <= shards <= SHARDS_MAX:
        return f"a cluster has 1 to {SHARDS_MAX} shards, not {shards}"
    if partitions % shards:
        return (
            f"{partitions} partitions of the buffer cannot be shared out among {shards} shards: "
            "choose a number of partitions that is a multiple of the number of shards"
        )
    if shards > 1 and guarantee == AT_LEAST_ONCE:
        return f"shards need the guarantee {EXACTLY_ONCE}: without transactions there is one"
    return None


def _is_of(kind: object, value: object) -> bool:
    """Return True if a value has exactly the annotated type; a bool is not an int."""
    if type(value) is tuple:
        of = get_args(kind)
        return bool(of) and all(type(item) is of[0] for item in value)
    return type(value) is kind
