"""What `delayd plan` works out: by what was measured, by formats, by search."""

from itertools import product

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from delayd.bench.load import USER_HEADERS, VALUE_BYTES
from delayd.bus import Headers
from delayd.commands.plan import figures as known
from delayd.commands.plan.figures import DAY_S, MIB
from delayd.commands.plan.sizing import (
    MASTER_PER_S_PLANNED,
    PROCESSORS_PLANNED,
    Demand,
    Size,
    clusters_for,
    load_of,
    plan,
    processors_of,
    shards_for,
    smallest,
    steps_per_s,
)
from delayd.config.node import NodeConfig
from delayd.node.election.leader_reads import EVERY_MS
from delayd.node.election.membership import MEMBER_TTL_S
from delayd.request.bodies import plain_message_body
from delayd.wheel import Frame, FrameKind
from delayd.wheel.frame import encode
from delayd.wheel.hours import SPARSE_BYTES_MAX
from replication.election_times import ElectionTimes
from replication.settings import SHARDS_MAX

TARGET = "orders.timeouts.europe.v2"
KEY = b"customer"
DUE = b"1790000000000"
PYTHON = Demand(5_000, 1_000_000, 30 * DAY_S, 300, is_native=False)


def demand(rate: float, days: float = 30, id_share: float = 0) -> Demand:
    return Demand(rate, rate * days * DAY_S, days * DAY_S, 300, id_share)


# What was measured


def test_the_model_gives_the_processor_time_of_the_run_that_it_was_made_from() -> None:
    per_message = {
        leads: processors_of(PYTHON, Size(3, 1), leads) / PYTHON.rate_per_s * 1e6
        for leads in (0, 1)
    }
    assert per_message == {
        0: pytest.approx(known.STEADY_FOLLOWER_US.value),
        1: pytest.approx(known.STEADY_MASTER_US.value),
    }


def test_a_hot_second_costs_what_it_did_in_another_run() -> None:
    """docs/performance.md, "hot-second": 18.48 us a message, in steps of 10,000."""
    modelled = known.INGEST_US.value + known.DELIVER_US.value + known.LED_STEP_US.value / 10_000
    assert modelled == pytest.approx(18.48, rel=0.02)


@pytest.mark.parametrize(("partitions", "gb_a_day"), [(4, 2.8), (64, 5.8), (256, 14.7)])
def test_the_frontier_topic_is_as_large_as_it_was_or_a_tenth_larger(
    partitions: int, gb_a_day: float
) -> None:
    """docs/design/frontier.md, "The size of the frontier topic": at 50 steps a second."""
    record = known.FRONTIER_RECORD_BYTES.value + partitions * known.FRONTIER_PARTITION_BYTES.value
    assert gb_a_day * 0.99 <= record * 50 * DAY_S / 1e9 <= gb_a_day * 1.1


def test_an_id_takes_no_more_than_a_rebuild_with_ids_took_beside_its_frames() -> None:
    """docs/design/storage.md, "Measured": 456 MiB, 417 of frames, 217,065 ids, in tables that were
    compressed. "Catalogue": 55 MB of such are 87 MB now."""
    compressed = (456 - 417) * MIB / 217_065
    assert known.ID_BYTES.value == pytest.approx(compressed * 87 / 55, rel=0.01)


# Formats and settings


def user_bytes() -> int:
    return (
        len(KEY) + VALUE_BYTES + sum(len(name) + len(value or b"") for name, value in USER_HEADERS)
    )


def record_bytes(*headers: tuple[str, bytes]) -> int:
    """Of a record in a batch of its own kind, which has 61 bytes beside its records."""
    own: Headers = [*USER_HEADERS, *headers]
    value = b"v" * VALUE_BYTES
    return int(DefaultRecordBatchBuilder.size_of(KEY, value, own)) + 5


