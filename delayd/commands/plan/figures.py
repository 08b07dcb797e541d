"""The figures that `delayd plan` and docs/design/scale.md work with: each with unit and source.

Not here: the arithmetic (`sizing.py`).

Invariants:
- A figure is written here and nowhere else in the code. Its `says` are words of the page that it
  was taken from; `tests/unit/commands/test_plan_figures.py` looks them up there.
- All values are those of one machine with two processors. They scale; they do not promise.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    """How far a figure can be trusted."""

    MEASURED = "measured"
    DERIVED = "derived"
    """Worked out here from measured figures."""
    FORMAT = "format"
    """Counted from a format: of Kafka's records or of the wheel's frames."""
    SETTING = "setting"
    """A default or a bound of delayd."""
    RULE = "rule"
    """Chosen. Nothing was measured."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, what it counts, and where it comes from."""

    value: float
    unit: str
    meaning: str
    kind: Kind
    source: str = ""
    """Page and heading, relative to docs/; empty for a rule."""
    says: str = ""
    """Words of that page."""


MIB: Final = 1 << 20
DAY_S: Final = 86_400

_PERFORMANCE: Final = "performance.md"
_NATIVE: Final = "adr/0021-native-library.md#figures"
_STORAGE: Final = "design/storage.md"

# What a message costs

INGEST_US: Final = Figure(
    *(6.84, "us", "processor time to take a message in, in Python", Kind.MEASURED),
    *(f"{_PERFORMANCE}#ingest", "| `ingest-cpu` | 6.84 |"),
)
INGEST_NATIVE_US: Final = Figure(
    *(1.82, "us", "the same, natively", Kind.MEASURED),
    *(_NATIVE, "| processor time for a message | 7.66 us | 1.82 us |"),
)
INGEST_PER_S: Final = Figure(
    *(145_952, "messages/s", "what a node takes in, in Python", Kind.MEASURED),
    *(f"{_PERFORMANCE}#ingest", "| `ingest` | 145,952 |"),
)
INGEST_NATIVE_PER_S: Final = Figure(
    *(575_583, "messages/s", "the same, natively", Kind.MEASURED),
    *(_NATIVE, "| rate | 127,154/s | 575,583/s |"),
)
DELIVER_US: Final = Figure(
    *(11.69, "us", "processor time to deliver a message, in Python", Kind.MEASURED),
    *(f"{_PERFORMANCE}#deliver", "| `deliver-cpu` | 11.69 |"),
)
DELIVER_NATIVE_US: Final = Figure(
    *(7.9, "us", "the same, natively, while other programs ran", Kind.MEASURED),
    *(_NATIVE, "| processor time for a message, 3 runs of 300,000 | 16.3 us | 7.9 us |"),
)
DELIVER_PER_S: Final = Figure(
    *(86_325, "messages/s", "what one master delivers, in Python", Kind.MEASURED),
    *(f"{_PERFORMANCE}#deliver", "| `deliver` | 86,325 |"),
)
ID_US: Final = Figure(
    *(45.7, "us", "processor time to take in a message with a new id, in Python", Kind.MEASURED),
    *(_NATIVE, "| new ids | 57.4 | 13.3 | 45.7 | 9.9 |"),
)
ID_NATIVE_US: Final = Figure(
    *(9.9, "us", "the same, natively", Kind.MEASURED),
    *(_NATIVE, "| new ids | 57.4 | 13.3 | 45.7 | 9.9 |"),
)
FRAME_BYTES: Final = Figure(
    *(100, "bytes", "of a frame beside key, value and headers", Kind.FORMAT),
    *(f"{_STORAGE}#frames", "the body begins after 40 bytes"),
)
BUFFER_BYTES: Final = Figure(
    *(85, "bytes", "of a buffer record beside key, value and headers", Kind.FORMAT),
    *("reference/requests.md#request-headers", "`delayd-topic`"),
)
DELIVERED_BYTES: Final = Figure(
    *(110, "bytes", "of a delivered record beside key, value and headers", Kind.FORMAT),
    *("reference/requests.md#delivered-records", "`delayd-source`"),
)
WRITTEN: Final = Figure(
    *(1.82, "bytes", "written to a node's device for a byte of messages", Kind.MEASURED),
    *(f"{_STORAGE}#measured", "from ingest until unlinked, 30 days | 1.82 |"),
)
WRITTEN_DENSE: Final = Figure(
    *(1, "bytes", "more, where hours are dense: their messages are written twice", Kind.FORMAT),
    *(f"{_STORAGE}#limits", "A far message of a dense hour is written twice"),
)
DENSE_HOUR_BYTES: Final = Figure(
    *(32 * MIB, "bytes", "of an hour from which on it is dense", Kind.SETTING),
    *(f"{_STORAGE}#hour-files", "up to 32 MiB"),
)

# What a second costs

