"""The servers of etcd: version, alarms, room, clock, and whether all of them are there."""

from collections.abc import Iterator
from typing import Final

from delayd.cluster.status import offset_ms
from delayd.commands.doctor.case import Means
from delayd.commands.doctor.finding import Finding, Severity
from delayd.commands.doctor.nodes import CLOCK_MS_MAX
from delayd.coordination.etcd_server import EtcdServer, look_at
from delayd.errors import CoordinationError, EtcdUnreachableError
from delayd.runtime.clock import cluster_ms

VERSION_LEAST: Final = (3, 5, 11)
"""Before it, a server that was cut off as leader may revoke leases (etcd's issue 15247)."""
ROOM_SHARE_MAX: Final = 0.8
REVISIONS_MAX: Final = 1_000_000
"""A master writes its cursor once a second: more than a week without a compaction."""


def look_at_etcd(means: Means) -> Iterator[Finding]:
    """Yield what is wrong with etcd. EtcdUnreachableError if no server answers."""
    servers: list[EtcdServer] = []
    silent: dict[str, str] = {}
    waiting, asked = [*means.etcd], set[str]()
    while waiting:
        endpoint = waiting.pop(0).rstrip("/")
        if endpoint in asked:
            continue
        asked.add(endpoint)
        asked_ms = means.clock.wall_ms()
        try:
            server = look_at(endpoint, means.security, means.timeout_ms / 1000)
        except CoordinationError as error:
            silent[endpoint] = error.message
            continue
        servers.append(server)
        waiting += server.clients_at
        yield from of_clock(server, (asked_ms, means.clock.wall_ms()))
    if means.etcd and not servers:
        raise EtcdUnreachableError("; ".join(silent.values()), remedy="start etcd")
    for endpoint, why in silent.items():
        yield Finding("etcd-down", Severity.WARNING, why, f"start the member at {endpoint}")
    for server in servers:
        yield from of_server(server, len(asked))
    if len(asked) == 1:
        what = "etcd has one member: while it is away nobody replaces a master"
        yield Finding("one-etcd", Severity.ADVICE, what, "have three members")


def of_clock(server: EtcdServer, between_ms: tuple[int, int]) -> Iterator[Finding]:
    """Yield whether a server's clock, which it says in whole seconds, differs from this one."""
    at_ms = cluster_ms(server.at_ms)
    ahead_ms = offset_ms((at_ms, at_ms + 999), between_ms)
    if abs(ahead_ms) > CLOCK_MS_MAX:
        what = f"the clock of etcd at {server.endpoint} is {ahead_ms} ms ahead of this machine's"
        mend = "chronyc tracking, on its machine and here"
        yield Finding("etcd-clock", Severity.WARNING, what, f"{mend} ({server.endpoint})")


def of_server(server: EtcdServer, members: int) -> Iterator[Finding]:
    """Yield what is wrong with one server of so many."""
    at = server.endpoint
    if server.problem:
        is_full = "ALARM" in server.problem
        what = f"etcd at {at} takes no writes, so nobody can become master: {server.problem}"
        mend = (
            f"etcdctl --endpoints {at} compact REVISION && etcdctl --endpoints {at} defrag && "
            f"etcdctl --endpoints {at} alarm disarm"
            if is_full
            else f"etcdctl --endpoints {at} endpoint status --cluster, then start what is away"
        )
        code = "etcd-alarm" if is_full else "etcd-down"
        yield Finding(code, Severity.CRITICAL, what, mend)
    elif server.quota_bytes and server.db_bytes > ROOM_SHARE_MAX * server.quota_bytes:
        what = f"etcd at {at} has {server.db_bytes} of {server.quota_bytes} bytes: then it stops"
        mend = f"etcdctl --endpoints {at} compact REVISION && etcdctl --endpoints {at} defrag"
        yield Finding("etcd-room", Severity.WARNING, what, mend)
    if server.revisions_kept > REVISIONS_MAX:
        what = f"etcd at {at} keeps {server.revisions_kept} revisions since its last compaction"
        mend = f"start etcd with --auto-compaction-retention=1h ({at})"
        yield Finding("etcd-uncompacted", Severity.WARNING, what, mend)
    if members > 1 and server.version < VERSION_LEAST:
        is_now, least = (".".join(map(str, each)) for each in (server.version, VERSION_LEAST))
        what = f"etcd at {at} is {is_now}: before {least} a former leader may revoke leases"
        yield Finding("etcd-old", Severity.WARNING, what, f"upgrade it to {least} or later ({at})")