def test_a_frame_takes_no_more_than_is_planned_and_four_fifths_of_it_at_least() -> None:
    body = plain_message_body(TARGET, int(DUE), KEY, b"v" * VALUE_BYTES, list(USER_HEADERS), None)
    frame = Frame(int(DUE), 900, 10**9, 63, FrameKind.MESSAGE, int(DUE), body)
    own = len(encode(frame)[0]) - user_bytes()
    assert 0.8 * known.FRAME_BYTES.value <= own <= known.FRAME_BYTES.value


def test_a_wheel_of_a_million_such_messages_is_as_large_as_one_was() -> None:
    """docs/design/storage.md, "Measured": 451 MB, with the key and the headers of benchmarks."""
    assert user_bytes() + known.FRAME_BYTES.value == pytest.approx(451, rel=0.02)


def test_records_take_no_more_than_is_planned_and_four_fifths_of_it_at_least() -> None:
    requested = record_bytes(("delayd-topic", TARGET.encode()), ("delayd-due", DUE)) - user_bytes()
    source = ("delayd-source", b"1023/123456789012")
    delivered = record_bytes(("delayd-due", DUE), ("delayd-fired", DUE), source) - user_bytes()
    assert 0.8 * known.BUFFER_BYTES.value <= requested <= known.BUFFER_BYTES.value
    assert 0.8 * known.DELIVERED_BYTES.value <= delivered <= known.DELIVERED_BYTES.value


def test_the_settings_are_those_of_nodes() -> None:
    fields = NodeConfig.model_fields
    assert known.HELD_S.value == fields["export_hold_s"].default
    assert known.FREE_MIN_BYTES.value == fields["disk_free_min_bytes"].default
    assert known.IDLE_STEPS_PER_S.value == 1_000 / fields["idle_step_interval_ms"].default
    assert known.POLLS_PER_S.value == 1_000 / ElectionTimes().poll_ms
    assert known.READS_PER_S_MAX.value == 1_000 / EVERY_MS
    assert known.DENSE_HOUR_BYTES.value == SPARSE_BYTES_MAX
    assert known.SHARDS_MAX.value == SHARDS_MAX
    assert round(MEMBER_TTL_S / 3, 1) == 3.3, "docs/design/scale.md says so"


# The search


def brute_force(wanted: Demand) -> Size | None:
    for nodes in range(3, 24):
        for shards in range(shards_for(wanted), SHARDS_MAX + 1):
            size = Size(nodes, shards)
            if processors_of(wanted, size, size.leads_max) <= PROCESSORS_PLANNED:
                return size
    return None


@pytest.mark.parametrize(
    ("rate", "is_native"), [*product((1, 20_000, 45_000, 100_000, 140_000), (True, False))]
)
def test_the_smallest_cluster_is_the_one_that_a_search_of_all_finds(
    rate: int, is_native: bool
) -> None:
    wanted = Demand(rate, rate, 1, 300, is_native=is_native)
    assert smallest(wanted) == brute_force(wanted)


def test_each_master_of_a_plan_delivers_no_more_than_is_planned() -> None:
    for rate in (1, 51_000, 52_000, 140_000):
        load = plan(demand(rate, days=1))
        assert rate / load.size.shards <= MASTER_PER_S_PLANNED
        assert load.leader_processors <= PROCESSORS_PLANNED and load.limits == ()


def test_nodes_and_shards_that_are_given_are_taken_and_judged() -> None:
    load = plan(demand(50_000, days=1), nodes=1, shards=1)
    assert (load.size, load.partitions) == (Size(1, 1), 7)
    assert [each.name for each in load.limits] == ["processor"]
    too_few = plan(demand(100_000, days=1), shards=1)
    assert "master" in [each.name for each in too_few.limits]


def test_partitions_are_a_multiple_of_the_shards() -> None:
    for shards in (1, 3, 32, 100):
        assert load_of(demand(20_000), Size(3, shards)).partitions % shards == 0


def test_a_quiet_shard_takes_no_more_steps_than_it_has_messages() -> None:
    assert steps_per_s(demand(32), 32) == 1
    assert steps_per_s(demand(0.1), 1) == known.IDLE_STEPS_PER_S.value
    assert steps_per_s(demand(1e6), 1) == known.STEPS_PER_S.value