STEADY_PER_S: Final = Figure(
    *(5_000, "messages/s", "the even rate at which lateness was measured", Kind.MEASURED),
    *(f"{_PERFORMANCE}#sizes", "| lateness | runs 5, rate 5,000,"),
)
STEADY_MASTER_US: Final = Figure(
    *(59.07, "us", "processor time of the master for a message, there", Kind.MEASURED),
    *(f"{_PERFORMANCE}#lateness", "| `lateness-master-cpu` | 59.07 |"),
)
STEADY_FOLLOWER_US: Final = Figure(
    *(22.12, "us", "of a follower", Kind.MEASURED),
    *(f"{_PERFORMANCE}#lateness", "| `lateness-follower-cpu` | 22.12 |"),
)
STEPS_PER_S: Final = Figure(
    *(130, "steps/s", "of a master under load at most: the middle of 100 to 160", Kind.MEASURED),
    *("performance/profiles.md#lateness-at-a-steady-rate", "100 to 160 steps a second"),
)
IDLE_STEPS_PER_S: Final = Figure(
    *(0.2, "steps/s", "of a master with nothing to do", Kind.SETTING),
    *("operations.md#configuration", "| `idle_step_interval_ms` | `5000` |"),
)
FOLLOWED_STEP_US: Final = Figure(
    *(27, "us", "processor time of a node to read one frontier record", Kind.MEASURED),
    *("performance/profiles.md#lateness-at-a-steady-rate", "74 to 27 us to read"),
)
NODE_PROCESSORS: Final = Figure(
    (STEADY_FOLLOWER_US.value - INGEST_US.value) * STEADY_PER_S.value / 1e6
    - STEPS_PER_S.value * FOLLOWED_STEP_US.value / 1e6,
    *("processors", "of a node at any rate: small batches, heartbeats, polls", Kind.DERIVED),
    *("design/scale.md#where-a-nodes-time-goes", "What is left of a follower"),
)
LED_STEP_US: Final = Figure(
    (
        (STEADY_MASTER_US.value - STEADY_FOLLOWER_US.value - DELIVER_US.value)
        * STEADY_PER_S.value
        / STEPS_PER_S.value
    ),
    *("us", "processor time of a master for one step beside its messages", Kind.DERIVED),
    *("design/scale.md#where-a-nodes-time-goes", "What is left of a master"),
)
FRONTIER_RECORD_BYTES: Final = Figure(
    *(600, "bytes", "of a frontier record in gzip without its partitions", Kind.DERIVED),
    *("design/frontier.md#the-size-of-the-frontier-topic", "| 4 | 930 | 4.7 | 2.8 |"),
)
FRONTIER_PARTITION_BYTES: Final = Figure(
    *(12, "bytes", "more for each partition in it", Kind.DERIVED),
    *("design/frontier.md#the-size-of-the-frontier-topic", "| 256 | 5,972 | 26.5 | 14.7 |"),
)
POLLS_PER_S: Final = Figure(
    *(1_000 / 150, "reads/s", "of a follower from etcd for a shard's leader key", Kind.SETTING),
    *("design/election.md#campaign", "every 150 ms"),
)
READS_PER_S_MAX: Final = Figure(
    *(20, "reads/s", "of a node from etcd for all leader keys, at most", Kind.SETTING),
    *("design/election.md#campaign", "20 times a second at most"),
)
LEADER_WRITES_PER_S: Final = Figure(
    *(2, "writes/s", "of a leader to etcd: a keepalive and the cursor", Kind.SETTING),
    *("design/election.md#keys", "at most once a second"),
)
ETCD_WRITES_PER_S: Final = Figure(
    *(770, "writes/s", "that one client of a node's kind had from etcd", Kind.MEASURED),
    *("design/scale.md#what-a-shard-costs", "770 writes a second"),
)
BROKER_TRANSACTION_MS: Final = Figure(
    *(2.75, "ms", "processor time of a broker for a transaction: 2.6 to 2.9", Kind.MEASURED),
    *("performance/profiles.md#lateness-at-a-steady-rate", "2.6 to 2.9 ms of"),
)

# What a pending message costs

