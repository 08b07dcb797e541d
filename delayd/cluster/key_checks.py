"""Whether a reader of the buffer was given every cluster key that it needs.

A key that was replaced signs nothing any more, but the buffer may hold what it has signed. Not
here: the keys themselves (`delayd.config.cluster_key`).
Source: docs/operations.md, "A new cluster key".
"""

from collections.abc import Mapping
from contextlib import closing

from delayd.bus import Bus, Cluster
from delayd.config.cluster_key import check_key, fingerprints
from delayd.errors import WrongClusterKeyError
from replication.settings import Settings


def check_keys(bus: Bus, key: str, settings: Settings, timeout_ms: int) -> None:
    """Raise WrongClusterKeyError unless these keys prove all that the buffer holds."""
    check_key(key, settings)
    with closing(bus.cluster()) as kafka:
        starts = kafka.start_offsets(settings.buffer.name, timeout_ms)
        check_keys_before(key, settings, kafka, starts, timeout_ms)


def check_keys_before(
    key: str, settings: Settings, kafka: Cluster, read_to: Mapping[int, int], timeout_ms: int
) -> None:
    """Raise WrongClusterKeyError if a key is missing that may have signed records which are still
    to be read: without it they would be rejected, and this reader would disagree with all others.

    `read_to`: the offset in the buffer from which it reads, by partition.
    """
    known, buffer = fingerprints(key, settings.cluster), settings.buffer.name
    for old, until_ms in settings.keys_before_ms().items():
        if old in known:
            continue
        signed_to = kafka.offsets_since(buffer, until_ms, timeout_ms)
        ends = kafka.end_offsets(buffer, timeout_ms, committed=False)
        unread = [p for p, first in read_to.items() if first < signed_to.get(p, ends[p])]
        if unread:
            raise WrongClusterKeyError(
                f"records of {buffer}/{unread[0]} from offset {read_to[unread[0]]} on are still to "
                f"be read, and the key whose fingerprint is {old} may have signed some of them",
                remedy="add that key as another line of cluster_key (DELAYD_CLUSTER_KEY), below "
                "the one that signs",
            )
