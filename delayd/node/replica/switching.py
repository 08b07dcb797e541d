"""A replica's knowledge of the rules switches in its log (`replication.rules`): what it ingests
behind a barrier, and what frontier records say of barriers; and of topics that are full. And which
records it must not act on at all: those of another cluster, or of another realm.

Source: docs/design/frontier.md, "Rules switch"; docs/design/recovering.md, "The record".
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import structlog

from delayd.bus import Record
from delayd.cluster.frontier_log import unreadable
from delayd.errors import DiskError, FrontierError, ShardsChangedError, TopicMismatchError
from delayd.request import RequestLimits
from delayd.request.request import Request, Switch
from delayd.wheel import Progress
from replication.quotas import Full, full_after, full_of
from replication.record import FrontierFormatError, FrontierRecord, decode
from replication.rules import Barrier, Rules
from replication.settings import RULES_KNOWN, Settings

log = structlog.get_logger()


def limits_at(settings: Settings, proof_key: bytes, progress: Progress | None) -> RequestLimits:
    """Return the limits of a cluster where a wheel's checkpoint stands; None: where it begins."""
    rules = Rules(settings.rules_version, progress.rules if progress else ())
    limits = RequestLimits.of(settings, proof_key, rules)
    return replace(limits, full=full_of(progress.full)) if progress else limits


def limits_with(
    limits: RequestLimits, barriers: Iterable[Barrier], full: Full | None = None
) -> RequestLimits:
    """Return the limits of a cluster that these barriers have switched too; `full`: the topics that
    are full, if that has changed."""
    rules = limits.rules.with_barriers(barriers)
    full = limits.full if full is None else full
    is_same = rules is limits.rules and full == limits.full
    return limits if is_same else replace(limits, rules=rules, full=full)


def switched(limits: RequestLimits, record: Record, switch: Switch) -> RequestLimits:
    """Return the limits behind a barrier; the same if it is no higher than the rules at its place.

    Raises TopicMismatchError if this version of delayd does not know the new rules.
    """
    partition, offset = record.partition, record.offset
    if switch.version <= limits.rules.version_at(partition, offset):
        return limits
    if switch.version not in RULES_KNOWN:
        raise TopicMismatchError(
            f"at {partition}/{offset} the buffer switches to ingest rules version "
            f"{switch.version}, which delayd knows since {switch.release}; this program knows "
            f"{', '.join(map(str, RULES_KNOWN))}",
            remedy=f"run delayd {switch.release} or later here",
        )
    log.info("rules_switched", partition=partition, offset=offset, version=switch.version)
    return limits_with(limits, [Barrier(partition, offset, switch.version)])


def behind(limits: RequestLimits, record: Record, request: Request) -> RequestLimits:
    """Return the limits behind a record that changes them for its partition: a barrier, or what
    says that a topic is full or open. The same limits behind any other."""
    if request.switch is not None:
        return switched(limits, record, request.switch)
    if request.gate is not None:
        return replace(limits, full=full_after(limits.full, record.partition, request.gate))
    return limits


def refuse_unreadable(*values: bytes) -> None:
    """Raise FrontierError if a frontier in a checkpoint needs a newer release than this one; empty
    for none."""
    try:
        for value in filter(None, values):
            decode(value)
    except FrontierFormatError as error:
        raise unreadable("the frontier in the checkpoint of this node", error) from error


def refuse_other_cluster(value: bytes, settings: Settings) -> None:
    """Raise DiskError if a data directory, whose checkpoint has this frontier record, belongs to
    another buffer topic, whose offsets mean nothing here. Empty: it has none."""
    if not value:
        return
    known = decode(value).settings
    if (known.cluster, known.buffer) != (settings.cluster, settings.buffer):
        raise DiskError(
            f"the data directory belongs to the cluster {known.cluster!r} with buffer "
            f"{known.buffer.name} ({known.buffer.topic_id}), not to this one",
            remedy="give the node its own data_dir, or empty this one",
        )


def refuse_changed(read: FrontierRecord, settings: Settings) -> None:
    """Raise FrontierError if the frontier has moved to another topic since a node was started with
    these settings: then masters fence each other by another id (`Settings.realm`).
    ShardsChangedError if the cluster has, or is getting, another number of shards."""
    if read.settings.frontier != settings.frontier:
        raise FrontierError(
            f"the cluster goes on as {read.settings.realm}, and this node was started in "
            f"{settings.realm}: the frontier was recovered meanwhile",
            remedy="start this node again",
        )
    if read.resharding or read.settings.shards != settings.shards:
        shards = read.resharding or read.settings.shards
        raise ShardsChangedError(
            f"the cluster gets {shards} shards, and this node began with {settings.shards}",
            remedy="it begins anew, with those that it finds then",
        )


def refuse_passed(barriers: Iterable[Barrier], rules: Rules, ingested: Sequence[int]) -> None:
    """Raise FrontierError if a node with these rules has ingested beyond one of these barriers, and
    does not know it: an older version of delayd did."""
    for barrier in barriers:
        partition, offset, version = barrier
        if barrier not in rules.barriers and ingested[partition] > offset:
            raise FrontierError(
                f"the frontier names a switch to rules version {version} at {partition}/{offset} "
                "of the buffer, and this node has ingested beyond it by rules version "
                f"{rules.version_at(partition, offset + 1)}",
                remedy="an older version of delayd has run on its data directory after the switch: "
                "empty it, and the wheel is rebuilt from the buffer",
            )
