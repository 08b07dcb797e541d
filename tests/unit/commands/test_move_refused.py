"""`delayd move` refuses what it cannot prove, before it writes anything.

Source: docs/design/moving.md.
"""

from pathlib import Path

import pytest
from moves import HOUR_MS, TIMEOUT_MS, Kill, KilledError, Site, fill, site_in
from one_node import CLUSTER_KEY, Maker

from delayd.bus import Ack
from delayd.bus.memory import MemoryBus
from delayd.commands.move import moving, old_cluster
from delayd.errors import MoveError
from delayd.request import RequestLimits, order_record
from replication.holds import Order

WRITTEN = 14
"""The call of a producer before which some messages were moved, and not all."""


@pytest.fixture
def site(tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Three records a step; a transaction that is open is not waited for."""
    monkeypatch.setattr(moving, "STEP_RECORDS", 3)
    monkeypatch.setattr(old_cluster, "SETTLED_MS", 0)
    return site_in(tmp_path, make)


def begun_without_the_old_kafka(site: Site, folder: Path) -> Path:
    """A run that knew the wheel only, and was killed after its first messages; return the wheel."""
    fill(site)
    copy = site.copied(folder)
    with pytest.raises(KilledError):
        site.move(
            folder=copy,
            knows_frontier=False,
            takes_doubles=True,
            kill=Kill(WRITTEN),
        )
    assert site.moved_values()
    return copy


def has_ended(site: Site) -> bool:
    return b'"moved"' in (site.old.read("delayd-frontier")[-1].value or b"")


def test_a_request_behind_an_open_transaction_is_not_left_behind(site: Site) -> None:
    """It is acknowledged, and no wheel takes it in."""
    fill(site)
    due_ms = site.old.clock.now_ms + HOUR_MS
    user = MemoryBus(site.old.kafka).transactional_producer("user")
    user.init_transactions(TIMEOUT_MS)
    user.begin()
    acks: list[Ack] = []
    user.send("delayd-buffer", key=None, value=b"open", partition=0, on_ack=acks.append,
              headers=[("delayd-topic", b"orders"), ("delayd-due", b"%d" % due_ms)])  # fmt: skip
    user.flush(TIMEOUT_MS)
    site.old.send("orders", due_ms, value=b"acknowledged", partition=0)
    site.stop_old()
    for is_dry in (True, False):
        with pytest.raises(MoveError, match="a transaction is open in delayd-buffer/0"):
            site.move(is_dry=is_dry)
    assert site.moved_values() == [] and not has_ended(site)
    user.commit(TIMEOUT_MS)
    with pytest.raises(MoveError, match="2 requests are missing"):
        site.move()
    assert site.moved_values() == []


@pytest.mark.parametrize("is_dry", [True, False])
def test_a_run_that_meets_the_old_kafka_again_sees_that_it_has_gone_on(
    site: Site, tmp_path: Path, is_dry: bool
) -> None:
    copy = begun_without_the_old_kafka(site, tmp_path / "copy")
    before = site.moved_values()
    site.old.clock.now_ms += 2 * HOUR_MS
    for _ in range(4):
        site.old.step()
    with pytest.raises(MoveError, match="the old cluster has gone on since this move began"):
        site.move(folder=copy, is_dry=is_dry)
    assert site.moved_values() == before and not has_ended(site)


def test_it_goes_on_at_least_once_and_ends_the_old_cluster(site: Site, tmp_path: Path) -> None:
    copy = begun_without_the_old_kafka(site, tmp_path / "copy")
    site.old.clock.now_ms += 2 * HOUR_MS
    for _ in range(4):
        site.old.step()
    delivered = len(site.old.read("orders"))
    moved = site.move(folder=copy, takes_doubles=True)
    assert moved.written == moved.plan.pending == len(site.moved_values())
    assert has_ended(site)
    site.old.step()
    assert len(site.old.read("orders")) == delivered


def test_a_run_that_meets_the_old_kafka_again_at_rest_ends_it(site: Site, tmp_path: Path) -> None:
    copy = begun_without_the_old_kafka(site, tmp_path / "copy")
    assert not has_ended(site)
    moved = site.move(folder=copy)
    assert moved.written == moved.plan.pending and has_ended(site)
    site.old.clock.now_ms += 2 * HOUR_MS
    site.old.step()
    assert site.old.failures, "it wakes up"
    assert site.move(folder=copy).written_now == 0, "the record of the end is known again"


def test_it_does_not_go_on_with_a_cluster_that_was_moved_elsewhere(
    site: Site, tmp_path: Path
) -> None:
    copy = begun_without_the_old_kafka(site, tmp_path / "copy")
    with old_cluster.OldCluster(MemoryBus(site.old.kafka), site.old.settings, TIMEOUT_MS) as old:
        old.fence()
        old.last()
        old.end("elsewhere")
    before = site.moved_values()
    with pytest.raises(MoveError, match="was moved already, to elsewhere"):
        site.move(folder=copy)
    assert site.moved_values() == before


@pytest.mark.parametrize("is_dry", [True, False])
def test_nothing_is_moved_again_where_the_progress_is_lost(site: Site, is_dry: bool) -> None:
    fill(site)
    site.stop_old()
    site.move()
    before = site.moved_values()
    site.new.kafka.delete_topic("delayd-moved")
    with pytest.raises(MoveError, match="which says how far, is lost"):
        site.move(is_dry=is_dry)
    assert site.moved_values() == before


def test_nothing_is_moved_again_where_the_progress_was_trimmed(site: Site) -> None:
    fill(site)
    site.stop_old()
    site.move()
    before = site.moved_values()
    log = site.new.kafka.topics["delayd-moved"].partitions[0]
    log.delete_before(1)
    with pytest.raises(MoveError, match="begins at offset"):
        site.move()
    assert site.moved_values() == before


@pytest.mark.parametrize(
    "config",
    [{"cleanup.policy": "compact"}, {"retention.ms": "604800000"}, {"retention.bytes": "1000"}],
)
def test_a_topic_that_does_not_keep_the_progress_is_refused(
    site: Site, config: dict[str, str]
) -> None:
    fill(site)
    site.stop_old()
    kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    site.new.kafka.create_topic("delayd-moved", 1, kept | config)
    [told] = [f"{key}={value}" for key, value in config.items()]
    with pytest.raises(MoveError, match=f"does not keep its records for ever: {told}"):
        site.move()
    assert site.moved_values() == [] and not has_ended(site)


def test_a_cluster_with_a_paused_target_is_not_moved(site: Site) -> None:
    """The new cluster would deliver what waits. Nothing is written, and the old one goes on."""
    old, limits = site.old, RequestLimits.of(site.old.settings, CLUSTER_KEY.encode())
    fill(site)
    now_ms = old.clock.now_ms
    order = order_record(Order("orders", now_ms, now_ms + 60_000, 0), limits)
    old.kafka.append("delayd-buffer", order.partition, None, None, order.headers)
    old.ingest()
    for _ in range(3):
        old.clock.now_ms += 10
        old.step()
        old.ingest()
    site.stop_old()
    with pytest.raises(MoveError, match="paused in the old cluster: orders"):
        site.move()
    assert site.moved_values() == [] and not has_ended(site)
