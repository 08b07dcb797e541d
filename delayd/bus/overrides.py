"""The properties that a user may set on a driver: the `kafka` table of a node's configuration.

Not here: which properties a driver knows.

Invariant: a property that carries a promise of the ports is in `PROMISED` and cannot be overridden,
whichever driver is chosen.
"""

from collections.abc import Collection, Mapping
from typing import Final, TypeVar

from delayd.errors import ConfigError

T = TypeVar("T")

ROLES: Final = ("consumer", "producer", "admin")
"""A property's name may begin with one of these and a dot: then it reaches that client only."""

PROMISED: Final = frozenset(
    {
        "acks",
        "allow.auto.create.topics",
        "auto.offset.reset",
        "bootstrap.servers",
        "delivery.report.only.error",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "isolation.level",
        "partitioner",
        "request.required.acks",
        "transactional.id",
    }
)

BATCH_BYTES_MAX: Final = 1_000_000
"""Largest `batch.size`, which is librdkafka's default: targets that take less are sent less."""


def bare(name: str, roles: Collection[str] = ROLES) -> str:
    """Return a property's name without the client that it is for."""
    role, _, rest = name.partition(".")
    return rest if role in roles else name


def refuse_promised(overrides: Mapping[str, str]) -> None:
    """Raise ConfigError if one of the overrides would break a promise of the ports."""
    for name in overrides:
        if bare(name) in PROMISED:
            raise ConfigError(
                f"the Kafka property {name} cannot be overridden",
                remedy="delayd's guarantees rest on its value: remove it",
            )
        if bare(name) == "batch.size" and not 0 < _whole(overrides[name]) <= BATCH_BYTES_MAX:
            raise ConfigError(
                f"the Kafka property {name} is {overrides[name]!r}",
                remedy=f"give it 1 to {BATCH_BYTES_MAX}: no batch may be too large for a target",
            )


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def of_role(overrides: Mapping[str, T], role: str, roles: Collection[str] = ROLES) -> dict[str, T]:
    """Return the overrides that reach one kind of client, by bare name."""
    return {
        bare(name, roles): value
        for name, value in overrides.items()
        if name.startswith(f"{role}.") or bare(name, roles) == name
    }
