"""One master without transactions, move by move: what etcd takes, and where a successor goes on."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from one_node import TIMEOUT_MS, OneNode

from delayd.audit.errors import AuditError, refuse_at_least_once
from delayd.cluster.frontier_log import FrontierLog
from delayd.config.node import NodeConfig
from delayd.coordination import Leadership
from delayd.coordination.keys import progress_key
from delayd.coordination.memory import MemoryCoordination, MemoryEtcd, Outcome
from delayd.errors import ConfigError, FrontierError
from delayd.node.delivery.commits import SupersededError
from delayd.node.delivery.commits.progress import ProgressCommit
from delayd.node.delivery.takeover_run import StaleReadError
from delayd.node.startup_checks import check_guarantee
from replication.frontier import begin_term, stand_still
from replication.record import FrontierRecord, decode, encode, record_key
from replication.settings import AT_LEAST_ONCE, EXACTLY_ONCE
from replication.takeover import ReadProgress

FRONTIER = "delayd-frontier"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[OneNode]:
    """A master; a message for `orders` is due."""
    made = OneNode(tmp_path, "orders", guarantee=AT_LEAST_ONCE)
    made.lead()
    made.send("orders")
    made.ingest()
    yield made
    made.close()


def in_etcd(node: OneNode) -> FrontierRecord:
    assert node.grant.leadership is not None
    found = node.etcd.progress(0, node.grant.leadership)
    assert found is not None
    return decode(found.value)


def in_topic(node: OneNode) -> list[FrontierRecord]:
    return [decode(record.value or b"") for record in node.read(FRONTIER)]


def usurp(node: OneNode) -> Leadership:
    """Another node holds the leader key now."""
    assert node.grant.leadership is not None
    etcd = node.etcd
    for lease_id in range(1, 5):
        etcd.revoke(lease_id)
    return etcd.campaign(0, "n/2", etcd.grant_lease(60).id)


def last_step_for_a_successor(node: OneNode) -> int:
    """Where one would go on that reads Kafka and etcd for the first time."""
    log = FrontierLog(node.bus, FRONTIER, 0)
    log.open(TIMEOUT_MS)
    found = node.etcd.leader(0)
    assert found is not None
    told = ProgressCommit(node.bus, node.etcd, found, log, node.clock).obey(ReadProgress())
    assert told.frontier is not None
    return told.frontier.step


def test_a_step_is_delivered_then_in_etcd_then_in_the_topic(node: OneNode) -> None:
    """docs/design/frontier.md, At least once.

    Rules: progress-after-flush
    """
    node.step()
    assert len(node.read("orders")) == 1
    assert in_etcd(node) == in_topic(node)[-1]
    assert [record.frontier.step for record in in_topic(node)] == [0, 1, 2]
    assert not node.kafka.coordinator.holders, "nothing transactional was asked for"


def test_what_kafka_did_not_take_is_not_written_down(node: OneNode) -> None:
    """docs/design/frontier.md, At least once: the flush comes first.

    Rules: progress-after-flush
    """
    before = in_etcd(node)
    node.kafka.refuse("orders", "NOT_ENOUGH_REPLICAS")
    node.step()
    assert in_etcd(node) == before
    node.kafka.refuse("orders", None)
    node.step()
    assert in_etcd(node).frontier.term == before.frontier.term + 1


def test_a_superseded_master_writes_nothing_and_resigns(node: OneNode) -> None:
    """docs/design/frontier.md, At least once: etcd takes a frontier only of who leads.

    Rules: progress-guarded
    """
    before = in_etcd(node)
    successor = usurp(node)
    node.step()
    assert node.failures == {"superseded": 1}
    after = node.etcd.progress(0, successor)
    assert after is not None and decode(after.value) == before
    assert in_topic(node)[-1] == before
    with pytest.raises(SupersededError):
        node.lead()


def test_a_write_whose_answer_is_lost_is_read_again(node: OneNode) -> None:
    """docs/design/frontier.md, At least once: delivered once if it was applied, twice if not.

    Rules: progress-follows
    """
    for outcome, arrivals in ((Outcome.APPLIED, 1), (Outcome.NOT_APPLIED, 3)):
        node.etcd.fail_next(outcome)
        node.step()
        node.step()
        assert len(node.read("orders")) == arrivals
        node.send("orders")
        node.ingest()
    assert node.failures == {"coordination": 2}


def test_a_write_that_is_carried_out_late_changes_nothing(node: OneNode) -> None:
    """docs/design/frontier.md, At least once: the leader is the same, the revision is not.

    Rules: progress-follows
    """
    node.etcd.fail_next(Outcome.LATE)
    node.step()
    node.step()
    before = in_etcd(node)
    node.etcd._etcd.apply_late()
    assert in_etcd(node) == before


def test_a_takeover_goes_on_from_etcd_where_the_topic_lacks_a_step(node: OneNode) -> None:
    """docs/design/frontier.md, At least once: etcd decides.

    Rules: progress-topic-behind
    """
    node.step()
    log = node.kafka.log(FRONTIER, 0)
    log.truncate(log.end_offset - 1)
    assert last_step_for_a_successor(node) == in_etcd(node).frontier.step == 2


def test_where_etcd_lost_the_progress_the_topic_says_where_to_go_on(node: OneNode) -> None:
    """docs/design/frontier.md, At least once: what stands there was in etcd once."""
    node.step()
    del node.etcd._etcd._keys[progress_key("c", 0)]
    assert last_step_for_a_successor(node) == 2
    node.failures.clear()
    node.grant.leadership = None
    node.lead()
    assert in_etcd(node).frontier == begin_term(in_topic(node)[-2].frontier)


def test_a_progress_of_another_format_stops_the_takeover(node: OneNode) -> None:
    node.etcd._etcd.put(progress_key("c", 0), '{"format": 9}', None)
    with pytest.raises(FrontierError, match="the progress in etcd: unknown frontier format 9"):
        node.lead()


def test_the_progress_of_an_older_cluster_of_that_name_stops_the_takeover(node: OneNode) -> None:
    """docs/operations.md, "A lost frontier": its topics were deleted, etcd has it still."""
    mine = in_etcd(node)
    old = replace(mine.settings, frontier=replace(mine.settings.frontier, topic_id="gone"))
    record = replace(mine, frontier=stand_still(mine.frontier), settings=old)
    node.etcd._etcd.put(progress_key("c", 0), encode(record).decode(), None)
    with pytest.raises(FrontierError, match="was deleted and made again"):
        node.lead()
    assert not node.read("orders")


def test_a_superseded_masters_last_record_is_overlooked_by_readers(node: OneNode) -> None:
    """docs/design/frontier.md, At least once: it was in etcd, and newer ones came before it.

    Rules: progress-topic-behind
    """
    mine = in_topic(node)[-1]
    newer = replace(mine, frontier=stand_still(begin_term(mine.frontier)), owner="n/2")
    late = replace(mine, frontier=stand_still(mine.frontier))
    for record in (newer, late, newer):
        node.kafka.append(FRONTIER, 0, record_key(0), encode(record), [])
    seen = node._frontiers.poll(0)
    assert [each.record for each in seen] == [mine, newer]
    assert node._frontiers.newest == seen[-1]
    node.clock.now_ms += 1_000
    node.step()
    assert node.failures == {"higher-term": 1}


@pytest.mark.parametrize(
    ("told", "starts"), [("either", True), (AT_LEAST_ONCE, True), ("x", False)]
)
def test_a_node_that_is_told_another_guarantee_does_not_start(
    node: OneNode, told: str, starts: bool
) -> None:
    """docs/operations.md, "When a node refuses to start"."""
    config = NodeConfig.model_construct(guarantee="exactly-once" if told == "x" else told)
    if starts:
        check_guarantee(config, node.settings)
        return
    with pytest.raises(ConfigError, match="was made for 'at-least-once'") as raised:
        check_guarantee(config, node.settings)
    assert "delayd topics create --guarantee exactly-once" in raised.value.remedy


def test_an_audit_of_such_a_cluster_is_refused(node: OneNode) -> None:
    """docs/guarantees.md, "At least once"."""
    with pytest.raises(AuditError, match="an audit proves that nothing was doubled"):
        refuse_at_least_once(node.settings)
    refuse_at_least_once(replace(node.settings, guarantee=EXACTLY_ONCE))


def test_a_message_that_two_masters_put_back_goes_on_once(node: OneNode) -> None:
    """docs/design/frontier.md, At least once: each had its target for gone.

    Rules: repeat-ignored
    """
    node.send("nowhere", id="one")
    node.ingest()
    node.etcd.fail_next(Outcome.NOT_APPLIED)
    node.step()
    node.step()
    back = [r for r in node.read("delayd-buffer") if "delayd-continues" in dict(r.headers)]
    assert len(back) == 2
    node.ingest()
    for _ in range(4):
        node.clock.now_ms += 30_000
        node.step()
        node.ingest()
    back = [r for r in node.read("delayd-buffer") if "delayd-continues" in dict(r.headers)]
    assert [dict(r.headers)["delayd-attempt"] for r in back] == [b"1", b"1", b"2"]
    assert len(node.read("delayd-dead")) == 1


def test_a_stale_read_of_the_topic_counts_for_nothing_when_etcd_has_lost_its_data(
    node: OneNode,
) -> None:
    """docs/design/frontier.md, Stale reads: then the topic alone says where to go on.

    Rules: stale-read
    """
    node.kafka.isolate_leader(FRONTIER, 0)
    node.stop_leading()
    node.step()
    node.step()
    last = in_topic(node)[-1].frontier
    node.stop_leading()
    node.etcd, node.grant.leadership = MemoryCoordination(MemoryEtcd(node.clock), "c"), None
    with pytest.raises(StaleReadError):
        node.lead()
    node.stop_leading()
    node.delivery_context().frontier_log.renew()
    node.lead()
    node.step()
    assert in_etcd(node).frontier.term == last.term + 1
    assert len(node.read("orders")) == 1
