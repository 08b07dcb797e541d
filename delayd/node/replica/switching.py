"""A replica's knowledge of the rules switches in its log (`replication.rules`): what it ingests
behind a barrier, and what frontier records say of barriers.

Source: docs/design/frontier.md, "Rules switch".
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import structlog

from delayd.bus import Record
from delayd.cluster.frontier_log import unreadable
from delayd.errors import FrontierError, TopicMismatchError
from delayd.request import RequestLimits
from delayd.request.request import Switch
from replication.record import FrontierFormatError, decode
from replication.rules import Barrier, Rules
from replication.settings import RULES_KNOWN

log = structlog.get_logger()


def limits_with(limits: RequestLimits, barriers: Iterable[Barrier]) -> RequestLimits:
    """Return the limits of a cluster that these barriers have switched too."""
    rules = limits.rules.with_barriers(barriers)
    return limits if rules is limits.rules else replace(limits, rules=rules)


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


def refuse_unreadable(*values: bytes) -> None:
    """Raise FrontierError if a frontier in a checkpoint needs a newer release than this one; empty
    for none."""
    try:
        for value in filter(None, values):
            decode(value)
    except FrontierFormatError as error:
        raise unreadable("the frontier in the checkpoint of this node", error) from error


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