# Sizes


def test_the_disk_holds_what_is_pending_what_is_kept_and_the_largest_hour_twice() -> None:
    disk = load_of(demand(1_000, days=1), Size(3, 1)).disk
    assert disk.pending == 86_400_000 * 400
    assert (disk.held, disk.hour) == (1_000 * 900 * 400, 1_000 * 3_600 * 400)
    assert (disk.ids, disk.export) == (0, 86_400_000 * 100)
    used = disk.pending + disk.held + disk.hour + disk.export + 640 * MIB
    assert disk.volume == pytest.approx(used / 0.8)


def test_an_hour_is_no_more_than_what_is_pending() -> None:
    disk = load_of(Demand(1_000, 60_000, 60, 300), Size(3, 1)).disk
    assert disk.hour == disk.pending == 60_000 * 400


def test_ids_cost_disk_for_a_day_after_they_were_due_and_processor() -> None:
    plain, with_ids = (load_of(demand(1_000, days=1, id_share=s), Size(3, 1)) for s in (0, 0.5))
    assert with_ids.disk.ids == (86_400_000 + 86_400_000) * 0.5 * 300
    more = with_ids.follower_processors - plain.follower_processors
    assert more == pytest.approx(1_000 * 0.5 * (9.9 - 1.82) / 1e6)


def test_the_buffer_keeps_the_longest_delay_and_a_day_three_times() -> None:
    assert load_of(demand(1_000, days=30), Size(3, 1)).topics.buffer == (
        1_000 * 385 * 31 * DAY_S * 3
    )
    assert load_of(demand(1_000, days=0.1), Size(3, 1)).topics.buffer == (
        1_000 * 385 * 2 * DAY_S * 3
    )


def test_more_nodes_take_no_disk_off_each_other_unless_only_some_store_a_message() -> None:
    wanted = demand(1_000)
    three, twelve = load_of(wanted, Size(3, 12)), load_of(wanted, Size(12, 12))
    assert three.disk == twelve.disk
    placed = load_of(wanted, Size(12, 12, copies=3))
    assert placed.disk.pending == three.disk.pending / 4
    assert placed.network.node_reads == three.network.node_reads / 4
    assert twelve.network.brokers_send > placed.network.brokers_send


def test_the_brokers_send_each_request_to_each_node_and_all_to_two_replicas() -> None:
    network = load_of(demand(1_000), Size(3, 1)).network
    assert network.brokers_send == 1_000 * (385 * 3 + (385 + 410) * 2)


# Limits


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (demand(1e6, days=0.01), ["processor"]),
        (demand(38_580), ["disk"]),
        (Demand(140_000, 140_000, 3_000 * DAY_S, 300), ["partitions"]),
        (Demand(1, 1_000, DAY_S, 2_000_000), ["request"]),
        (demand(100), []),
    ],
)
def test_a_demand_that_does_not_fit_breaks_the_limit_that_it_breaks(
    wanted: Demand, names: list[str]
) -> None:
    assert [each.name for each in plan(wanted).limits] == names


def test_limits_are_told_in_the_order_in_which_a_growing_load_meets_them() -> None:
    found = plan(demand(1e6)).limits
    exceeded = [each.needed / each.available for each in found]
    assert len(found) >= 2 and exceeded == sorted(exceeded, reverse=True)


def test_several_clusters_carry_what_one_does_not() -> None:
    wanted = demand(38_580)
    count = clusters_for(wanted)
    assert count is not None and count > 1
    for parts, fits in ((count, True), (count - 1, False)):
        part = Demand(
            wanted.rate_per_s / parts, wanted.pending / parts, wanted.longest_delay_s, 300
        )
        assert (plan(part).limits == ()) is fits
    assert clusters_for(Demand(1, 1_000, DAY_S, 2_000_000)) is None


def test_while_a_node_is_away_the_others_lead_its_shards() -> None:
    leads = {(3, 4): 2, (3, 2): 1, (12, 32): 3, (1, 5): 5}
    assert {size: Size(*size).leads_max for size in leads} == leads
