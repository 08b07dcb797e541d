"""Access to Kafka for tasks, and the cluster key: one file that only this user can read.

Settings of a data source are part of Spark's plans, which its pages and logs show; passwords and
keys must not be in them.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from delayd.bus.overrides import refuse_promised
from replication.log_time import trail_ms_of
from replication.record import FrontierRecord
from replication.settings import STEADY_RULES

_OWNER_ONLY = 0o600


@dataclass(frozen=True, slots=True)
class Access:
    """The brokers, the user's Kafka settings (a node's `kafka`), and what proofs are checked with.

    ConfigError if a setting would break what reading rests on.
    """

    bootstrap: str
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    cluster: str = ""
    cluster_key: str | None = field(default=None, repr=False)
    """Without one proofs are not checked."""
    trail_ms: int = 0
    """How far log time is behind the append times, by the rules since version 4."""
    steady_from: Sequence[int | None] = field(default_factory=list)
    """By partition of the buffer: the first offset that these rules hold for; None if none."""

    @classmethod
    def of(
        cls, record: FrontierRecord, bootstrap: str, kafka: Mapping[str, str], key: str | None
    ) -> "Access":
        """Return the access to the cluster that wrote a frontier record."""
        settings, rules = record.settings, record.rules
        return cls(
            bootstrap,
            kafka,
            settings.cluster,
            key,
            trail_ms_of(settings, STEADY_RULES),
            [rules.ruled_from(number, STEADY_RULES) for number in range(settings.partitions)],
        )

    def __post_init__(self) -> None:
        refuse_promised(self.kafka)

    def write(self, file: Path) -> Path:
        """Write it into a file that only its owner can read; with a cluster of machines, in a
        folder that they share."""
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _OWNER_ONLY)
        with os.fdopen(descriptor, "w") as out:
            os.fchmod(out.fileno(), _OWNER_ONLY)
            json.dump(asdict(self), out)
        return file

    @classmethod
    def read(cls, file: Path) -> "Access":
        """Read what `write` wrote."""
        return cls(**json.loads(file.read_text()))
