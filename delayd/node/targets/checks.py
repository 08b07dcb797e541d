"""Targets: whether a message can be written to its topic. A step asks before it takes it.

A transaction with a bad target fails as a whole, so no message that is known to fail may enter one.
Answers come from cached descriptions. What is wrong with a target is a text for its own messages,
and never an error that would stop the messages of others.

Not here: what brokers refuse although it looked well (`quarantine.py`), what becomes of a message
that is turned away.

Invariants:
- brokers are asked at most every RECHECK_MS for a name, however many steps want it;
- what is remembered is bounded, whatever names the requests bring;
- only brokers that do not answer at all are an error.
Source: docs/design/frontier.md, "Targets".
"""

from collections.abc import Iterable
from dataclasses import dataclass

from delayd.bus import Cluster, TopicState
from delayd.bus.murmur2 import partition_of
from delayd.bus.overrides import BATCH_BYTES_MAX
from delayd.errors import KafkaUnreachableError
from delayd.node.targets.failures import TargetFailures
from delayd.runtime.bounded_dict import BoundedDict
from delayd.runtime.clock import Clock

FRESH_MS = 5_000
"""How long the description of a healthy topic is believed."""

RECHECK_MS = 1_000
"""How soon a topic that fails, or of which there was no answer, is asked for again."""

PROBE_MS = 10_000
"""How often those that are shown as failing are asked for, though no message wants them."""

BROKERS_FRESH_MS = 60_000
"""How soon a cluster of one broker is asked whether it has grown."""

KNOWN_MAX = 10_000
"""Names that are remembered, those that were wanted last."""

REFRESHED_MAX = 100
"""How many descriptions are renewed in one step: each takes about 1 ms of it. The others are
believed for a step longer."""

SURVEY_TOPICS_MAX = 200
"""How many topics one question is about."""

BATCH_OVERHEAD_BYTES = 512
"""Room for the record batch around a single record, and for the headers that delayd adds."""

MESSAGE_BYTES_DEFAULT = 1_048_588

TIMESTAMP_SLACK_MIN_MS = 60_000
"""Kafka checks the times of transaction markers too: a topic that refuses one can never end its
transaction, and so holds up everything (measured, Kafka 4.3.1)."""

CHUNKS_MAX = 20
"""Flushes that one step spends on a target that takes only small batches, a few ms each."""

CHUNK_RECORD_BYTES = 4_000
"""Size of the records, if unknown, by which a step is cut to about CHUNKS_MAX chunks."""


@dataclass(slots=True)
class _Target:
    """What is known of one name."""

    ask_ms: int
    """When to ask again."""
    problem: str | None
    """Of the whole topic."""
    partition_problems: tuple[str | None, ...] = ()
    healthy: tuple[int, ...] = ()
    """Partitions without a problem."""
    record_bytes_max: int = MESSAGE_BYTES_DEFAULT
    is_compacted: bool = False
    turns: int = 0
    """Goes round the healthy partitions."""

    @property
    def is_healthy(self) -> bool:
        return self.problem is None and len(self.healthy) == len(self.partition_problems)


