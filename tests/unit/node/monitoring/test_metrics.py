"""`GET /metrics`: one list of families, what each shows, and the page that documents them.

The text is read by the parser of prometheus-client, another implementation than its writer.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from generated_pages import check_blocks
from httpx import ASGITransport, AsyncClient
from manual_clock import START_MS
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from delayd import __version__
from delayd.node.cancel_on.bridge import Figures
from delayd.node.delivery.counters import LATENESS_BOUNDS_MS, OTHER, TOPICS_MAX, StepCounters
from delayd.node.monitoring.http import build_app
from delayd.node.monitoring.metric_families import FAMILIES
from delayd.node.monitoring.metric_family import Family, Kind
from delayd.node.monitoring.metrics import PROCESS_METRICS, Exposition
from delayd.node.replica.room import RoomState
from delayd.request import Reason, Verdict
from replication.election_facts import ResignReason, State
from replication.quotas import Quota

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "reference" / "metrics.md"
OUTSIDE = re.compile(r"\b(?:delayd|process)_[a-z_]+\b")


def tally_of_a_master() -> StepCounters:
    """Two steps that were committed, one that failed."""
    counters = StepCounters()
    counters.drift_ms = -12
    counters.failed = 1
    counters.committed(
        took_ms=4,
        messages={"delivered": 3, "retried": 1, "killed": 2},
        verdicts={"cancelled": 2},
        letters={},
    )
    counters.committed(took_ms=7, messages={}, verdicts={"dead": 1}, letters={"dead": 1})
    counters.delivered({"orders": [START_MS - 3, START_MS - 30, START_MS - 4_000_000]}, START_MS)
    counters.smoothed({"orders": [START_MS - 1_200, START_MS - 2_000]}, START_MS)
    return counters


FIGURES: dict[str, Any] = {
    "config.node": "node-1",
    "config.cluster": "c",
    "config.driver": "confluent",
    "role": "master",
    "control.master_name": "node-1",
    "control.state": State.MASTER,
    "control.etcd_failures": 5,
    "control.etcd_problem": None,
    "control.won_count": 2,
    "control.found_dead_count": 1,
    "control.handed_over_count": 4,
    "control.ended": {"lease-lost": 1},
    "control.lease_margin_ms": 1_500,
    "frontier.term": 3,
    "frontier.step": 70,
    "unready": lambda: None,
    "kafka_problem": None,
    "kafka_health.warnings": (),
    "delivery_lag_ms": lambda: 250,
    "delivery.failing_targets": range(6),
    "delivery.led": (0, 2),
    "shards": 3,
    "shard_lags_ms": lambda: [250, 90_000, 0],
    "delivery.spared_partitions": range(4),
    "delivery.frontier_strays": 2,
    "delivery.smoothing_ms": {"orders": 1_500, "mails": 0},
    "ingestion.rejects": {"bad-due": 4},
    "ingest_watch.unread": (0, 17, None),
    "ingest_watch.problem": None,
    "ingest_watch.held_ms": lambda: {1: 90_000},
    "ingestion.delay_ms": 35,
    "log_ahead_ms": lambda: 0,
    "replica.ingested_count": 1_000,
    "replica.wheel.counts.total": 900,
    "replica.wheel.stats": lambda: SimpleNamespace(slots=11, frames=950, bytes=123_456),
    "replica.room.free_bytes": 10**12,
    "replica.room.limit_bytes": 2**28,
    "replica.room.state": RoomState.SHORT,
    "cancel_bridge.figures": {"payments": Figures(cancels=3, unusable=1, lag=2)},
    "comparisons.comparer.view.differs": 4,
    "comparisons.comparer.view.counts": {"confirmed": 8, "passed": 9},
    "comparisons.repairer.is_under_way": False,
    "comparisons.repairer.has_failed": True,
    "comparisons.repairer.counts": {"repaired": 3, "failed": 2},
    "paused_s": lambda: {"orders": 90.5},
    "quotas": lambda: {"orders": Quota(50, 40, 7, 1, 1)},
    "loop_ages_ms": lambda: {"ingest": 50, "delivery": 1_250},
    "checkpoint_age_ms": lambda: 700,
}
"""What a master shows in the middle of its work, by its place in a `NodeView`."""


def master(changed: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Such a master."""
    node = SimpleNamespace()
    figures = {**FIGURES, "delivery.counters": tally_of_a_master(), **changed}
    for place, value in figures.items():
        *parts, last = place.split(".")
        at = node
        for part in parts:
            at = at.__dict__.setdefault(part, SimpleNamespace())
        setattr(at, last, value)
    return node


