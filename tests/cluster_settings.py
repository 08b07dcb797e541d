"""Settings of a cluster that tests make up; `replace` what matters to one."""

from typing import Final

from delayd.request import RequestLimits
from replication.settings import DAY_MS, RULES_VERSION, Settings, Topic

PARTITIONS: Final = 2
LANES: Final = 4

SETTINGS: Final = Settings(
    cluster="c",
    partitions=PARTITIONS,
    lanes=LANES,
    max_delay_ms=40 * DAY_MS,
    record_bytes_max=983_052,
    id_memory_ms=3_600_000,
    rules_version=RULES_VERSION,
    prefix="delayd-",
    retry_delays_ms=(10_000, 30_000),
    receipts_written="verdicts",
    key_fingerprint="0123456789abcdef",
    buffer=Topic("delayd-buffer", "id-1"),
    frontier=Topic("delayd-frontier", "id-2"),
    receipts=Topic("delayd-receipts", "id-3"),
    dead=Topic("delayd-dead", "id-4"),
)

REQUEST_LIMITS: Final = RequestLimits(
    max_delay_ms=DAY_MS,
    record_bytes_max=10_000,
    partitions=4,
    cluster="c",
    proof_key=b"the key of the cluster",
)
