"""A stand-in for delayd's nodes that surrounds its answers with records a reader must not believe.

Not here: the rules of delayd. A cancel or a replace finds the message that was scheduled under its
id; a message without an id is delivered at its due time; nothing else is known.

Each answer comes third: after one in an aborted transaction (a reader of uncommitted records takes
it) and after one to another request (a reader that compares no sources takes it).
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from clusters import TestCluster
from confluent_kafka import Producer

from delayd.dev.watch import open_consumer
from delayd.request.times import due_ms_of
from delayd.runtime.clock import SystemClock

CLOCK = SystemClock()
ELSEWHERE = "77/7777"
"""A source that no request has."""

VERDICTS = {"cancel": "cancelled", "replace": "replaced"}


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A message that waits for its due time."""

    due_ms: int
    source: str
    topic: str
    value: bytes


@contextlib.contextmanager
def played_delayd(cluster: TestCluster) -> Iterator[None]:
    """Serve the requests in the cluster's buffer, those that it already holds included."""
    player = _Player(cluster)
    thread = threading.Thread(target=player.play, name="played delayd")
    thread.start()
    try:
        yield
    finally:
        player.over.set()
        thread.join(30)
        assert not thread.is_alive(), "the played delayd does not end"
    if player.failure is not None:
        raise player.failure


class _Player:
    def __init__(self, cluster: TestCluster) -> None:
        self.over = threading.Event()
        self.failure: Exception | None = None
        self._cluster = cluster
        self._live: dict[str, list[str]] = {}
        self._waiting: list[_Waiting] = []
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "transactional.id": f"{cluster.name}-played",
                "partitioner": "murmur2_random",
            }
        )

    def play(self) -> None:
        try:
            self._producer.init_transactions(30)
            consumer, _ = open_consumer(self._cluster.bootstrap, (self._cluster.buffer,))
            try:
                while not self.over.is_set():
                    for records in consumer.poll(timeout_ms=20).values():
                        for record in records:
                            self._take(f"{record.partition}/{record.offset}", record)
                    self._deliver_what_is_due()
            finally:
                consumer.close()
                del self._producer  # which ends it, before Kafka does
        except Exception as failure:  # it travels to the test's own thread
            self.failure = failure

    def _take(self, source: str, record: Any) -> None:
        headers = {name: value.decode() for name, value in record.headers}
        id_ = headers.get("delayd-id")
        op = headers.get("delayd-op")
        if op in VERDICTS:
            assert id_ is not None, f"a {op} without an id"
            self._answer(op, id_, source, self._live.pop(id_, []))
            if op == "replace":
                self._live[id_] = [source]
        elif id_ is not None:
            self._live.setdefault(id_, []).append(source)
        else:
            due_ms = due_ms_of(headers["delayd-due"])
            self._waiting.append(_Waiting(due_ms, source, headers["delayd-topic"], record.value))

    def _answer(self, op: str, id_: str, source: str, killed: list[str]) -> None:
        def receipt(of: str, verdict: str, sources: list[str]) -> None:
            document = {
                "id": id_,
                "verdict": verdict,
                "op": op,
                "source": of,
                "killed": sources,
                "due_ms": None,
                "at_ms": CLOCK.wall_ms(),
                "detail": "",
            }
            self._producer.produce(
                f"{self._cluster.name}-receipts",
                key=id_.encode(),
                value=json.dumps(document).encode(),
                headers=[("delayd-source", of.encode())],
            )

        self._begin_with_an_aborted(lambda: receipt(source, "aborted", []))
        receipt(ELSEWHERE, "not-found", [])
        receipt(source, VERDICTS[op] if killed else "not-found", killed)
        self._producer.commit_transaction(10)

    def _deliver_what_is_due(self) -> None:
        now_ms = CLOCK.wall_ms()
        due = [message for message in self._waiting if message.due_ms <= now_ms]
        self._waiting = [message for message in self._waiting if message.due_ms > now_ms]
        for message in due:
            self._deliver(message, now_ms)

    def _deliver(self, message: _Waiting, now_ms: int) -> None:
        def deliver(source: str, value: bytes) -> None:
            self._producer.produce(
                message.topic,
                value=value,
                headers=[
                    ("delayd-due", b"%d" % message.due_ms),
                    ("delayd-fired", b"%d" % now_ms),
                    ("delayd-source", source.encode()),
                ],
            )

        self._begin_with_an_aborted(lambda: deliver(message.source, b"aborted"))
        deliver(ELSEWHERE, b"of another")
        deliver(message.source, message.value)
        self._producer.commit_transaction(10)

    def _begin_with_an_aborted(self, produce: Callable[[], None]) -> None:
        self._producer.begin_transaction()
        produce()
        assert self._producer.flush(10) == 0, "the aborted record must have been in the log"
        self._producer.abort_transaction(10)
        self._producer.begin_transaction()
