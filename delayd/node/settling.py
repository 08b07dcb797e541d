"""How a node enters a cluster whose number of shards is about to change: it waits until that is
done. If nobody has done it for a while, because whoever began it is gone, the node ends it.

Source: docs/design/shards.md, "More or fewer".
"""

from typing import Final

import structlog

from delayd.bus import Bus
from delayd.cluster.frontier_log import SeenFrontier
from delayd.cluster.resharding import Resharding
from delayd.config.node import NodeConfig
from delayd.errors import ReshardError
from delayd.node.startup_checks import enter_cluster
from delayd.node.surroundings import Surroundings

log = structlog.get_logger()

POLL_MS: Final = 200
PATIENCE_MS: Final = 15_000
"""How long shards may be closed before a node takes it that nobody goes on with that: longer than a
run takes to close the most there can be, and write the first records of others."""


def enter_settled(bus: Bus, surroundings: Surroundings, config: NodeConfig) -> SeenFrontier:
    """As `enter_cluster`, once shards are not closed any more. Blocks until then."""
    clock, event = surroundings.clock, surroundings.threads.event()
    until_ms = clock.monotonic_ms() + PATIENCE_MS
    while (seen := enter_cluster(bus, surroundings.coordination, config)).record.resharding:
        if clock.monotonic_ms() >= until_ms:
            _end_resharding(bus, surroundings, config, seen)
            until_ms = clock.monotonic_ms() + PATIENCE_MS
        event.wait(POLL_MS / 1000)
    return seen


def _end_resharding(
    bus: Bus, surroundings: Surroundings, config: NodeConfig, seen: SeenFrontier
) -> None:
    """Give the cluster the shards that it is getting; or those it had, if that cannot be."""
    record = seen.record
    run = Resharding(
        bus,
        record.settings,
        surroundings.clock,
        timeout_ms=int(config.connect_timeout_s * 1000),
        rest_timeout_ms=0,
        wait=surroundings.threads.event().wait,
    )
    log.warning("shards_left_closed", had=record.settings.shards, to_be=record.resharding)
    try:
        run.to(record.resharding)
    except ReshardError as error:
        log.warning("shards_not_changed", why=error.message)
