"""Each benchmark runs on brokers of one's own, finds nothing wrong, and leaves nothing behind.

Three at a time, because mostly they wait. Not here: how large any figure is.
"""

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from nodes import HANGS_S, delayd

from delayd.bench.brokers import Brokers, brokers_at
from delayd.bench.catalogue import ALL, ON_PAIR, measure, sizes_of
from delayd.bench.context import Context
from delayd.bench.figures import Figure
from delayd.bench.goals import GOALS
from delayd.bench.load import Load
from delayd.bench.reading import read_back
from delayd.bench.receipts import Faults
from delayd.cluster.connect import open_bus
from delayd.config.security import Security
from delayd.dev.cluster import LocalCluster
from delayd.dev.kafka import create_topic
from delayd.runtime.clock import SystemClock

pytestmark = [pytest.mark.real, pytest.mark.rehearsal]

SIZES = {"messages": 2000, "rate": 200, "seconds": 2, "pending": 500, "runs": 1}
BESIDE = (
    ("raw", "ingest", "deliver", "handover"),
    ("hot-second", "failover", "window"),
    ("lateness", *ON_PAIR),
)
TIMEOUT_S = 600


@pytest.fixture(scope="module")
def results(
    kafka_and_etcd: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """What each said, by name."""
    folder = tmp_path_factory.mktemp("bench")
    bootstrap = kafka_and_etcd.bootstrap
    before = topics_of(bootstrap)

    def run(names: tuple[str, ...]) -> dict[str, Any]:
        alone = [name for name in names if name not in ON_PAIR]
        said = {name: by_command(name, bootstrap, folder / f"{name}.svg") for name in alone}
        found: dict[str, list[Figure]] = {}
        if on_pair := set(names) - set(alone):
            with brokers_at(bootstrap, Security.none()) as brokers:
                assert measure(on_pair, lambda name: small(name, brokers), found) == {}
        for name, figures in found.items():
            said[name] = {figure.name: figure.to_json() for figure in figures}
        return said

    with ThreadPoolExecutor(len(BESIDE)) as threads:
        found = {name: each for said in threads.map(run, BESIDE) for name, each in said.items()}
    yield {"said": found, "left": topics_of(bootstrap) - before}


def by_command(name: str, bootstrap: str, picture: Path) -> dict[str, Any]:
    """The figures that the command prints."""
    words = [word for key, value in SIZES.items() for word in (f"--{key}", str(value))]
    words += ["--json", "--plot", str(picture), "--bootstrap", bootstrap]
    answer = delayd("bench", name, *words, timeout_s=TIMEOUT_S)
    assert answer.returncode == 0, f"{name}: {answer.stderr[-2000:]}"
    ET.parse(picture)
    said = json.loads(answer.stdout)
    assert said["bench"] == name and said["sizes"][name]["runs"] == 1
    figures: dict[str, Any] = said["figures"]
    return figures


def small(name: str, brokers: Brokers) -> Context:
    return Context(brokers, sizes_of(name, quick=True, chosen=SIZES), lambda _what: None)


def topics_of(bootstrap: str) -> set[str]:
    listed = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=HANGS_S)
    return {name for name in listed.topics if name.startswith("bench-")}


def test_each_benchmark_finds_its_figures_and_nothing_wrong(results: dict[str, Any]) -> None:
    said = results["said"]
    assert set(said) == {*ALL, "window"}
    figures = {slug: figure for each in said.values() for slug, figure in each.items()}
    for name, each in said.items():
        assert any(slug.endswith("-lost") for slug in each), f"{name} does not count what was lost"
    assert set(GOALS) - {"freeze-gap"} <= set(figures)
    for slug, figure in figures.items():
        assert len(figure["runs"]) == 1 and figure["unit"], slug
        if slug.endswith(("-lost", "-doubled", "-early", "-altered")):
            assert figure["runs"] == [0], slug


def test_no_topic_of_a_benchmark_is_left(results: dict[str, Any]) -> None:
    assert results["left"] == set()


def test_a_reader_sees_what_is_lost_doubled_early_and_altered(
    kafka_and_etcd: LocalCluster, tmp_path: Path
) -> None:
    bootstrap, now_ms = kafka_and_etcd.bootstrap, SystemClock().wall_ms()
    load = Load(f"bench-reader-{uuid4().hex[:8]}", 10, now_ms - 1_000, 2)
    ahead = Load(load.target, 10, now_ms + 3_600_000, 2)
    create_topic(open_bus(bootstrap), load.target, partitions=2)
    producer = Producer({"bootstrap.servers": bootstrap})
    values = [load.value(number) for number in range(9)]
    for value in (*values, load.value(3), b"altered", ahead.value(4)):
        producer.produce(load.target, value)
    assert producer.flush(HANGS_S) == 0
    client = {"bootstrap.servers": bootstrap}

    found = read_back(client, load, SystemClock().wall_ms(), wait_ms=3_000)
    assert found.faults() == Faults(lost=1, doubled=1, early=0, altered=2)
    early = read_back(client, ahead, SystemClock().wall_ms(), wait_ms=3_000)
    assert early.faults() == Faults(lost=9, doubled=0, early=1, altered=11)
    admin = AdminClient({**client})
    admin.delete_topics([load.target])[load.target].result()
