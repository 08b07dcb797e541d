"""What became of requests, as a user would see it: read from all topics, kept by request.

Not here: what should have become of them.

Targets, dead letters and receipts are read with kafka-python, read_committed. What a master
re-buffered is told apart by its origin: to a user, all of it is the request that was sent.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from clusters import TestCluster
from kafka import KafkaConsumer, TopicPartition
from nodes import CLOCK, HANGS_S, wait_for

from delayd.bus import Position, Record
from delayd.bus.kafka_python import KafkaPythonBus

POLL_MS = 100


class Found(NamedTuple):
    """A record of a target or of the dead-letter topic."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    received_ms: int

    def header(self, name: str) -> str | None:
        """The last header of that name, as text."""
        found = [content for other, content in self.headers if other == name]
        return None if not found or found[-1] is None else found[-1].decode()


class OutcomesRead:
    """Everything that was found so far, by source of the user's own request."""

    def __init__(self, cluster: TestCluster, targets: Iterable[str], partitions: int) -> None:
        self._cluster = cluster
        self._consumer: Any = KafkaConsumer(
            bootstrap_servers=cluster.bootstrap,
            group_id=None,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=20,
            max_poll_records=20_000,
        )
        self._places: list[Any] = []
        for topic in (*targets, cluster.dead, cluster.receipts):
            self.follow(topic)
        self._log = KafkaPythonBus(cluster.bootstrap).consumer(cluster.buffer)
        self._log.assign({number: Position(0) for number in range(partitions)})
        self.delivered: dict[str, list[Found]] = defaultdict(list)
        self.letters: dict[str, list[Found]] = defaultdict(list)
        self.receipts: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.log: list[Record] = []
        """The buffer, what the master wrote there too."""
        self.origin_of: dict[str, str] = {}
        """Of what the master re-buffered: the source of the user's own request."""

    def follow(self, topic: str) -> None:
        """Read this target too, from its beginning."""
        positions = {place: self._consumer.position(place) for place in self._places}
        self._places += [TopicPartition(topic, n) for n in sorted(self._partitions_of(topic))]
        self._consumer.assign(self._places)
        for place, offset in positions.items():
            self._consumer.seek(place, offset)

    def _partitions_of(self, topic: str) -> set[int]:
        found: set[int] = set()

        def look() -> bool:
            found.update(self._consumer.partitions_for_topic(topic) or ())
            return bool(found)

        wait_for(look, f"{topic} has partitions")
        return found

    def read(self) -> int:
        """Take what is there now, or comes soon; how many records that were."""
        count = 0
        for place, records in self._consumer.poll(timeout_ms=POLL_MS).items():
            count += len(records)
            for record in records:
                self._take(place, record)
        while logged := self._log.poll(20_000, 0):
            count += len(logged)
            self.log += logged
            for each in logged:
                self._note_continuation(each)
        return count

    def read_until(self, enough: Callable[[], bool], timeout_s: float) -> bool:
        """Read on until it is enough; False if that did not come in time."""
        deadline_ms = CLOCK.monotonic_ms() + int(timeout_s * 1000)
        while not enough():
            if CLOCK.monotonic_ms() > deadline_ms:
                return False
            self.read()
        return True

    def read_to_the_ends(self, timeout_s: float = HANGS_S) -> None:
        """Take all that is committed by now."""
        ends = self._consumer.end_offsets(self._places)
        is_there = self.read_until(
            lambda: all(self._consumer.position(place) >= end for place, end in ends.items()),
            timeout_s,
        )
        assert is_there, "a topic cannot be read to its end: is a transaction open?"
        self.read()

    def close(self) -> None:
        """End the connections."""
        self._consumer.close()
        self._log.close()

    def _take(self, place: Any, record: Any) -> None:
        headers = list(record.headers)
        if place.topic == self._cluster.receipts:
            [(name, source)] = headers
            told = json.loads(record.value)
            assert name == "delayd-source" and source.decode() == told["source"], told
            assert record.key == told["id"].encode(), told
            self.receipts[told["source"]].append(told)
            return
        found = Found(
            place.topic, place.partition, record.key, record.value, headers, CLOCK.wall_ms()
        )
        # A refused record may hold headers of these names too; delayd's own come last.
        own = headers[-6:]
        at = max(n for n, (name, _) in enumerate(own) if name == "delayd-source")
        behind = dict(own[at:])
        source = behind.get("delayd-origin") or behind["delayd-source"]
        assert source is not None, "a source is never null"
        kept = self.letters if place.topic == self._cluster.dead else self.delivered
        kept[source.decode()].append(found)

    def _note_continuation(self, record: Record) -> None:
        """Whoever wrote it: only the master knows the sources that it names."""
        headers = dict(record.headers)
        origin, proof = headers.get("delayd-origin"), headers.get("delayd-proof")
        if origin is not None and proof is not None and record.headers[-1][0] == "delayd-proof":
            self.origin_of[f"{record.partition}/{record.offset}"] = origin.decode(errors="replace")