class Targets:
    """A cache of topic descriptions. Used by the delivery thread only, but for `failures`.

    Unless `unreplicated` is allowed, on a cluster of more than one broker a partition with one
    replica in sync is a problem, and so is one that must have all of its replicas in sync.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        timeout_ms: int,
        *,
        anchor: str | None = None,
        unreplicated: bool = False,
    ) -> None:
        """`anchor` is a topic that exists: an answer about it alone distinguishes a topic that the
        brokers are silent about from brokers that are silent."""
        self._cluster = cluster
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._anchor = anchor
        self._unreplicated = unreplicated
        self._known: BoundedDict[str, _Target] = BoundedDict(KNOWN_MAX, on_evict=self._evicted)
        self._brokers = 0
        """The most that were ever seen: a cluster that lost brokers is not a smaller one."""
        self._brokers_asked_ms: int | None = None
        self.record_limits: dict[str, int] = {}
        """By topic that takes only small batches: how many records of its lane are enough for a
        step."""
        self.failures = TargetFailures(clock)
        self._probed_ms = clock.monotonic_ms()

    def look_up(self, topics: Iterable[str]) -> None:
        """Read unknown and old descriptions, in few requests; afterwards all of these can be asked
        about.

        KafkaUnreachableError if no broker answers at all.
        """
        now_ms = self._clock.monotonic_ms()
        wanted = set(topics)
        unknown, old = [], []
        for topic in wanted:
            known = self._known.get(topic)
            if known is None:
                unknown.append(topic)
                continue
            self._known.move_to_end(topic)
            if known.ask_ms <= now_ms:
                old.append(topic)
        old.sort(key=lambda topic: self._known[topic].ask_ms)
        probed = self._to_probe(now_ms, wanted)
        if asked := sorted(unknown) + old[:REFRESHED_MAX] + probed:
            self._known.limit = max(KNOWN_MAX, len(wanted) + len(probed))
            self._read(asked, now_ms)

    def problem_of(
        self, topic: str, partition: int | None, key: bytes | None, size_bytes: int
    ) -> str | None:
        """Return why a record would be refused by a topic that was looked up; None if it fits.

        `partition` is the one the message asks for, `size_bytes` what the record takes.
        """
        target = self._known[topic]
        if target.problem is not None:
            return target.problem
        count = len(target.partition_problems)
        if partition is not None and partition >= count:
            return (
                f"topic {topic} has {count} partitions, the message asks for partition {partition}"
            )
        if size_bytes + BATCH_OVERHEAD_BYTES > target.record_bytes_max:
            return (
                f"the record has {size_bytes} bytes, topic {topic} takes "
                f"{target.record_bytes_max} at most (max.message.bytes)"
            )
        if key is None and target.is_compacted:
            return f"topic {topic} is compacted, so that each record needs a key"
        if len(target.healthy) == count:
            return None
        if partition is None and key is None:
            return None if target.healthy else target.partition_problems[0]
        number = partition_of(key, count) if partition is None and key is not None else partition
        assert number is not None, "a message without key and partition goes anywhere"
        return target.partition_problems[number]

    def partitions_for_all(self, topic: str, bytes_max: int) -> int | None:
        """Return how many partitions a topic that was looked up has, if each takes any number of
        records of up to so many bytes; else None."""
        target = self._known[topic]
        if not target.is_healthy or target.is_compacted:
            return None
        if target.record_bytes_max < max(bytes_max + BATCH_OVERHEAD_BYTES, BATCH_BYTES_MAX):
            return None
        return len(target.partition_problems)

    def partition_for(self, topic: str, partition: int | None, key: bytes | None) -> int | None:
        """Return the partition to name when a message without problem is sent; None leaves it to
        the producer (murmur2 of the key, any without a key)."""
        if partition is not None or key is not None:
            return partition
        target = self._known[topic]
        if len(target.healthy) == len(target.partition_problems):
            return None
        target.turns += 1
        return target.healthy[target.turns % len(target.healthy)]

    def chunk_bytes_max(self, topic: str) -> int | None:
        """Return how much may be sent to a topic at once, so that each batch fits; None for any
        amount."""
        target = self._known[topic]
        assert target.problem is None, "only to a topic without a problem anything is sent"
        limit = target.record_bytes_max
        return None if limit >= BATCH_BYTES_MAX else limit - BATCH_OVERHEAD_BYTES

    def forget(self, topics: Iterable[str] | None = None) -> None:
        """Believe nothing any more of these topics, or of any: a step failed."""
        for topic in list(self._known) if topics is None else topics:
            self._known.pop(topic, None)
            self.record_limits.pop(topic, None)

    def _evicted(self, topic: str, _: _Target) -> None:
        self.record_limits.pop(topic, None)

    def _to_probe(self, now_ms: int, wanted: set[str]) -> list[str]:
        """Return failing topics that no message asks for, so that people see when they are well."""
        if now_ms - self._probed_ms < PROBE_MS:
            return []
        self._probed_ms = now_ms
        self.failures.forget_healed(self._is_failing)
        return [
            topic
            for topic in self.failures.topics()
            if topic not in wanted
            and ((known := self._known.get(topic)) is None or known.ask_ms <= now_ms)
        ]

    def _is_failing(self, topic: str) -> bool:
        known = self._known.get(topic)
        return known is None or not known.is_healthy

    def _read(self, topics: list[str], now_ms: int) -> None:
        """Ask for these in chunks; what is not answered in time has to wait for another step."""
        deadline_ms = now_ms + self._timeout_ms
        for first in range(0, len(topics), SURVEY_TOPICS_MAX):
            chunk = topics[first : first + SURVEY_TOPICS_MAX]
            left_ms = deadline_ms - self._clock.monotonic_ms()
            try:
                if left_ms <= 0:
                    raise KafkaUnreachableError("no time is left")
                anchored = chunk if self._anchor is None else [*chunk, self._anchor]
                survey = self._cluster.survey(anchored, left_ms)
                self._count_brokers(survey.states.values(), left_ms)
            except KafkaUnreachableError:
                if first == 0:
                    raise
                self._silent(topics[first:], now_ms)
                return
            for topic in chunk:
                if topic in survey.silent:
                    self._silent([topic], now_ms)
                else:
                    state = survey.states.get(topic)
                    self._know(topic, state, survey.refused.get(topic), now_ms)

    def _silent(self, topics: Iterable[str], now_ms: int) -> None:
        """Keep what was known, the best guess without an answer."""
        for topic in topics:
            known = self._known.get(topic)
            if known is None:
                problem = f"the brokers did not describe topic {topic} in time"
                self._known[topic] = _Target(now_ms + RECHECK_MS, problem)
            else:
                known.ask_ms = now_ms + RECHECK_MS

    def _know(self, topic: str, state: TopicState | None, refused: str | None, now_ms: int) -> None:
        target = _Target(now_ms, _problem_of_topic(topic, state, refused))
        if target.problem is None and state is not None:
            target.partition_problems = tuple(
                self._problem_of_partition(state, number) for number in range(len(state.partitions))
            )
            target.healthy = tuple(
                number
                for number, problem in enumerate(target.partition_problems)
                if problem is None
            )
            target.record_bytes_max = int(
                state.config.get("max.message.bytes", MESSAGE_BYTES_DEFAULT)
            )
            target.is_compacted = "compact" in state.config.get("cleanup.policy", "delete")
        target.ask_ms += FRESH_MS if target.is_healthy else RECHECK_MS
        self._known[topic] = target
        self.record_limits.pop(topic, None)
        if target.problem is None and (chunk := self.chunk_bytes_max(topic)) is not None:
            self.record_limits[topic] = CHUNKS_MAX * max(1, chunk // CHUNK_RECORD_BYTES)

    def _problem_of_partition(self, state: TopicState, number: int) -> str | None:
        partition = state.partitions[number]
        whose = f"partition {number} of topic {state.name}"
        if partition.leader is None:
            return f"{whose} has no leader; check the brokers that hold it"
        needed = int(state.config.get("min.insync.replicas", "1"))
        if partition.in_sync < needed:
            return (
                f"{whose} has {partition.in_sync} replicas in sync, fewer than "
                f"min.insync.replicas = {needed}"
            )
        if self._unreplicated or self._brokers <= 1:
            return None
        if partition.in_sync < 2:
            return (
                f"{whose} has one replica in sync, and would lose what is delivered with it; give "
                "it another, or set unreplicated_targets = true"
            )
        if partition.replicas <= needed:
            # Kafka ends no transaction while a partition in it has too few replicas in sync.
            return (
                f"{whose} has no replica to spare (min.insync.replicas = {needed}): one broker "
                "away would hold up all targets; give it another replica, lower "
                "min.insync.replicas, or set unreplicated_targets = true"
            )
        return None

    def _count_brokers(self, states: Iterable[TopicState], timeout_ms: int) -> None:
        """Note the number of brokers, as far as it matters: whether there is more than one."""
        if self._brokers > 1 or self._unreplicated:
            return
        partitions = [partition for state in states for partition in state.partitions]
        self._brokers = max(self._brokers, *(p.replicas for p in partitions), 0)
        if self._brokers > 1 or all(partition.in_sync > 1 for partition in partitions):
            return
        now_ms = self._clock.monotonic_ms()
        if self._brokers_asked_ms is None or now_ms - self._brokers_asked_ms >= BROKERS_FRESH_MS:
            self._brokers = max(self._brokers, self._cluster.broker_count(timeout_ms))
            self._brokers_asked_ms = now_ms


def _problem_of_topic(topic: str, state: TopicState | None, refused: str | None) -> str | None:
    """Return what is wrong with all of a topic."""
    if refused is not None:
        return (
            f"topic {topic} may not be described ({refused}); delayd needs the rights Describe, "
            "DescribeConfigs and Write on its targets"
        )
    if state is None:
        return f"topic {topic} does not exist; create it"
    if state.may_write is False:
        return f"topic {topic} may not be written; delayd needs the right Write on it"
    if not state.partitions:
        return f"topic {topic} has no partitions yet"
    if state.config.get("message.timestamp.type") == "LogAppendTime":
        return None
    for name in ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"):
        if int(state.config.get(name, TIMESTAMP_SLACK_MIN_MS)) < TIMESTAMP_SLACK_MIN_MS:
            return (
                f"topic {topic} has {name} below {TIMESTAMP_SLACK_MIN_MS}, by which Kafka may be "
                "unable to end a transaction in it; raise it"
            )
    return None
