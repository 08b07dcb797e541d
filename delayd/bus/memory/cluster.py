"""The administration twin.

Not here: waiting; what a broker refuses is a TopicMismatchError, as with the real one.
"""

from collections.abc import Iterable, Mapping

from delayd.bus import Survey, TopicState
from delayd.bus.memory.kafka import MemoryKafka, Refused
from delayd.bus.memory.link import Link
from delayd.bus.memory.log import PartitionLog
from delayd.errors import KafkaUnreachableError, TopicMismatchError


class MemoryCluster:
    """Administration of the brokers in memory; see the port `Cluster`."""

    def __init__(self, kafka: MemoryKafka, link: Link) -> None:
        self._kafka = kafka
        self._link = link
        self._is_closed = False
        self._metadata = 0 if link.meets_zombies else kafka.isolations_count

    def broker_count(self, timeout_ms: int) -> int:
        """See the port."""
        self._reach(timeout_ms)
        return self._kafka.brokers

    def broker_settings(self, timeout_ms: int) -> dict[int, Mapping[str, str]]:
        """See the port."""
        self._reach(timeout_ms)
        return dict.fromkeys(range(1, 1 + self._kafka.brokers), self._kafka.broker_settings)

    def describe(self, topics: Iterable[str], timeout_ms: int) -> dict[str, TopicState]:
        """See the port."""
        found = self.survey(topics, timeout_ms)
        for name, problem in found.refused.items():
            raise TopicMismatchError(f"describing {name} was refused: {problem}")
        if found.silent:
            raise KafkaUnreachableError(f"Kafka had no answer within {timeout_ms} ms")
        return dict(found.states)

    def survey(self, topics: Iterable[str], timeout_ms: int) -> Survey:
        """See the port."""
        self._reach(timeout_ms)
        with self._kafka.changed:
            self._kafka.surveys_count += 1
            names = set(topics)
            silent = names & self._kafka.silent
            hidden = names & self._kafka.hidden - silent
            known = self._kafka.topics
            if names and names == silent:
                raise KafkaUnreachableError(f"Kafka had no answer within {timeout_ms} ms")
            return Survey(
                {
                    name: known[name].state()
                    for name in names - silent - hidden
                    if self._kafka.is_known(name)
                },
                dict.fromkeys(hidden, "TOPIC_AUTHORIZATION_FAILED"),
                frozenset(silent),
            )

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str],
        timeout_ms: int,
    ) -> bool:
        """See the port."""
        self._reach(timeout_ms)
        try:
            self._kafka.create_topic(name, partitions, config, replication_factor)
        except Refused as refusal:
            if str(refusal) == "TOPIC_ALREADY_EXISTS":
                return False
            raise TopicMismatchError(f"creating {name} was refused: {refusal}") from refusal
        return True

    def add_partitions(self, topic: str, partitions: int, timeout_ms: int) -> bool:
        """See the port; TopicMismatchError if the topic does not exist."""
        if len(self._partitions(topic, timeout_ms)) >= partitions:
            return False
        self._kafka.add_partitions(topic, partitions)
        return True

    def start_offsets(self, topic: str, timeout_ms: int) -> dict[int, int]:
        """See the port; TopicMismatchError if the topic does not exist."""
        with self._kafka.changed:
            return {p.number: p.start_offset for p in self._partitions(topic, timeout_ms)}

    def end_offsets(self, topic: str, timeout_ms: int, *, committed: bool) -> dict[int, int]:
        """See the port; TopicMismatchError if the topic does not exist."""
        with self._kafka.changed:
            return {
                p.number: p.stable_offset if committed else p.end_offset
                for p in self._partitions(topic, timeout_ms)
            }

    def offsets_since(self, topic: str, at_ms: int, timeout_ms: int) -> dict[int, int]:
        """See the port; TopicMismatchError if the topic does not exist."""
        with self._kafka.changed:
            found = {p.number: p.offset_since(at_ms) for p in self._partitions(topic, timeout_ms)}
            return {number: offset for number, offset in found.items() if offset is not None}

    def group_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]], timeout_ms: int
    ) -> dict[tuple[str, int], int]:
        """See the port."""
        self._reach(timeout_ms)
        with self._kafka.changed:
            known = self._kafka.coordinator.group_offsets
            return {place: known[group, *place] for place in partitions if (group, *place) in known}

    def answering(
        self, partitions: Iterable[tuple[str, int]], timeout_ms: int
    ) -> set[tuple[str, int]]:
        """See the port."""
        self._reach(timeout_ms)
        with self._kafka.changed:
            return {place for place in partitions if self._is_answered(*place)}

    def close(self) -> None:
        """See the port; whoever asks it afterwards fails."""
        self._is_closed = True

    def _is_answered(self, topic: str, number: int) -> bool:
        known = self._kafka.topics.get(topic)
        if known is None or number >= len(known.partitions):
            return True
        log = known.partitions[number]
        return log.leader is not None and not log.hangs

    def _partitions(self, topic: str, timeout_ms: int) -> list[PartitionLog]:
        self._reach(timeout_ms)
        if topic not in self._kafka.topics:
            raise TopicMismatchError(
                f"the topic {topic} does not exist", remedy="create it, or correct its name"
            )
        partitions = self._kafka.topics[topic].partitions
        if any(log.hangs for log in partitions):
            raise KafkaUnreachableError(f"a leader had no answer within {timeout_ms} ms")
        return [self._kafka.served_log(topic, log.number, self._metadata) for log in partitions]

    def _reach(self, timeout_ms: int) -> None:
        assert not self._is_closed, "a cluster was asked after it was closed"
        if not self._link.up:
            raise KafkaUnreachableError(f"Kafka had no answer within {timeout_ms} ms")
