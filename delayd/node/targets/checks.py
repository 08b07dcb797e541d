"""Targets: whether a message can be written to its topic. A step asks before it takes it.

A transaction with a bad target fails as a whole, so no message that is known to fail may enter one.
Answers come from cached descriptions. What is wrong with a target is a text for its own messages,
and never an error that would stop the messages of others.

Not here: what brokers refuse although it looked well (`quarantine.py`), what becomes of a message
that is turned away.

Invariants:
- brokers are asked at most every RECHECK_MS for a name, however many steps want it;
- what is remembered is bounded, whatever names the requests bring, and names that do not exist
  displace none that do;
- a step finds at most ABSENT_MAX names that do not exist: requests may bring any number of them;
- only brokers that do not answer at all are an error.
Source: docs/design/frontier.md, "Targets".
"""

from collections.abc import Container, Iterable, Set
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
"""Topics that are remembered, those that were wanted last; so many names that do not exist, too."""

REFRESHED_MAX = 100
"""How many descriptions are renewed in one step: each takes about 1 ms of it. The others are
believed for a step longer."""

ABSENT_MAX = 200
"""How many unknown names may turn out not to exist in one step, rounded up to whole questions: a
question about SURVEY_TOPICS_MAX of them takes about 15 ms (Kafka 4.3.1, on the same machine)."""

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
    leaders: tuple[int | None, ...] = ()
    """By partition."""
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
        self._absent: BoundedDict[str, _Target] = BoundedDict(KNOWN_MAX)
        """Names that do not exist, apart from those that do: a flood of them displaces no other."""
        self._existed: BoundedDict[str, None] = BoundedDict(KNOWN_MAX)
        """Names of topics that were described at any time: asked for before strange names."""
        self._absent_left = ABSENT_MAX
        """How many more may be found in this step."""
        self._refreshed_left = REFRESHED_MAX
        self._brokers = 0
        """The most that were ever seen: a cluster that lost brokers is not a smaller one."""
        self._brokers_asked_ms: int | None = None
        self._anchor_leaders: frozenset[int | None] = frozenset()
        self.record_limits: dict[str, int] = {}
        """By topic that takes only small batches: how many records of its lane are enough for a
        step."""
        self.failures = TargetFailures(clock)
        self._probed_ms = clock.monotonic_ms()

    def renew(self, cluster: Cluster) -> None:
        """Ask this one from now on."""
        self._cluster = cluster

    def begin_step(self) -> None:
        """Let another step ask as much as a step may."""
        self._absent_left = ABSENT_MAX
        self._refreshed_left = REFRESHED_MAX

    def look_up(self, topics: Iterable[str]) -> None:
        """Read unknown and old descriptions, in few requests, as far as the step may still ask.
        Afterwards all of these can be asked about, but for those that `is_unasked`.

        KafkaUnreachableError if no broker answers at all.
        """
        now_ms = self._clock.monotonic_ms()
        wanted = dict.fromkeys(topics)
        unknown: list[str] = []
        old: list[tuple[int, str]] = []
        for topic in wanted:
            names = self._absent if topic in self._absent else self._known
            if (target := names.get(topic)) is None:
                unknown.append(topic)
                continue
            names.move_to_end(topic)
            if target.ask_ms <= now_ms:
                old.append((target.ask_ms, topic))
        renewed = [topic for _, topic in sorted(old)[: self._refreshed_left]]
        self._refreshed_left -= len(renewed)
        sure = [topic for topic in unknown if topic in self._existed]
        sure += renewed + self._to_probe(now_ms, wanted)
        strange = [topic for topic in unknown if topic not in self._existed]
        if asked := sure + (strange if self._absent_left > 0 else []):
            self._known.limit = self._absent.limit = max(KNOWN_MAX, len(wanted) + len(sure))
            self._read(asked, now_ms, sure_count=len(sure))

    def is_unasked(self, topic: str) -> bool:
        """Return whether brokers were not asked for a topic, because the step had asked enough."""
        return topic not in self._known and topic not in self._absent

    def problem_of(
        self, topic: str, partition: int | None, key: bytes | None, size_bytes: int
    ) -> str | None:
        """Return why a record would be refused by a topic that was looked up; None if it fits.

        `partition` is the one the message asks for, `size_bytes` what the record takes.
        """
        if (absent := self._absent.get(topic)) is not None:
            return absent.problem
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
        """Return how many partitions a topic has, if it is known and each takes any number of
        records of up to so many bytes; else None."""
        target = self._known.get(topic)
        if target is None or not target.is_healthy or target.is_compacted:
            return None
        if target.record_bytes_max < max(bytes_max + BATCH_OVERHEAD_BYTES, BATCH_BYTES_MAX):
            return None
        return len(target.partition_problems)

    def partition_for(
        self, topic: str, partition: int | None, key: bytes | None, spared: Container[int] = ()
    ) -> int | None:
        """Return the partition to name when a message without problem is sent; None leaves it to
        the producer (murmur2 of the key, any without a key).

        A message that may go anywhere goes to none of the `spared` ones; it waits if there is no
        other (`spared_one`)."""
        if partition is not None or key is not None:
            return partition
        target = self._known[topic]
        if not spared and len(target.healthy) == len(target.partition_problems):
            return None
        may = [number for number in target.healthy if number not in spared]
        target.turns += 1
        return may[target.turns % len(may)]

    def spared_one(
        self, topic: str, partition: int | None, key: bytes | None, spared: Set[int]
    ) -> int | None:
        """Return the spared partition that a message has to wait for; None if it goes elsewhere."""
        target = self._known[topic]
        number = partition
        if partition is None and key is not None:
            number = partition_of(key, len(target.partition_problems))
        if number is None:
            return min(spared) if spared >= set(target.healthy) else None
        return number if number in spared else None

    def suspected_leaders(
        self, silent: Set[tuple[str, int]], sent: Iterable[str]
    ) -> dict[tuple[str, int], int]:
        """Return the brokers that may hang as a whole, by the partition that they lead: what a step
        `sent` to the `silent` ones was not acknowledged.

        Not suspected is one that acknowledged all of another topic, or leads all that is known:
        delayd's own topics too, which it answers for.
        """
        led = {topic: target.leaders for topic, target in self._known.items()}
        if len(self._anchor_leaders.union(*led.values())) <= 1:
            return {}
        innocent: set[int | None] = {None}
        silent_topics = {topic for topic, _ in silent}
        for topic in sent:
            leaders = set(led.get(topic, ()))
            if topic not in silent_topics and len(leaders) == 1:
                innocent |= leaders
        return {
            (topic, number): leader
            for topic, number in silent
            if number < len(led.get(topic, ()))
            and (leader := led[topic][number]) is not None
            and leader not in innocent
        }

    def led_by(self, topic: str, brokers: Container[int | None]) -> list[int]:
        """Return the partitions of a topic that these brokers lead, as far as it is known."""
        target = self._known.get(topic)
        leaders = () if target is None else target.leaders
        return [number for number, leader in enumerate(leaders) if leader in brokers]

    def chunk_bytes_max(self, topic: str) -> int | None:
        """Return how much may be sent to a topic at once, so that each batch fits; None for any
        amount."""
        target = self._known[topic]
        assert target.problem is None, "only to a topic without a problem anything is sent"
        limit = target.record_bytes_max
        return None if limit >= BATCH_BYTES_MAX else limit - BATCH_OVERHEAD_BYTES

    def forget(self, topics: Iterable[str] | None = None) -> None:
        """Believe nothing any more of these topics, or of any: a step failed."""
        for topic in [*self._known, *self._absent] if topics is None else topics:
            self._known.pop(topic, None)
            self._absent.pop(topic, None)
            self.record_limits.pop(topic, None)

    def _evicted(self, topic: str, _: _Target) -> None:
        self.record_limits.pop(topic, None)

    def _to_probe(self, now_ms: int, wanted: Container[str]) -> list[str]:
        """Return failing topics that no message asks for, so that people see when they are well."""
        if now_ms - self._probed_ms < PROBE_MS:
            return []
        self._probed_ms = now_ms
        self.failures.forget_healed(self._is_failing)
        return [
            topic
            for topic in self.failures.topics()
            if topic not in wanted
            and ((known := self._found(topic)) is None or known.ask_ms <= now_ms)
        ]

    def _is_failing(self, topic: str) -> bool:
        known = self._known.get(topic)
        return known is None or not known.is_healthy

    def _found(self, topic: str) -> _Target | None:
        return self._known.get(topic) or self._absent.get(topic)

    def _read(self, topics: list[str], now_ms: int, *, sure_count: int) -> None:
        """Ask for these in chunks; what is not answered in time has to wait for another step, and
        so does what comes behind too many names that do not exist. The first `sure_count` do not
        wait."""
        deadline_ms = now_ms + self._timeout_ms
        for first in range(0, len(topics), SURVEY_TOPICS_MAX):
            if first >= sure_count and self._absent_left <= 0:
                return
            chunk = topics[first : first + SURVEY_TOPICS_MAX]
            left_ms = deadline_ms - self._clock.monotonic_ms()
            try:
                if left_ms <= 0:
                    raise KafkaUnreachableError("no time is left")
                anchored = chunk if self._anchor is None else [*chunk, self._anchor]
                survey = self._cluster.survey(anchored, left_ms)
                self._count_brokers(survey.states.values(), left_ms)
                if self._anchor is not None and (state := survey.states.get(self._anchor)):
                    self._anchor_leaders = frozenset(each.leader for each in state.partitions)
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
            known = self._found(topic)
            if known is None:
                problem = f"the brokers did not describe topic {topic} in time"
                self._known[topic] = _Target(now_ms + RECHECK_MS, problem)
            else:
                known.ask_ms = now_ms + RECHECK_MS

    def _know(self, topic: str, state: TopicState | None, refused: str | None, now_ms: int) -> None:
        target = _Target(now_ms, _problem_of_topic(topic, state, refused))
        if state is None and refused is None:
            self._absent_left -= topic not in self._absent
            self.forget([topic])
            target.ask_ms += RECHECK_MS
            self._absent[topic] = target
            return
        self._absent.pop(topic, None)
        self._existed[topic] = None
        if target.problem is None and state is not None:
            target.partition_problems = tuple(
                self._problem_of_partition(state, number) for number in range(len(state.partitions))
            )
            target.healthy = tuple(
                number
                for number, problem in enumerate(target.partition_problems)
                if problem is None
            )
            target.leaders = tuple(partition.leader for partition in state.partitions)
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
