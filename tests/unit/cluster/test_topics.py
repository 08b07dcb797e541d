"""delayd's own topics: made once, checked at every start, and every complaint says what to run."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from manual_clock import ManualClock

from delayd.bus import Position
from delayd.bus.memory import MemoryBus, MemoryKafka
from delayd.bus.memory.log import Entry
from delayd.cluster.topic_checks import check_topics
from delayd.cluster.topics import create_topics, last_frontier, load_settings
from delayd.config.cluster_key import fingerprint
from delayd.errors import (
    ConfigError,
    DelaydError,
    FrontierError,
    KafkaUnreachableError,
    NotInitialisedError,
    ProducerError,
    TopicMismatchError,
)
from replication.frontier import first_frontier
from replication.record import FrontierRecord, encode
from replication.settings import AT_LEAST_ONCE, DAY_MS, RETRY_DELAYS_MS, Settings

CREATE = "delayd topics create"
KEY = "a key that is long enough"
ID = "delayd-c/id-2-shard-0"
TIMEOUT_MS = 1_000


@pytest.fixture
def kafka() -> MemoryKafka:
    return MemoryKafka(ManualClock(), brokers=3)


@pytest.fixture
def bus(kafka: MemoryKafka) -> MemoryBus:
    return MemoryBus(kafka)


def create(bus: MemoryBus, **choices: Any) -> Settings:
    usual: dict[str, Any] = {"cluster": "c", "cluster_key": KEY, "max_delay_ms": DAY_MS}
    return create_topics(bus, **{**usual, "timeout_ms": TIMEOUT_MS, **choices})


def load(bus: MemoryBus) -> Settings:
    return load_settings(bus, "c", "delayd-", TIMEOUT_MS).record.settings


def frontier_records(bus: MemoryBus) -> int:
    consumer = bus.consumer("delayd-frontier")
    consumer.assign({0: Position(0)})
    return len(consumer.poll(100, 0))


# --- Making them


def test_a_new_cluster_gets_its_topics_and_a_first_frontier(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    """docs/design/frontier.md, Takeover: `topics create` writes the first frontier record."""
    settings = create(bus)
    counts = {name: len(topic.partitions) for name, topic in kafka.topics.items()}
    assert counts == {
        "delayd-buffer": 4,
        "delayd-frontier": 1,
        "delayd-receipts": 4,
        "delayd-dead": 4,
    }
    seen = load_settings(bus, "c", "delayd-", TIMEOUT_MS)
    assert seen.record.frontier == first_frontier(0, 4, 64)
    assert seen.record.settings == settings
    assert (settings.partitions, settings.lanes, settings.max_delay_ms) == (4, 64, DAY_MS)
    assert settings.buffer.topic_id == kafka.topics["delayd-buffer"].topic_id


def test_the_topics_are_made_as_the_contract_needs_them(kafka: MemoryKafka, bus: MemoryBus) -> None:
    """docs/design/frontier.md, Now (append time) and Targets (two in sync)."""
    create(bus)
    config = {name: topic.config for name, topic in kafka.topics.items()}
    for name in config:
        assert config[name]["unclean.leader.election.enable"] == "false"
        assert config[name]["min.insync.replicas"] == "2"
    for name in ("delayd-buffer", "delayd-frontier"):
        assert config[name]["message.timestamp.type"] == "LogAppendTime"
    assert config["delayd-frontier"]["cleanup.policy"] == "compact"
    assert int(config["delayd-frontier"]["min.compaction.lag.ms"]) >= DAY_MS
    assert config["delayd-frontier"]["compression.type"] == "gzip"
    assert int(config["delayd-buffer"]["retention.ms"]) == 2 * DAY_MS


def test_creating_again_changes_nothing(bus: MemoryBus) -> None:
    """docs/design/frontier.md, Takeover: settings are fixed by the first frontier record."""
    settings = create(bus)
    assert create(bus, max_delay_ms=2 * DAY_MS) == settings
    assert frontier_records(bus) == 1


@pytest.mark.parametrize("applied", [True, False])
def test_a_first_attempt_in_doubt_can_be_repeated(
    kafka: MemoryKafka, bus: MemoryBus, applied: bool
) -> None:
    """docs/design/frontier.md, Fence: an unknown outcome is resolved by reading the frontier."""
    kafka.fail_next_commit(ID, applied=applied)
    with pytest.raises(ProducerError):
        create(bus)
    assert (last_frontier(bus, "delayd-frontier", TIMEOUT_MS) is not None) is applied
    assert create(bus) == load(bus)
    assert frontier_records(bus) == 1


def test_a_first_attempt_that_was_aborted_can_be_repeated(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    """docs/design/frontier.md, Fence: aborted attempts do no harm."""
    for _ in range(3):
        kafka.fail_next_flush(ID)
        with pytest.raises(ProducerError):
            create(bus)
    with pytest.raises(NotInitialisedError):
        load(bus)
    create(bus)
    assert frontier_records(bus) == 1


def test_a_stale_read_of_the_frontier_initialises_nothing(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    """docs/design/frontier.md, Stale reads: a second first record would deliver everything again.

    Rules: stale-read
    """
    create(bus)
    kafka.log("delayd-frontier", 0).delete_before(2)
    kafka.log("delayd-frontier", 0).start_offset = 0
    kafka.isolate_leader("delayd-frontier", 0)
    kafka.log("delayd-frontier", 0).entries.append(Entry(None, None))
    other = MemoryBus(kafka)
    other.link.meets_zombies = True
    with pytest.raises(FrontierError, match=f"leads no more.*run `{CREATE}` again"):
        create(other)
    assert frontier_records(bus) == 0


def test_a_frontier_topic_that_was_trimmed_is_not_initialised_again(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    """docs/design/frontier.md, Takeover: the topic was lost; never start at "now".

    Rules: no-frontier
    """
    create(bus)
    log = kafka.log("delayd-frontier", 0)
    log.delete_before(log.end_offset)
    for adopt_buffer in (False, True):
        with pytest.raises(FrontierError, match=rf"delayd-frontier was trimmed.*{CREATE}"):
            create(bus, adopt_buffer=adopt_buffer)
    with pytest.raises(NotInitialisedError):
        load(bus)


def test_a_buffer_with_a_past_is_adopted_only_when_asked(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    """docs/design/frontier.md, Takeover: no frontier record says what was delivered from it."""
    create(bus)
    kafka.append("delayd-buffer", 0, None, b"x")
    kafka.delete_topic("delayd-frontier")
    with pytest.raises(FrontierError, match=rf"delayd-buffer has been used.*{CREATE} --adopt-buff"):
        create(bus)
    create(bus, adopt_buffer=True)
    assert load(bus).partitions == 4


def test_another_name_of_the_cluster_is_refused(bus: MemoryBus) -> None:
    """docs/design/frontier.md, Fence: one transactional id per cluster name."""
    create(bus)
    for attempt in (
        lambda: create(bus, cluster="other"),
        lambda: load_settings(bus, "other", "delayd-", TIMEOUT_MS),
    ):
        with pytest.raises(DelaydError, match=r"belong to the cluster 'c'.*--cluster"):
            attempt()


def test_a_cluster_that_was_never_initialised_is_told_how(bus: MemoryBus) -> None:
    """docs/design/frontier.md, Takeover: no frontier record at all: stop with an explanation."""
    with pytest.raises(NotInitialisedError, match=rf"never initialised.*`{CREATE}`"):
        load(bus)


def test_brokers_that_do_not_answer_are_not_an_empty_cluster(bus: MemoryBus) -> None:
    """docs/design/frontier.md, Takeover: not to be taken for a cluster without a frontier."""
    create(bus)
    bus.link.up = False
    with pytest.raises(KafkaUnreachableError):
        load(bus)
    with pytest.raises(KafkaUnreachableError):
        create(bus)


def test_rules_that_this_program_does_not_know_stop_it(kafka: MemoryKafka, bus: MemoryBus) -> None:
    """docs/design/frontier.md, Ingest: the rules version; a node that does not know it stops.

    Rules: rules-version
    """
    create(bus)
    seen = load_settings(bus, "c", "delayd-", TIMEOUT_MS)
    later = replace(
        seen.record,
        frontier=replace(seen.record.frontier, step=1),
        settings=replace(seen.record.settings, rules_version=99),
    )
    kafka.append("delayd-frontier", 0, b"shard-0", encode(later))
    with pytest.raises(TopicMismatchError, match=r"rules version 99, .* knows 2, 3, 4, 5"):
        load(bus)


def test_tracing_headers_of_its_own_are_fixed_and_checked(bus: MemoryBus) -> None:
    """docs/reference/topics.md, "What is fixed"."""
    with pytest.raises(ConfigError, match="is no name of a tracing header"):
        create(bus, tracing_headers=("delayd-id",))
    made = create(bus, tracing_headers=("x-trace", "x-acme-*"))
    assert load(bus) == made and made.tracing_headers == ("x-trace", "x-acme-*")


def test_the_choices_of_the_beginning_are_kept(bus: MemoryBus) -> None:
    """docs/reference/topics.md, "What is fixed"."""
    usual = create(bus)
    assert usual.retry_delays_ms == RETRY_DELAYS_MS and usual.receipts_written == "verdicts"
    again = create(
        bus, cluster_key="another key, as long", retry_delays_ms=(1,), receipts_written="all"
    )
    assert again == usual == load(bus)


def test_other_choices_are_in_the_settings(bus: MemoryBus) -> None:
    """docs/reference/topics.md, "What is fixed"."""
    create(bus, retry_delays_ms=(5, 70), receipts_written="all")
    settings = load(bus)
    assert (settings.retry_delays_ms, settings.receipts_written) == ((5, 70), "all")
    assert settings.key_fingerprint == fingerprint(KEY, "c")


def test_without_transactions_a_cluster_is_made_all_the_same(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    """docs/guarantees.md, "At least once": nothing transactional is asked of the brokers."""
    made = create(bus, guarantee=AT_LEAST_ONCE)
    assert made.guarantee == AT_LEAST_ONCE and load(bus) == made
    assert not kafka.coordinator.holders
    assert create(bus) == made and frontier_records(bus) == 1


def test_a_creator_that_was_not_the_first_is_told_what_is_in_force(
    monkeypatch: pytest.MonkeyPatch, bus: MemoryBus
) -> None:
    """docs/reference/topics.md: without a fence both had found the topic empty, and what is read as
    the last frontier is the first of the two."""
    other: list[Settings] = []

    def encode_late(record: FrontierRecord) -> bytes:
        monkeypatch.undo()
        other.append(create(bus, guarantee=AT_LEAST_ONCE, cluster_key="the key of the other one"))
        return encode(record)

    monkeypatch.setattr("delayd.cluster.frontier_log.encode", encode_late)
    assert [create(bus, guarantee=AT_LEAST_ONCE)] == other == [load(bus)]
    assert frontier_records(bus) == 2


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"retry_delays_ms": ()}, "0 retry delays, where 1 to 64"),
        ({"retry_delays_ms": (1,) * 65}, "65 retry delays"),
        ({"retry_delays_ms": (10, 0)}, "at least 1 ms"),
        ({"retry_delays_ms": (10, DAY_MS + 1), "max_delay_ms": DAY_MS}, "longest delay"),
        ({"receipts_written": "none"}, "verdicts or all, not 'none'"),
        ({"guarantee": "at-most-once"}, "exactly-once or at-least-once, not 'at-most-once'"),
        ({"cluster_key": "too short"}, "fewer than 16"),
    ],
)
def test_choices_that_make_no_sense_make_nothing(
    kafka: MemoryKafka, bus: MemoryBus, choice: dict[str, Any], says: str
) -> None:
    """docs/reference/topics.md, "What is fixed"."""
    with pytest.raises(ConfigError, match=says):
        create(bus, **choice)
    assert not kafka.topics


# --- Checking them


@pytest.mark.parametrize(
    ("topic", "key", "value", "needed"),
    [
        ("delayd-buffer", "message.timestamp.type", "CreateTime", "LogAppendTime"),
        ("delayd-frontier", "message.timestamp.type", "CreateTime", "LogAppendTime"),
        ("delayd-frontier", "cleanup.policy", "delete", "compact"),
        ("delayd-buffer", "cleanup.policy", "compact", "delete"),
        ("delayd-receipts", "cleanup.policy", "compact,delete", "delete"),
        ("delayd-dead", "unclean.leader.election.enable", "true", "false"),
        ("delayd-dead", "max.message.bytes", "1000", "1048588"),
        ("delayd-frontier", "min.insync.replicas", "1", "2"),
    ],
)
def test_a_setting_that_breaks_the_contract_is_named_with_its_command(
    kafka: MemoryKafka, bus: MemoryBus, topic: str, key: str, value: str, needed: str
) -> None:
    """docs/design/frontier.md, Now, Ingest and Targets: checked at every start."""
    create(bus)
    kafka.topics[topic].config[key] = value
    with pytest.raises(TopicMismatchError) as raised:
        load(bus)
    command = f"--entity-name {topic} --add-config {key}={needed}`"
    assert "kafka-configs.sh --bootstrap-server BROKERS --alter" in str(raised.value)
    assert command in str(raised.value)
    assert str(raised.value).count("; run `") == 1, "one problem, one command"
    with pytest.raises(TopicMismatchError):
        create(bus)


@pytest.mark.parametrize(
    ("key", "value", "needed"),
    [
        ("retention.ms", str(2 * DAY_MS - 1), str(2 * DAY_MS)),
        ("retention.bytes", "1000000", "-1"),
    ],
)
def test_a_retention_that_is_too_short_is_a_warning_and_stops_no_node(
    kafka: MemoryKafka, bus: MemoryBus, key: str, value: str, needed: str
) -> None:
    """docs/reference/topics.md, "What is checked"."""
    settings = create(bus)
    kafka.topics["delayd-buffer"].config[key] = value
    assert load(bus) == settings
    found = check_topics(bus.cluster(), settings, TIMEOUT_MS)
    [warning] = found.warnings
    assert found.broken == () and f"--entity-name delayd-buffer --add-config {key}={needed}`" in (
        warning
    )
    with pytest.raises(TopicMismatchError, match=key):
        create(bus)


@pytest.mark.parametrize("value", ["-1", str(2 * DAY_MS), str(9 * DAY_MS)])
def test_a_retention_that_is_long_enough_is_fine(
    kafka: MemoryKafka, bus: MemoryBus, value: str
) -> None:
    """docs/design/frontier.md, Ingest: retention >= longest delay + 1 day."""
    create(bus)
    kafka.topics["delayd-buffer"].config["retention.ms"] = value
    load(bus)


def recreate(topic: str, partitions: int) -> Callable[[MemoryKafka], None]:
    def bend(kafka: MemoryKafka) -> None:
        config = kafka.topics[topic].config
        kafka.delete_topic(topic)
        kafka.create_topic(topic, partitions, config, replication_factor=3)

    return bend


def more_partitions(kafka: MemoryKafka) -> None:
    topic = kafka.topics["delayd-buffer"]
    topic.partitions.append(replace(topic.partitions[0], number=4, entries=[], open={}))


@pytest.mark.parametrize(
    ("bend", "problem", "command"),
    [
        (
            lambda kafka: kafka.delete_topic("delayd-receipts"),
            "topic delayd-receipts does not exist any more",
            f"under another --cluster and --prefix with `{CREATE}`",
        ),
        (
            recreate("delayd-buffer", 4),
            "topic delayd-buffer was deleted and created again (id id-5, was id-1)",
            f"under another --cluster and --prefix with `{CREATE}`",
        ),
        (
            more_partitions,
            "topic delayd-buffer has 5 partitions, the cluster was made with 4",
            f"`{CREATE} --partitions 5`",
        ),
    ],
    ids=["missing", "created again", "more partitions"],
)
def test_a_topic_that_is_not_the_old_one_is_told_with_the_way_out(
    kafka: MemoryKafka,
    bus: MemoryBus,
    bend: Callable[[MemoryKafka], None],
    problem: str,
    command: str,
) -> None:
    """docs/design/frontier.md, Takeover: the topic ids are among the fixed settings."""
    settings = create(bus)
    bend(kafka)
    with pytest.raises(TopicMismatchError) as raised:
        load(bus)
    assert problem in str(raised.value)
    assert command in str(raised.value)
    assert check_topics(bus.cluster(), settings, TIMEOUT_MS).all == (str(raised.value),)


def test_a_buffer_that_someone_else_made_otherwise_is_refused(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    """docs/design/frontier.md, Rank, slot, lane: the partition count is fixed for ever."""
    kafka.create_topic("delayd-buffer", 7, {"message.timestamp.type": "LogAppendTime"}, 3)
    with pytest.raises(TopicMismatchError, match=rf"has 7 partitions.*`{CREATE} --partitions 7`"):
        create(bus)
    with pytest.raises(NotInitialisedError):
        load(bus)


def test_the_buffer_stores_batches_uncompressed_and_what_else_it_may_be_is_advice(
    kafka: MemoryKafka, bus: MemoryBus
) -> None:
    """docs/operations.md, "Compressed batches": brokers then refuse what no node can hold."""
    settings = create(bus)
    config = kafka.topics["delayd-buffer"].config
    assert config["compression.type"] == "uncompressed"
    assert check_topics(bus.cluster(), settings, TIMEOUT_MS).advice == ()
    for other in ("producer", "lz4"):
        config["compression.type"] = other
        found = check_topics(bus.cluster(), settings, TIMEOUT_MS)
        assert found.all == () and len(found.advice) == 1
        assert f"compression.type is {other}" in found.advice[0]
        assert "--add-config compression.type=uncompressed" in found.advice[0]
    assert load(bus) == settings
