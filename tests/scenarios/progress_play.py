"""What a played node has where brokers have no transactions: it says what it asks of etcd, too."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from delayd.bus.memory.idempotent import MemoryIdempotentProducer
from delayd.coordination import Leadership, StoredProgress
from delayd.coordination.memory import MemoryCoordination, MemoryEtcd
from replication.frontier import Frontier
from replication.record import decode

if TYPE_CHECKING:
    from takeover_play import PlayedNode


class ToldIdempotentProducer(MemoryIdempotentProducer):
    """Says what it is asked to do."""

    def __init__(self, node: "PlayedNode", *parts: Any) -> None:
        super().__init__(*parts)
        self._node = node

    def send(self, topic: str, **record: Any) -> None:
        what = self._node.said_of(topic, record["value"], dict(record["headers"]))
        with self._node.doing(f"send {topic}", what):
            super().send(topic, **record)

    def flush(self, timeout_ms: int) -> None:
        with self._node.doing("flush"):
            super().flush(timeout_ms)


class ToldEtcd(MemoryCoordination):
    """Says what is asked of the progress, and what etcd made of it."""

    def __init__(
        self, node: "PlayedNode", etcd: MemoryEtcd, told: Callable[[Frontier], str]
    ) -> None:
        super().__init__(etcd, "c")
        self._node = node
        self._told = told

    def progress(self, shard: int, leadership: Leadership) -> StoredProgress | None:
        found = super().progress(shard, leadership)
        if found is None:
            what = "another node leads"
        elif found.revision == 0:
            what = "none"
        else:
            what = self._told(decode(found.value).frontier)
        with self._node.doing("read the progress", f"in etcd: {what}"):
            return found

    def put_progress(
        self, shard: int, leadership: Leadership, value: bytes, *, after: int
    ) -> int | None:
        with self._node.doing("write the progress", self._told(decode(value).frontier)):
            return super().put_progress(shard, leadership, value, after=after)