def parsed(text: bytes) -> list[Sample]:
    """Every sample; AssertionError if a family comes twice, or a sample of it does."""
    families = list(text_string_to_metric_families(text.decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    samples = [sample for family in families for sample in family.samples]
    places = [(sample.name, *sorted(sample.labels.items())) for sample in samples]
    assert len(places) == len(set(places))
    return samples


def shown(of: Any) -> dict[str, dict[tuple[str, ...], float]]:
    """By metric and values of its labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for sample in parsed(Exposition(of).page()):
        found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def exposed(text: bytes) -> dict[str, tuple[str, str]]:
    """By name, as the lines `HELP` and `TYPE` have it: kind and meaning, without samples too."""
    helped = dict(re.findall(r"^# HELP (\S+) (.*)$", text.decode(), re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (\S+) (.*)$", text.decode(), re.MULTILINE))
    assert helped.keys() == kinds.keys()
    return {name: (kinds[name], helped[name]) for name in kinds}


# --- The list and its page


def lines_of_table() -> Iterator[str]:
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        yield f"| `{family.name}` | {family.kind.value} | {labels} | {family.meaning} |"
    for name, (kind, meaning) in PROCESS_METRICS.items():
        yield f"| `{name}` | {kind.value} |  | {meaning} |"


def test_the_table_of_the_page_is_the_list_of_families(request: pytest.FixtureRequest) -> None:
    """With `--rewrite` it is written."""
    table = ["", "| metric | kind | labels | means |", "|---|---|---|---|", *lines_of_table()]
    assert not [line for line in table if line.count("|") not in (0, 5)], "it would begin a cell"
    check_blocks(PAGE, {"metrics": "\n".join([*table, "", ""])}, request)


@pytest.mark.parametrize("is_master", [True, False])
def test_a_node_exposes_exactly_the_families_of_the_page(is_master: bool) -> None:
    of = master() if is_master else follower()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    found = exposed(Exposition(of).page())
    assert {name: kind for name, (kind, _) in found.items()} == dict(rows)
    assert len(rows) == len(dict(rows)) > 30


def test_each_metric_that_another_page_names_is_exposed() -> None:
    known = {family.name for family in FAMILIES} | set(PROCESS_METRICS)
    known |= {f"{f.name}_{end}" for f in FAMILIES if f.kind is Kind.HISTOGRAM for end in ENDS}
    for path in (ROOT / "docs").rglob("*.md"):
        text = re.sub(
            r"delayd_(audit_\w+|due|outbox|connect)", "", path.read_text(encoding="utf-8")
        )
        assert set(OUTSIDE.findall(text)) <= known, path


ENDS = ("bucket", "count", "sum")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_names_follow_the_conventions_of_prometheus(family: Family) -> None:
    assert re.fullmatch(r"delayd_[a-z]+(_[a-z]+)*", family.name)
    assert family.name.endswith("_total") == (family.kind is Kind.COUNTER)
    if family.kind is Kind.HISTOGRAM:
        assert family.name.endswith("_seconds")
    assert not re.search(r"_(ms|millis|kb|mb|minutes|hours)(_|$)", family.name)
    assert family.meaning.endswith(".")


def test_each_figure_of_a_node_is_shown_by_some_metric() -> None:
    """What a change of it changes on the page."""
    before = shown(master())
    changes: dict[str, Any] = {
        "delivery.counters": StepCounters(),
        "control.ended": {"shutdown": 9},
        "control.state": State.FOLLOWER,
        "ingestion.rejects": {"bad-due": 5},
        "cancel_bridge.figures": {},
        "comparisons.comparer.view.counts": {"transient": 1},
        "comparisons.repairer.is_under_way": True,
        "comparisons.repairer.has_failed": False,
        "comparisons.repairer.counts": {"repaired": 4},
        "ingest_watch.unread": (1, 1, 1),
        "ingest_watch.problem": "deaf",
        "ingest_watch.held_ms": lambda: {1: 91_000},
        "delivery.smoothing_ms": {"orders": 5},
        "delivery.failing_targets": (),
        "delivery.led": (),
        "delivery.spared_partitions": (),
        "shard_lags_ms": lambda: [251, 90_000, 0],
        "paused_s": dict,
        "quotas": dict,
        "loop_ages_ms": lambda: {"ingest": 1, "delivery": 2},
        "unready": lambda: "why",
        "kafka_problem": "away",
        "kafka_health.warnings": ("why",),
        "replica.wheel.stats": lambda: SimpleNamespace(slots=11, frames=950, bytes=7),
        "role": "follower",
        **{name: "another" for name, value in FIGURES.items() if isinstance(value, str)},
    }
    for name, value in FIGURES.items():
        changed = changes.get(name, (lambda: 77) if callable(value) else 77)
        assert shown(master({name: changed})) != before, name


# --- Values


def test_a_master_shows_its_figures_in_seconds_and_bytes() -> None:
    found = shown(master())
    assert {name: found[name][()] for name in found if list(found[name]) == [()]}.items() >= {
        "delayd_ready": 1,
        "delayd_kafka_up": 1,
        "delayd_topic_warnings": 0,
        "delayd_etcd_up": 1,
        "delayd_etcd_failures_total": 5,
        "delayd_frontier_strays_total": 2,
        "delayd_ingest_delay_seconds": 0.035,
        "delayd_ingested_records_total": 1_000,
        "delayd_failing_targets": 6,
        "delayd_spared_partitions": 4,
        "delayd_leaderships_won_total": 2,
        "delayd_term": 3,
        "delayd_frontier_step": 70,
        "delayd_lease_margin_seconds": 1.5,
        "delayd_clock_drift_seconds": -0.012,
        "delayd_log_time_ahead_seconds": 0,
        "delayd_pending_messages": 900,
        "delayd_wheel_slots": 11,
        "delayd_wheel_frames": 950,
        "delayd_wheel_bytes": 123_456,
        "delayd_checkpoint_age_seconds": 0.7,
        "delayd_disk_free_bytes": 10**12,
        "delayd_disk_free_min_bytes": 2**28,
        "delayd_disk_short": 1,
        "delayd_step_seconds_count": 2,
        "delayd_step_seconds_sum": 0.011,
    }.items()
    assert found["delayd_role"] == {("master",): 1, ("follower",): 0}
    assert found["delayd_leader_info"] == {("node-1",): 1}
    assert found["delayd_election_state"][("master",)] == 1
    assert sum(found["delayd_election_state"].values()) == 1
    assert found["delayd_delivery_lag_seconds"] == {("master",): 0.25}
    assert found["delayd_ingest_lag_offsets"] == {("0",): 0, ("1",): 17}
    assert found["delayd_buffer_held_seconds"] == {("0",): 0, ("1",): 90}
    assert found["delayd_loop_age_seconds"] == {("ingest",): 0.05, ("delivery",): 1.25}
    assert found["delayd_steps_total"] == {("committed",): 2, ("failed",): 1}
    [build] = [s for s in parsed(Exposition(master()).page()) if s.name == "delayd_build_info"]
    assert (build.value, build.labels["version"], build.labels["node"]) == (
        1,
        __version__,
        "node-1",
    )


def test_a_counter_shows_its_whole_closed_set_with_zeros() -> None:
    found = shown(master())
    assert found["delayd_verdicts_total"] == {
        (verdict.slug,): {"cancelled": 2, "dead": 1}.get(verdict.slug, 0) for verdict in Verdict
    }
    assert found["delayd_rejects_total"] == {
        (reason.slug,): 4 if reason.slug == "bad-due" else 0 for reason in Reason
    }
    assert found["delayd_dead_letters_total"] == {
        (reason.slug,): 1 if reason.slug == "dead" else 0 for reason in Reason
    }
    assert found["delayd_leaderships_ended_total"] == {
        (reason.value,): 1 if reason is ResignReason.LEASE_LOST else 0 for reason in ResignReason
    }
    assert found["delayd_step_messages_total"] == {
        ("delivered",): 3,
        ("retried",): 1,
        ("deferred",): 0,
        ("smoothed",): 0,
        ("held",): 0,
        ("expired",): 0,
        ("dead",): 0,
        ("killed",): 2,
        ("resolved",): 0,
    }


def test_the_buckets_of_a_histogram_are_cumulative_and_end_with_its_count() -> None:
    samples = [s for s in parsed(Exposition(master()).page()) if "lateness" in s.name]
    buckets = {
        float(sample.labels["le"]): sample.value
        for sample in samples
        if sample.name == "delayd_lateness_seconds_bucket"
    }
    assert list(buckets) == [bound / 1000 for bound in LATENESS_BOUNDS_MS] + [float("inf")]
    assert [buckets[le] for le in (0.005, 0.01, 0.025, 0.05, 3_600, float("inf"))] == [
        *(1, 1, 1, 2, 2, 3),
    ]
    rest = {s.name: (s.labels, s.value) for s in samples if not s.name.endswith("_bucket")}
    assert rest == {
        "delayd_lateness_seconds_count": ({"topic": "orders"}, 3),
        "delayd_lateness_seconds_sum": ({"topic": "orders"}, 4_000.033),
        "delayd_smoothing_lateness_seconds_count": ({"topic": "orders"}, 2),
        "delayd_smoothing_lateness_seconds_sum": ({"topic": "orders"}, 3.2),
    }


def test_a_topic_with_a_rate_shows_how_late_it_is_now() -> None:
    delays = shown(master())["delayd_smoothing_delay_seconds"]
    assert delays == {("orders",): 1.5, ("mails",): 0}


def follower() -> Any:
    """A node that was never master, before anything happened."""
    return master(
        {
            "role": "follower",
            "control.master_name": None,
            "control.state": State.FOLLOWER,
            "control.lease_margin_ms": None,
            "ingestion.delay_ms": None,
            "ingest_watch.unread": (None, None, None),
            "replica.room.free_bytes": None,
            "delivery.counters": StepCounters(),
            "delivery.smoothing_ms": {},
        }
    )


def test_what_is_not_known_has_no_sample() -> None:
    found = shown(follower())
    for name in (
        "delayd_lease_margin_seconds",
        "delayd_clock_drift_seconds",
        "delayd_ingest_delay_seconds",
        "delayd_ingest_lag_offsets",
        "delayd_buffer_held_seconds",
        "delayd_disk_free_bytes",
        "delayd_lateness_seconds_count",
    ):
        assert name not in found
    assert found["delayd_role"] == {("master",): 0, ("follower",): 1}
    assert found["delayd_leader_info"] == {("",): 1}
    assert found["delayd_delivery_lag_seconds"] == {("follower",): 0.25}
    assert found["delayd_step_seconds_count"] == {(): 0}


def test_however_many_targets_there_are_the_page_is_bounded() -> None:
    counters = StepCounters()
    for number in range(10 * TOPICS_MAX):
        counters.delivered({f"topic-{number}": [START_MS]}, START_MS)
    node = master({"delivery.counters": counters})
    text = Exposition(node).page()
    counts = shown(node)["delayd_lateness_seconds_count"]
    assert len(counts) == TOPICS_MAX + 1
    assert counts[(OTHER,)] == 9 * TOPICS_MAX and sum(counts.values()) == 10 * TOPICS_MAX
    assert text.count(b"\n") < 2_500


def test_hostile_names_are_escaped() -> None:
    name = 'a"b\\c\nd'
    assert shown(master({"control.master_name": name}))["delayd_leader_info"] == {(name,): 1}


# --- The route


async def ask() -> tuple[int, str, bytes]:
    app = build_app(master())
    async with AsyncClient(transport=ASGITransport(app), base_url="http://node") as client:
        answer = await client.get("/metrics")
        return answer.status_code, answer.headers["content-type"], answer.content


def test_the_route_answers_in_the_text_format_without_a_token() -> None:
    import asyncio

    status, kind, body = asyncio.run(ask())
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert exposed(body).keys() == exposed(Exposition(master()).page()).keys()
    assert len(parsed(body)) > 100
