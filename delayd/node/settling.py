"""How a node enters a cluster whose number of shards is about to change: it waits until that is
done. If nobody has done it for a while, because whoever began it is gone, the node ends it.

Source: docs/design/shards.md, "More or fewer".
"""

from random import Random
from typing import Final
from zlib import crc32

import structlog

from delayd.bus import Bus
from delayd.cluster.frontier_log import SeenFrontier
from delayd.cluster.resharding import Resharding
from delayd.config.node import NodeConfig
from delayd.errors import DelaydError
from delayd.node.startup_checks import enter_cluster
from delayd.node.surroundings import Surroundings

log = structlog.get_logger()

POLL_MS: Final = 200
PATIENCE_MS: Final = 15_000
"""How long nothing may happen before a node takes it that nobody goes on: a run closes a shard in
less."""
APART_MS: Final = 10_000
"""How much later some nodes do so than others, for two at once fence each other."""


def enter_settled(bus: Bus, surroundings: Surroundings, config: NodeConfig) -> SeenFrontier:
    """As `enter_cluster`, once shards are not closed any more. Blocks until then."""
    clock, event = surroundings.clock, surroundings.threads.event()
    patience_ms = PATIENCE_MS + crc32(config.node.encode()) % APART_MS
    step, since_ms = -1, 0
    while (seen := enter_cluster(bus, surroundings.coordination, config)).record.resharding:
        if seen.record.frontier.step != step:
            step, since_ms = seen.record.frontier.step, clock.monotonic_ms()
        elif clock.monotonic_ms() >= since_ms + patience_ms:
            _end_resharding(bus, surroundings, config, seen)
            since_ms = clock.monotonic_ms()
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
        chance=Random(f"{config.node} {record.frontier.step}"),
    )
    log.warning("shards_left_closed", had=record.settings.shards, to_be=record.resharding)
    for shards in (record.resharding, record.settings.shards):
        try:
            run.to(shards)
            return
        except DelaydError as error:  # It is looked at again.
            log.warning("shards_not_changed", to_be=shards, why=error.message)
