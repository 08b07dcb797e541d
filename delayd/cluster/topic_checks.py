"""What the contract needs of delayd's own topics, once the cluster exists.

Not here: how topics are made (`topics.py`), and when they are checked.
Source: docs/reference/topics.md, "What is checked".
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from delayd.bus import Cluster, TopicState
from replication.settings import DAY_MS, Settings, Topic

RECORD_MARGIN_BYTES = 64 * 1024
"""What a request may not use of the smallest `max.message.bytes`: room for delayd's headers."""
UNCOMPRESSED = "uncompressed"
"""The `compression.type` of a topic whose batches brokers expand before they measure them."""
CREATE_COMMAND = "delayd topics create"
DELETION_NOTICE_MS = 15 * 60_000
"""How long before brokers may delete records they are called endangered. Brokers look for old
segments every 5 minutes, and a node asks twice a minute."""


class Findings(NamedTuple):
    """What is wrong with the topics, each problem with the command that corrects it."""

    broken: tuple[str, ...]
    """What makes the promises void from now on: nothing may go on with it."""
    warnings: tuple[str, ...]
    """What will lose records if it stays. Nothing is lost yet, and stopping would save nothing."""
    advice: tuple[str, ...] = ()
    """What breaks no promise, and lets others make nodes work or fail for nothing."""

    @property
    def all(self) -> tuple[str, ...]:
        """Return what must be corrected."""
        return self.broken + self.warnings


def check_topics(kafka: Cluster, settings: Settings, timeout_ms: int) -> Findings:
    """Return what is wrong with the topics now."""
    states = kafka.describe([topic.name for topic in settings.topics], timeout_ms)
    return topic_findings(states, settings)


def topic_findings(states: Mapping[str, TopicState], settings: Settings) -> Findings:
    """Return what is wrong with topics in these states."""
    broken: list[str] = []
    for topic in settings.topics:
        state = states.get(topic.name)
        if state is None:
            broken.append(
                f"topic {topic.name} does not exist any more: restore it, or start a new cluster "
                f"under another --cluster and --prefix with `{CREATE_COMMAND}`"
            )
            continue
        if state.topic_id != topic.topic_id:
            broken.append(
                f"topic {topic.name} was deleted and created again (id {state.topic_id}, was "
                f"{topic.topic_id}): what it held is lost; start a new cluster under another "
                f"--cluster and --prefix with `{CREATE_COMMAND}`"
            )
        wanted = settings.shards if topic is settings.frontier else settings.partitions
        # There may have been more shards, or are about to be.
        may_have_more = topic is settings.frontier
        found = len(state.partitions)
        if found < wanted or (found > wanted and not may_have_more):
            broken.append(
                f"topic {topic.name} has {len(state.partitions)} partitions, the cluster was made "
                f"with {wanted} and that is fixed: start a new cluster under another --cluster "
                f"and --prefix with `{CREATE_COMMAND} --partitions {len(state.partitions)}`"
            )
        broken += _config_problems(state, settings, topic)
    buffer = states.get(settings.buffer.name)
    warnings = [] if buffer is None else _retention_problems(buffer, settings)
    advice = [] if buffer is None else _guard_problems(buffer)
    return Findings(tuple(broken), tuple(warnings), tuple(advice))


def endangered(
    kafka: Cluster, settings: Settings, read_to: Sequence[int], now_ms: int, timeout_ms: int
) -> list[str]:
    """Return which records of the buffer its retention is about to delete before this node has
    read them, by partition.

    `read_to` is 1 + the last offset read, by partition. Raises KafkaUnreachableError.
    """
    name = settings.buffer.name
    state = kafka.describe([name], timeout_ms).get(name)
    retention_ms = -1 if state is None else int(state.config.get("retention.ms", "-1"))
    if retention_ms < 0:
        return []
    kept_from = kafka.offsets_since(name, now_ms - retention_ms + DELETION_NOTICE_MS, timeout_ms)
    starts = kafka.start_offsets(name, timeout_ms)
    ends = kafka.end_offsets(name, timeout_ms, committed=False)
    found = []
    for partition, read in enumerate(read_to):
        first, end = max(read, starts[partition]), kept_from.get(partition, ends[partition])
        if first < end:
            found.append(
                f"this node has not read {name}/{partition} from offset {first} on, and the "
                f"brokers are about to delete what is below offset {end} (retention.ms = "
                f"{retention_ms})"
            )
    return found


def _config_problems(state: TopicState, settings: Settings, topic: Topic) -> list[str]:
    """Return the settings of one topic that break the contract."""
    needed = {"unclean.leader.election.enable": "false"}
    problems = []
    if topic in (settings.buffer, settings.frontier):
        needed["message.timestamp.type"] = "LogAppendTime"
    needed["cleanup.policy"] = "compact" if topic is settings.frontier else "delete"
    for key, value in needed.items():
        if (is_now := state.config.get(key)) != value:
            problems.append(_alter(topic.name, key, value, f"is {is_now}"))
    largest = int(state.config.get("max.message.bytes", "0"))
    if largest < settings.record_bytes_max + RECORD_MARGIN_BYTES:
        problems.append(
            _alter(
                topic.name,
                "max.message.bytes",
                str(settings.record_bytes_max + RECORD_MARGIN_BYTES),
                f"is {largest}: too small",
            )
        )
    replicas = max((partition.replicas for partition in state.partitions), default=0)
    in_sync_min = int(state.config.get("min.insync.replicas", "1"))
    if replicas >= 3 and in_sync_min < 2:
        problems.append(_alter(topic.name, "min.insync.replicas", "2", f"is {in_sync_min}"))
    return problems


def _retention_problems(buffer: TopicState, settings: Settings) -> list[str]:
    """Return the settings by which the buffer loses records that are still needed."""
    problems = []
    least_ms = settings.max_delay_ms + DAY_MS
    retention_ms = int(buffer.config.get("retention.ms", "-1"))
    if 0 <= retention_ms < least_ms:
        what = f"is {retention_ms}: too short"
        problems.append(_alter(buffer.name, "retention.ms", str(least_ms), what))
    if int(buffer.config.get("retention.bytes", "-1")) >= 0:
        what = "limits what is kept by size"
        problems.append(_alter(buffer.name, "retention.bytes", "-1", what))
    return problems


def _guard_problems(buffer: TopicState) -> list[str]:
    """Return the settings by which brokers let batches in that no node can hold."""
    is_now = buffer.config.get("compression.type")
    if is_now == UNCOMPRESSED:
        return []
    what = f"is {is_now}, so that max.message.bytes does not limit what a batch expands to"
    return [_alter(buffer.name, "compression.type", UNCOMPRESSED, what)]


def _alter(topic: str, key: str, value: str, what: str) -> str:
    return (
        f"topic {topic}: {key} {what}; run `kafka-configs.sh --bootstrap-server BROKERS --alter "
        f"--entity-type topics --entity-name {topic} --add-config {key}={value}`"
    )
