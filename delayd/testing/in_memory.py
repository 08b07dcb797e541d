"""delayd in the process of a test: brokers in memory, one node that delivers, a clock that the test
moves.

What decides is the code of a real node, over a real wheel in a temporary folder; the brokers, etcd
and the client's library are in memory. So the answers are those of a cluster with these settings.
Not here: what needs brokers (transactions of a producer of one's own, other languages), an
election, or time that passes by itself.
"""

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from delayd.bus import Ack, Headers, Record
from delayd.client import AsyncClient, Client
from delayd.client.asking import Content, UserHeaders
from delayd.client.connection import Connection
from delayd.client.driver import PlainRecord
from delayd.errors import ConfigError
from delayd.node.replica.held import peeked
from delayd.request import (
    BufferRecord,
    RequestLimits,
    attempt_of,
    group_of,
    id_of,
    order_record,
    origin_of,
    quota_record,
)
from delayd.request.grammar import target_of
from delayd.request.holds import problem_of
from delayd.request.quotas import problem_of as quota_problem_of
from delayd.request.reasons import RefusedError
from delayd.request.times import delay_ms_of
from delayd.runtime.clock import SystemClock
from delayd.testing.clock import SteppedClock, unix_ms_of
from delayd.testing.driver import MemoryDriver, connected
from delayd.testing.node import CLUSTER_KEY, SteppedNode
from delayd.wheel.frame import topic_of
from delayd.wheel.listing import Cursor, Listing
from replication.holds import Order
from replication.quotas import QuotaOrder
from replication.rank import Rank

PARTITIONS: Final = 4
"""Of the buffer."""
IDLE_MS: Final = 10**12
"""The master writes no step only because time passes: a test lets months pass at once."""
PAGE_BYTES: Final = 16 * 1024 * 1024
LOG_APPEND_TIME: Final = {"message.timestamp.type": "LogAppendTime"}


class Delivered(NamedTuple):
    """A record in a target topic; `delayd.retry` takes it, as it takes one of kafka-python."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """When it was written: the time at which it was delivered, Unix ms."""
    key: bytes | None
    value: bytes | None
    headers: Headers

    def header(self, name: str) -> str | None:
        """Return the text of the first header of this name; None without one, or if it is null."""
        found = next((content for key, content in self.headers if key == name), None)
        return None if found is None else found.decode(errors="replace")


class Pending(NamedTuple):
    """A message that is still to be delivered."""

    topic: str
    id: str | None
    due_ms: int
    """When it is due next, Unix ms: after a failed attempt, its next retry."""
    source: str
    """Of its user's request."""
    attempts: int
    """How many have failed."""
    group: str | None = None


