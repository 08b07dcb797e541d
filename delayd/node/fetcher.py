"""Fetching a wheel at the start of a node, because its own is of no use or old: while it lasts, the
admin port says so."""

import asyncio
import secrets
import threading
from contextlib import closing, suppress
from functools import partial
from typing import Any

import structlog

from delayd import __version__
from delayd.bus import Bus
from delayd.cluster.admin_client import admin_of, get, url_of
from delayd.config.node import NodeConfig
from delayd.coordination import Coordination
from delayd.errors import (
    CoordinationError,
    DelaydError,
    DiskError,
    DiskFullError,
    SnapshotError,
)
from delayd.node.election.etcd_calls import Identity
from delayd.node.election.membership import MEMBER_TTL_S
from delayd.node.monitoring.http import AdminServer, build_fetching_app
from delayd.node.replica.replica import Replica
from delayd.node.snapshots.choosing import Choice, Offer, choice_of
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


class CopyIsFasterError(Exception):
    """This node starts sooner on a copy of another node's wheel than by a replay of the buffer."""

    def __init__(self, choice: Choice) -> None:
        super().__init__(choice.why)
        self.choice = choice


class FetcherAtStart:
    """Gets another node's wheel; meanwhile it has an admin port, and is announced in etcd."""

    def __init__(self, config: NodeConfig, coordination: Coordination, clock: Clock) -> None:
        self._config = config
        self._coordination = coordination
        self._clock = clock
        self.told: str | None = None
        """What was chosen, if there was a choice; for people."""
        self._has_weighed = False

    def weigh(self, bus: Bus, replica: Replica) -> None:
        """Raise CopyIsFasterError if a copy is clearly faster than the replay that this replica
        has before it; once in a life, so that a node whose donors fail replays."""
        settings, timeout_ms = replica.settings, int(self._config.connect_timeout_s * 1000)
        if self._has_weighed or self._config.replay_max_s == 0:
            return
        self._has_weighed = True
        with closing(bus.cluster()) as kafka:
            ends = kafka.end_offsets(settings.buffer.name, timeout_ms, committed=True)
        weighed = partial(choice_of, replica.reached, ends, replay_max_s=self._config.replay_max_s)
        choice = weighed({})
        if choice.is_short:
            return
        choice = weighed(self._offers(settings.partitions))
        if choice.copy_s:
            log.info("copy_chosen", why=choice.why)
            self.told = f"copied another node's wheel: {choice.why}"
            raise CopyIsFasterError(choice)
        self._replays(choice.why)

    def _replays(self, why: str) -> None:
        log.info("replay_chosen", why=why)
        self.told = f"replays the buffer: {why}"

    def _offers(self, partitions: int) -> dict[str, Offer]:
        """Return what the nodes that can give their wheel say of it."""
        try:
            members = self._coordination.members()
        except CoordinationError:
            return {}
        offers = {}
        for name in members.keys() - {self._config.node}:
            answer = get(f"{url_of(admin_of(members[name]))}/status")
            offer = Offer.of((answer.fields() if answer else None) or {}, partitions)
            if offer is not None:
                offers[name] = offer
        return offers

    async def fetch(self, bus: Bus, settings: Settings, why: DelaydError) -> None:
        """Return when the data directory holds another node's wheel.

        Raises an error like `why`, which says more, if nobody gave one; DiskError.
        """
        log.warning("wheel_unusable", code=why.code, problem=why.message)
        try:
            await self._fetch(bus, settings, why.message, None)
        except SnapshotError as error:
            raise type(why)(f"{why.message}; {error.message}", remedy=error.remedy) from why

    async def fetch_instead(self, bus: Bus, settings: Settings, choice: Choice) -> None:
        """Get another node's wheel in place of one that is good, but old. Return also if that
        fails: the wheel is still there then, and the log reaches it.

        Raises DiskError, but not for want of room.
        """
        try:
            await self._fetch(bus, settings, choice.why, choice)
        except DelaydError as error:
            if isinstance(error, DiskError) and not isinstance(error, DiskFullError):
                raise
            self._replays(f"{choice.why}; {error.message}")

    async def _fetch(self, bus: Bus, settings: Settings, why: str, choice: Choice | None) -> None:
        config, clock = self._config, self._clock
        began_ms = clock.monotonic_ms()

        def tell(stage: str, done: int, total: int) -> None:
            took_ms = clock.monotonic_ms() - began_ms
            left_bytes = max(total, 0 if stage == "files" else fetch.view.bytes) - done
            if choice and stage != "verify" and choice.is_slower(took_ms, done, left_bytes):
                raise SnapshotError("what is left of the copy takes longer than a replay")

        fetch = await asyncio.to_thread(
            new_fetch,
            config,
            bus,
            self._coordination,
            settings,
            clock,
            tell=tell,
            among=None if choice is None else choice.copy_s,
        )

        def status() -> dict[str, Any]:
            took_ms = clock.monotonic_ms() - began_ms
            return {
                "node": config.node,
                "cluster": config.cluster,
                "version": __version__,
                "role": "fetching",
                "ready": False,
                "unready": "the node fetches its wheel from another node",
                "fetch": {**shown(fetch.view, why, took_ms), **(choice.shown if choice else {})},
            }

        admin = AdminServer(build_fetching_app(status), *config.admin_listener)
        serving = asyncio.create_task(admin.serve())
        is_over = threading.Event()
        announcing = asyncio.create_task(
            asyncio.to_thread(keep_announced, self._coordination, identity_of(config), is_over)
        )
        try:
            await asyncio.to_thread(fetch.run, config.connect_timeout_s)
        finally:
            is_over.set()
            admin.should_exit = True
            await asyncio.wait({serving}, timeout=SERVER_STOP_S)
            await announcing
