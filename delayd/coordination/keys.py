"""The keys that delayd owns in etcd: every name in one place.

    /delayd/<cluster>/shards/<n>/leader     the master of a shard, under its lease
    /delayd/<cluster>/shards/<n>/cursor     the mirrored cursor, guarded by the leader key
    /delayd/<cluster>/shards/<n>/progress   the last frontier, where the guarantee is at-least-once;
                                            guarded by the leader key and by its own revision
    /delayd/<cluster>/members/<node>        announced nodes, each under its lease
    /delayd/<cluster>/settings              a copy of the cluster's settings

Not here: what the values mean (they are JSON that the callers write).

Source: docs/design/election.md, "Keys".
"""


def leader_key(cluster: str, shard: int) -> str:
    """Return the leader key of a shard: it exists if and only if somebody's lease holds it."""
    return f"/delayd/{cluster}/shards/{shard}/leader"


def cursor_key(cluster: str, shard: int) -> str:
    """Return the key of a shard's mirrored cursor: for people, never for the protocol."""
    return f"/delayd/{cluster}/shards/{shard}/cursor"


def progress_key(cluster: str, shard: int) -> str:
    """Return the key of a shard's frontier record, where the guarantee is at-least-once."""
    return f"/delayd/{cluster}/shards/{shard}/progress"


def members_prefix(cluster: str) -> str:
    """Return the prefix of the cluster's member keys; the node's name follows."""
    return f"/delayd/{cluster}/members/"


def settings_key(cluster: str) -> str:
    """Return the key of the copy of the settings; the frontier record is their truth."""
    return f"/delayd/{cluster}/settings"
