"""Fetching a wheel at the start of a node: while it lasts, the admin port says so."""

import asyncio
import secrets
import threading
from contextlib import suppress
from typing import Any

import structlog

from delayd import __version__
from delayd.bus import Bus
from delayd.config.node import NodeConfig
from delayd.coordination import Coordination
from delayd.errors import CoordinationError, DelaydError, SnapshotError
from delayd.node.election.announcements import MEMBER_TTL_S
from delayd.node.election.etcd_calls import Identity
from delayd.node.monitoring.http import AdminServer, build_fetching_app
from delayd.node.snapshots.fetching import new_fetch, shown
from delayd.runtime.clock import Clock
from replication.settings import Settings

log = structlog.get_logger()

SERVER_STOP_S = 5


def identity_of(config: NodeConfig) -> Identity:
    """Return the name of a node in etcd, in this life until it has its wheel."""
    return Identity(config.node, secrets.token_hex(8), config.admin_address)


def keep_announced(etcd: Coordination, identity: Identity, is_over: threading.Event) -> None:
    """Announce a node that could not lead, until `is_over`; no call is under way on return."""
    lease_id: int | None = None
    while not is_over.is_set():
        try:
            if lease_id is None or etcd.keep_alive(lease_id) is None:
                lease_id = etcd.grant_lease(MEMBER_TTL_S).id
                etcd.put_member(identity.node, identity.member_value(has_room=False), lease_id)
        except CoordinationError:
            lease_id = None
        is_over.wait(MEMBER_TTL_S / 3)
    with suppress(CoordinationError):
        if lease_id is not None:
            etcd.revoke(lease_id)


class FetcherAtStart:
    """Gets another node's wheel; meanwhile it has an admin port, and is announced in etcd."""

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
        is_over = threading.Event()
        announcing = asyncio.create_task(
            asyncio.to_thread(keep_announced, self._coordination, identity_of(config), is_over)
        )
        try:
            await asyncio.to_thread(fetch.run, config.connect_timeout_s)
        except SnapshotError as error:
            raise type(why)(f"{why.message}; {error.message}", remedy=error.remedy) from why
        finally:
            is_over.set()
            admin.should_exit = True
            await asyncio.wait({serving}, timeout=SERVER_STOP_S)
            await announcing