class InMemoryDelayd:
    """A cluster of one node. A context manager; used by one thread beside the clients' own."""

    def __init__(
        self, *targets: str, start: datetime | int | None = None, **of_cluster: Any
    ) -> None:
        """With `targets`, only these topics exist, so that a misspelt one is found; without, each
        topic that a request names is created.

        `start`: where the clock begins, an aware datetime or Unix ms; default: now. `of_cluster`:
        settings by the names that `delayd topics create` has, such as `retry_delays_ms`,
        `max_delay_ms` and `receipts_written`.
        """
        self._lock = threading.RLock()
        start_ms = SystemClock().wall_ms() if start is None else unix_ms_of(start)
        self.clock: Final = SteppedClock(start_ms, self._run_until)
        """Stands still until it is moved: `clock.advance("30d")`."""
        self._creates = not targets
        self._deleted: set[str] = set()
        with ExitStack() as unless_made:
            folder = tempfile.TemporaryDirectory(prefix="delayd-in-memory-")
            unless_made.callback(folder.cleanup)
            of_cluster.setdefault("partitions", PARTITIONS)
            self._node = SteppedNode(
                Path(folder.name) / "wheel",
                self.clock,
                idle_interval_ms=IDLE_MS,
                real_time=True,
                **of_cluster,
            )
            unless_made.callback(self._node.close)
            self._connections: list[Connection] = []
            unless_made.callback(self._close_clients)
            for target in targets:
                self.create_target(target)
            self._node.settle()
            self._closing = unless_made.pop_all()

    def close(self) -> None:
        """End the clients, and remove the wheel. Idempotent."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def client(self) -> Client:
        """Return a client of it. `close` ends it, too."""
        return Client.over(self._connection())

    def async_client(self) -> AsyncClient:
        """Return a client of it for asyncio. `close` ends it, too."""
        return AsyncClient.over(self._connection())

    def send(
        self,
        value: Content,
        headers: UserHeaders,
        *,
        key: Content = None,
        partition: int | None = None,
    ) -> str:
        """Write a record into the buffer as it is, as a producer in another language would. Return
        its source. What is wrong with it becomes a dead letter."""
        named = headers.items() if isinstance(headers, Mapping) else headers
        record = PlainRecord(
            self._node.settings.buffer.name,
            _bytes(key),
            _bytes(value),
            [(name, _bytes(content)) for name, content in named],
            partition,
        )
        acks: list[Any] = []
        MemoryDriver(self._node.kafka, self._node.bus, self._take).send(record, acks.append)
        assert isinstance(acks[0], Ack), acks[0]
        return f"{acks[0].partition}/{acks[0].offset}"

    def create_target(self, topic: str, partitions: int = 1, **settings: str) -> None:
        """Create a topic. `settings`: Kafka's own, with underscores, `max_message_bytes="1000"`."""
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        with self._lock:
            self._node.kafka.create_topic(topic, partitions, {**LOG_APPEND_TIME, **dotted})
            self._deleted.discard(topic)
            self._node.targets.forget()

    def delete_target(self, topic: str) -> None:
        """Delete a topic, which no request creates again: what is due there is retried, and then
        dead."""
        with self._lock:
            self._topic_is_known(topic)
            self._node.kafka.delete_topic(topic)
            self._node.targets.forget()
            self._deleted.add(topic)

    def delivered(self, topic: str) -> list[Delivered]:
        """Return what was delivered to a topic so far, by time."""
        self._topic_is_known(topic)
        return self._read(topic)

    def dead(self) -> list[Delivered]:
        """Return the dead letters so far, by time: why is in the header `delayd-reason`."""
        return self._read(self._node.settings.dead.name)

    def receipts(self) -> list[Delivered]:
        """Return the receipts so far, by time."""
        return self._read(self._node.settings.receipts.name)

    def pending(self, topic: str | None = None, *, group: str | None = None) -> list[Pending]:
        """Return what is still to be delivered, to one topic or to all, of one group or of all, by
        due time."""
        with self._lock:
            node = self._node
            node.observe()
            node.replica.checkpoint()
            found = [
                each
                for each in self._listed()
                if topic in (None, each.topic) and group in (None, each.group)
            ]
        return sorted(set(found), key=lambda each: (each.due_ms, each.source))

    def cancel_group(self, group: str) -> dict[str, int]:
        """Cancel what is pending of a group, as `delayd cancel --group` does. Return how many ids
        had each verdict."""
        ids = {each.id for each in self.pending(group=group) if each.id is not None}
        client = self.client()
        return Counter(client.cancel(id).verdict for id in sorted(ids))

    def pause(self, topic: str, for_: str, *, rate: int = 0) -> None:
        """Deliver nothing to a topic for a while, as `delayd pause` does: `pause("orders", "1h")`.
        What becomes due waits. ConfigError if that is no time, or more than 24 h."""
        try:
            self._order(topic, self.clock.now_ms + delay_ms_of(for_), rate)
        except RefusedError as error:
            raise ConfigError(error.detail) from error

    def resume(self, topic: str, *, rate: int = 0) -> None:
        """End the pause of a topic, as `delayd resume` does."""
        self._order(topic, 0, rate)

    def limit(self, topic: str, max_pending: int = 0, *, rate: int = 0) -> None:
        """Limit how many messages are pending for a topic, and how many requests a second are taken
        for it, as a mean of 10 s, as `delayd limits set` does: over that, requests are refused as
        `over-quota`. 0 is no limit; two of them end what there is, as `delayd limits clear` does.
        ConfigError if it is no such number."""
        order = QuotaOrder(topic, self.clock.now_ms, max_pending, rate)
        limits = RequestLimits.of(self._node.settings, CLUSTER_KEY.encode())
        if (problem := quota_problem_of(order, limits)) is not None:
            raise ConfigError(problem)
        self._give(topic, quota_record(order, limits))

    def _order(self, topic: str, until_ms: int, rate: int) -> None:
        limits = RequestLimits.of(self._node.settings, CLUSTER_KEY.encode())
        order = Order(topic, self.clock.now_ms, until_ms, rate)
        if (problem := problem_of(order, limits)) is not None:
            raise ConfigError(problem)
        self._give(topic, order_record(order, limits))

    def _give(self, topic: str, order: BufferRecord) -> None:
        partition, key, value, headers = order
        with self._lock:
            self._topic_is_known(topic)
            self._node.kafka.append(self._node.settings.buffer.name, partition, key, value, headers)
            self._node.settle()

    def _listed(self) -> Iterator[Pending]:
        """Yield what the wheel's last checkpoint has; a message may come twice."""
        newest = self._node.replica.newest
        assert newest is not None, "a cluster has a frontier from its start"
        frontier = newest.record.frontier
        begin: Cursor | None = Cursor(0)
        with peeked(self._node.replica) as wheel:
            while begin is not None:
                page = Listing(
                    wheel, begin, from_ms=0, until_ms=2**62, topic=None, bytes_max=PAGE_BYTES
                )
                with closing(page.messages()) as messages:
                    for frame, body in messages:
                        rank = Rank(frame.due_ms, frame.partition, frame.offset)
                        if not frontier.covers(frame.lane, rank):
                            yield Pending(
                                topic_of(body),
                                id_of(body),
                                frame.due_ms,
                                origin_of(body, frame.partition, frame.offset),
                                attempt_of(body),
                                group_of(body),
                            )
                begin = page.next

    def _connection(self) -> Connection:
        settings = self._node.settings
        driver = MemoryDriver(self._node.kafka, self._node.bus, self._take)
        made = connected(driver, settings.buffer.name, settings.receipts.name)
        self._connections.append(made)
        return made

    def _close_clients(self) -> None:
        for connection in self._connections:
            connection.close()

    def _take(self, record: PlainRecord, write: Callable[[], None]) -> None:
        """Let a client write a record, and the node do what it asks for now."""
        with self._lock:
            self._create_target_of(record)
            write()
            self._node.settle()

    def _create_target_of(self, record: PlainRecord) -> None:
        text = dict(record.headers).get("delayd-topic")
        try:
            name = target_of(
                {"delayd-topic": (text or b"").decode(errors="replace")}, self._node.settings.prefix
            )
        except RefusedError:
            return  # the parser says so
        if self._creates and name not in (self._node.kafka.topics.keys() | self._deleted):
            self.create_target(name)

    def _topic_is_known(self, topic: str) -> None:
        if topic in self._deleted or not (self._creates or topic in self._node.kafka.topics):
            raise ConfigError(
                f"the topic {topic[:80]!a} does not exist",
                remedy="name it when delayd is made, or call create_target",
            )

    def _read(self, topic: str) -> list[Delivered]:
        with self._lock:
            known = self._node.kafka.topics.get(topic)
            logs = [] if known is None else known.partitions
            records = [record for log in logs for record in log.read(0, 2**62)[0]]
        return sorted(
            map(_delivered, [topic] * len(records), records), key=lambda r: r.timestamp_ms
        )

    def _run_until(self, end_ms: int) -> None:
        """Move the clock to each time at which something is due, and to the end."""
        with self._lock:
            while (next_ms := self._node.settle()) is not None and next_ms <= end_ms:
                self.clock.now_ms = next_ms
            self.clock.now_ms = end_ms
            self._node.settle()


def _delivered(topic: str, record: Record) -> Delivered:
    return Delivered(
        topic,
        record.partition,
        record.offset,
        record.append_ms,
        record.key,
        record.value,
        list(record.headers),
    )


def _bytes(content: Content) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