REST_BYTES: Final = Figure(
    *(161.8 / 1.2 * MIB, "bytes", "of memory of a node with few messages pending", Kind.MEASURED),
    *(f"{_PERFORMANCE}#memory", "| `memory-anon` | 161.8 | 161.8 | MiB | 1.20 |"),
)
PENDING_MEMORY_BYTES: Final = Figure(
    (161.8 * MIB - REST_BYTES.value) / 9_900_000,
    *("bytes", "of memory for a pending message, between 0.1 and 10 million", Kind.DERIVED),
    *(f"{_PERFORMANCE}#memory", "| `memory-anon` | 161.8 | 161.8 | MiB | 1.20 |"),
)
PENDING_MEASURED: Final = Figure(
    *(10_000_000, "messages", "the most that were pending when memory was measured", Kind.MEASURED),
    *(f"{_PERFORMANCE}#sizes", "| memory | runs 5, pending 10,000,000 |"),
)
LED_BYTES: Final = Figure(
    *((179.5 - 60.96) * MIB, "bytes", "of memory of a master in a hot second", Kind.MEASURED),
    *(f"{_PERFORMANCE}#hot-second", "| `hot-second-memory` | 179.5 |"),
)
ID_BYTES: Final = Figure(
    *(300, "bytes", "of disk for an id that is remembered, at most", Kind.DERIVED),
    *(f"{_STORAGE}#measured", "it takes 300 bytes in those that are not"),
)
ID_MEMORY_S: Final = Figure(
    *(DAY_S, "s", "that an id is remembered after its message was due", Kind.SETTING),
    *("reference/topics.md#what-is-fixed", "how long ids are remembered | `--id-memory` (24h)"),
)
EXPORT_BYTES: Final = Figure(
    *(100, "bytes", "of disk that must be free for a pending message in an export", Kind.SETTING),
    *("operations.md#a-full-disk", "unless 100 bytes a message are free"),
)
HELD_S: Final = Figure(
    *(900, "s", "that a node keeps what was delivered", Kind.SETTING),
    *("operations.md#configuration", "| `export_hold_s` | `900` |"),
)
FREE_MIN_BYTES: Final = Figure(
    *(256 * MIB, "bytes", "below which a node takes in nothing new", Kind.SETTING),
    *("operations.md#configuration", "| `disk_free_min_bytes` | `268435456` |"),
)
FREE_TIMES: Final = Figure(
    *(2.5, "times", "that much, while which a node keeps a reserve", Kind.SETTING),
    *(f"{_STORAGE}#short-of-room", "While 2.5 times the limit is free"),
)

# What moving and proving costs

COPY_BYTES_PER_S: Final = Figure(
    *(33e6, "bytes/s", "at which a node copies and verifies another one's wheel", Kind.MEASURED),
    *(f"{_STORAGE}#measured", "| copied and verified | 13.9 s, 33 MB/s |"),
)
REPLAY_PER_S: Final = Figure(
    *(47_000, "records/s", "at which a node replays the buffer, in Python", Kind.MEASURED),
    *(f"{_STORAGE}#measured", "| records a second | 43,000 | 47,000 |"),
)
AUDIT_S: Final = Figure(
    *(481, "s", "of an audit of 10 million requests on two processors", Kind.MEASURED),
    *("reference/audit.md#what-it-costs", "| 10 M (0.1.0) | 481 s |"),
)
AUDITED: Final = Figure(
    *(10_000_000, "requests", "in that audit", Kind.MEASURED),
    *("reference/audit.md#what-it-costs", "| 10 M (0.1.0) | 481 s |"),
)
COMPARED_PER_S: Final = Figure(
    *(500_000 / 600, "messages/s", "that a node compares with another one", Kind.SETTING),
    *(f"{_STORAGE}#comparing-running-nodes", "A round ends after 500,000 frames"),
)

# What is chosen

LOAD: Final = Figure(
    *(0.6, "", "of what was measured is planned for; the rest is for bursts", Kind.RULE)
)
NODES_MIN: Final = Figure(
    *(3, "nodes", "the fewest of which one may fail while another restarts", Kind.RULE)
)
BUFFER_COPIES: Final = Figure(
    *(3, "", "replicas of each topic on the brokers", Kind.SETTING),
    *("guarantees.md#what-breaks-them", "Use 3 replicas"),
)
DISK_FILL: Final = Figure(0.8, "", "of a volume that may be full", Kind.RULE)
VOLUME_BYTES_MAX: Final = Figure(
    *(16e12, "bytes", "of the largest volume that a node should need", Kind.RULE)
)
PARTITION_BYTES_MAX: Final = Figure(
    *(500e9, "bytes", "of a partition: moved in 83 minutes at 100 MB/s", Kind.RULE)
)
PARTITION_BYTES_PER_S_MAX: Final = Figure(
    *(20e6, "bytes/s", "into a partition, so that reading it again catches up", Kind.RULE)
)
PARTITIONS_MIN: Final = Figure(
    *(4, "partitions", "of a new cluster's buffer", Kind.SETTING),
    *("reference/cli.md#delayd-topics-create", "partitions of the buffer (4)"),
)
PARTITIONS_MAX: Final = Figure(
    *(1_024, "partitions", "that a buffer may have", Kind.SETTING),
    *("reference/cli.md#delayd-topics-create", "1,024 at most"),
)
SHARDS_MAX: Final = Figure(
    *(64, "shards", "that a cluster may have", Kind.SETTING),
    *("reference/cli.md#delayd-topics-create", "(1), 64 at most"),
)
PROCESSORS_MAX: Final = Figure(
    *(1, "processors", "that a node uses: one process, one interpreter", Kind.RULE),
    *("adr/0018-one-process-for-the-data-plane.md#decision", "The data plane stays one process"),
)
MAX_DELAY_DAYS: Final = Figure(
    *(40, "days", "the longest delay of a new cluster", Kind.SETTING),
    *("reference/cli.md#delayd-topics-create", "longest delay (40)"),
)
REQUEST_BYTES_MAX: Final = Figure(
    *(1_048_588 - 65_536, "bytes", "of the largest request, as Kafka is installed", Kind.SETTING),
    *("reference/topics.md#what-is-fixed", "less 64 KiB"),
)

ALL: Final = {name: each for name, each in globals().items() if isinstance(each, Figure)}
"""All figures by name, in the order of this file."""
