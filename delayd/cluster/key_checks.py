"""Whether a reader of the buffer was given every cluster key that it needs.

A key that was replaced signs nothing any more, but the buffer may hold what it has signed. Not
here: the keys themselves (`delayd.config.cluster_key`).
Source: docs/operations.md, "A new cluster key".
"""

from collections.abc import Mapping
from contextlib import closing

from delayd.bus import Bus, Record
from delayd.bus.reading import read_between
from delayd.config.cluster_key import check_key, fingerprints
from delayd.errors import WrongClusterKeyError
from delayd.runtime.clock import Clock
from replication.settings import KEYS_BEFORE_MAX, Settings


def check_keys(bus: Bus, key: str, settings: Settings, clock: Clock, timeout_ms: int) -> None:
    """Raise WrongClusterKeyError unless these keys prove all that the buffer holds."""
    check_key(key, settings)
    with closing(bus.cluster()) as kafka:
        starts = kafka.start_offsets(settings.buffer.name, timeout_ms)
    check_keys_before(key, settings, bus, starts, clock, timeout_ms)


def check_keys_before(
    key: str,
    settings: Settings,
    bus: Bus,
    read_to: Mapping[int, int],
    clock: Clock,
    timeout_ms: int,
) -> None:
    """Raise WrongClusterKeyError if a key is missing that may have signed records which are still
    to be read: without it they would be rejected, and this reader would disagree with all others.

    `read_to`: the offset in the buffer from which it reads, by partition.
    """
    known = fingerprints(key, settings.cluster)
    for old, until_ms in settings.keys_before_ms().items():
        if old in known:
            continue
        unread = first_before(bus, settings.buffer.name, read_to, until_ms, clock, timeout_ms)
        if unread is not None:
            raise WrongClusterKeyError(
                f"records of {settings.buffer.name}/{unread.partition} from offset {unread.offset} "
                f"on are still to be read, and the key whose fingerprint is {old} may have signed "
                "some of them",
                remedy="add that key as another line of cluster_key (DELAYD_CLUSTER_KEY), below "
                "the one that signs",
            )


def unnamed_keys_lack(
    bus: Bus, settings: Settings, read_to: Mapping[int, int], clock: Clock, timeout_ms: int
) -> str | None:
    """Return why a key may have signed unread records that not even the frontier names, or None:
    it names the last KEYS_BEFORE_MAX, and those before them signed nothing after the first of these
    came to an end. `read_to` as of `check_keys_before`."""
    before_ms, buffer = settings.keys_before_ms(), settings.buffer.name
    if len(before_ms) < KEYS_BEFORE_MAX:
        return None
    old = first_before(bus, buffer, read_to, min(before_ms.values()), clock, timeout_ms)
    if old is None:
        return None
    return (
        f"records of {buffer}/{old.partition} from offset {old.offset} on may have been signed by "
        f"a cluster key of which the frontier says nothing: it names the last {len(before_ms)}"
    )


def first_before(
    bus: Bus,
    topic: str,
    read_to: Mapping[int, int],
    until_ms: int,
    clock: Clock,
    timeout_ms: int,
) -> Record | None:
    """Return a record that is still to be read and was appended before a time; None if there is
    none. Offsets alone do not say it: those between a reader and the end may be commit markers."""
    with closing(bus.cluster()) as kafka:
        since = kafka.offsets_since(topic, until_ms, timeout_ms)
        ends = kafka.end_offsets(topic, timeout_ms, committed=False) | since
    wanted = {partition: ends[partition] for partition in read_to}
    reading = read_between(
        bus, topic, read_to, wanted, clock, records_max=1, timeout_ms=timeout_ms, careful=True
    )
    with closing(reading) as runs:
        return next((record for run in runs for record in run), None)
