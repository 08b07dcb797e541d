"""Fetching a wheel at the start of a node: while it lasts, the admin port says so."""

import asyncio
from typing import Any

import structlog

from delayd import __version__
from delayd.bus import Bus
from delayd.config.node import NodeConfig
from delayd.coordination import Coordination
from delayd.errors import DelaydError, SnapshotError
from delayd.node.monitoring.http import AdminServer, build_fetching_app
from delayd.node.snapshots.fetching import new_fetch, shown
from delayd.runtime.clock import Clock
from replication.settings import Settings

log = structlog.get_logger()

SERVER_STOP_S = 5


class FetcherAtStart:
    """Gets another node's wheel, with an admin port of its own meanwhile."""

    def __init__(self, config: NodeConfig, coordination: Coordination, clock: Clock) -> None:
        self._config = config
        self._coordination = coordination
        self._clock = clock

    async def fetch(self, bus: Bus, settings: Settings, why: DelaydError) -> None:
        """Return when the data directory holds another node's wheel.

        Raises an error like `why`, which says more, if nobody gave one; DiskError.
        """
        config, clock = self._config, self._clock
        log.warning("wheel_unusable", code=why.code, problem=why.message)
        fetch = await asyncio.to_thread(new_fetch, config, bus, self._coordination, settings, clock)
        began_ms = clock.monotonic_ms()

        def status() -> dict[str, Any]:
            return {
                "node": config.node,
                "cluster": config.cluster,
                "version": __version__,
                "role": "fetching",
                "ready": False,
                "unready": "the node fetches its wheel from another node",
                "fetch": shown(fetch.view, why.message, clock.monotonic_ms() - began_ms),
            }

        admin = AdminServer(build_fetching_app(status), config.admin_host, config.admin_port)
        serving = asyncio.create_task(admin.serve())
        try:
            await asyncio.to_thread(fetch.run, config.connect_timeout_s)
        except SnapshotError as error:
            raise type(why)(f"{why.message}; {error.message}", remedy=error.remedy) from why
        finally:
            admin.should_exit = True
            await asyncio.wait({serving}, timeout=SERVER_STOP_S)
