"""The keys that delayd owns in etcd: every name in one place.

    /delayd/<realm>/shards/<n>/leader     the master of a shard, under its lease
    /delayd/<realm>/shards/<n>/cursor     the mirrored cursor, guarded by the leader key
    /delayd/<realm>/shards/<n>/progress   the last frontier, where the guarantee is at-least-once;
                                          guarded by the leader key and by its own revision
    /delayd/<realm>/members/<node>        announced nodes, each under its lease
    /delayd/<realm>/known/<node>          nodes that were announced once, until they are forgotten
    /delayd/<realm>/settings              a copy of the cluster's settings
    /delayd/<realm>/repair                the node whose turn it is to repair its wheel, under a
                                          lease of its own

A realm is `<cluster>/<id of its frontier topic>`; of a cluster that was made before clusters had
one it is `<cluster>` (`replication.settings.Settings.realm`).

Not here: what the values mean (they are JSON that the callers write).

Source: docs/design/election.md, "Keys".
"""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def leader_key(realm: str, shard: int) -> str:
    """Return the leader key of a shard: it exists if and only if somebody's lease holds it."""
    return f"/delayd/{realm}/shards/{shard}/leader"


def shards_prefix(realm: str) -> str:
    """Return the prefix of the keys of all shards; a shard's number and its key follow."""
    return f"/delayd/{realm}/shards/"


def leaders_in(found: Mapping[str, T]) -> dict[int, T]:
    """Return what is under the leader keys among keys without their `shards_prefix`, by shard."""
    split = ((*key.partition("/"), value) for key, value in found.items())
    return {
        int(shard): value
        for shard, _, name, value in split
        if name == "leader" and shard.isdecimal()
    }


def cursor_key(realm: str, shard: int) -> str:
    """Return the key of a shard's mirrored cursor: for people, never for the protocol."""
    return f"/delayd/{realm}/shards/{shard}/cursor"


def progress_key(realm: str, shard: int) -> str:
    """Return the key of a shard's frontier record, where the guarantee is at-least-once."""
    return f"/delayd/{realm}/shards/{shard}/progress"


def members_prefix(realm: str) -> str:
    """Return the prefix of the cluster's member keys; the node's name follows."""
    return f"/delayd/{realm}/members/"


def known_prefix(realm: str) -> str:
    """Return the prefix of the keys of nodes that were announced once; for people only."""
    return f"/delayd/{realm}/known/"


def settings_key(realm: str) -> str:
    """Return the key of the copy of the settings; the frontier record is their truth."""
    return f"/delayd/{realm}/settings"


def repair_key(realm: str) -> str:
    """Return the key of the node that repairs its wheel."""
    return f"/delayd/{realm}/repair"


def cluster_prefix(cluster: str) -> str:
    """Return the prefix of the keys of all clusters of that name."""
    return f"/delayd/{cluster}/"


def members_by_realm(values: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the members among keys without their `cluster_prefix`: by the rest of their realm,
    then by node."""
    found: dict[str, dict[str, str]] = {}
    for key, value in values.items():
        realm, separator, node = f"/{key}".rpartition("/members/")
        if separator:
            found.setdefault(realm, {})[node] = value
    return found
