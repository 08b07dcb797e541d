"""Each outside thing has one door, the protocol is pure, and the pages show the layers that are.

Which folder may import which is checked by import-linter: the one table of layers is in
pyproject.toml. Here is what it cannot say.
"""

import re
import tomllib
from pathlib import Path

import pytest
from imports import Graph, clock_calls, entry_of, graph_of, intruders, unused_doors

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("replication", "delayd")

DOORS: dict[str, tuple[str, ...]] = {
    # The client runs in its user's process and waits there, by that process's clock.
    "time": ("delayd.runtime.clock", "delayd.runtime.virtual_time", "delayd.client"),
    # The bench measures against the bare driver. The audit reads in Spark's processes, ranges at a
    # time, and shares no code with what it judges.
    "confluent_kafka": (
        "delayd.bus.confluent",
        "delayd.client.confluent",
        "delayd.audit.reading",
        "delayd.bench",
    ),
    # The witness sees Kafka through another driver than what it judges.
    "kafka": (
        "delayd.bus.kafka_python.library",
        "delayd.client.kafka_python.library",
        "delayd.dev.watch",
    ),
    "etcd3gw": ("delayd.coordination.etcd",),
    "requests": ("delayd.coordination.etcd",),
    "plyvel": ("delayd.wheel.catalogue",),
    "msgpack": (
        "delayd.node.comparing.wire",
        "delayd.wheel.catalogue",
        "delayd.wheel.counts",
        "delayd.wheel.frame",
        "delayd.wheel.id_memory",
        "delayd.wheel.kills",
        "delayd.wheel.snapshot",
    ),
    "crc32c": ("delayd.wheel.decoding", "delayd.wheel.frame", "delayd.wheel.leveldb_log"),
    "ctypes": ("delayd.runtime.native", "delayd.wheel.disk"),
    # An extra: only a backup into an object store needs it.
    "fsspec": ("delayd.commands.backup.stores",),
    # Extras: only an import from RabbitMQ or Redis needs them.
    "pika": ("delayd.commands.importing.amqp_server",),
    "redis": ("delayd.commands.importing.redis_server",),
    "fastapi": ("delayd.node.monitoring",),
    "uvicorn": ("delayd.node.monitoring",),
    "prometheus_client": ("delayd.audit.following.metrics", "delayd.node.monitoring.metrics"),
    "pydantic": (
        *("delayd.config", "delayd.dev.parts", "delayd.node.monitoring.api.asked"),
        *("delayd.node.monitoring.api.models", "delayd.node.monitoring.api.pauses"),
        *("delayd.node.monitoring.api.limits", "delayd.node.monitoring.api.audit_models"),
    ),
    "pydantic_settings": ("delayd.config.node", "delayd.config.security"),
    # A node writes exports in a process of their own.
    "subprocess": ("delayd.dev", "delayd.runtime.java", "delayd.node.export.child", "delayd.bench"),
    # Drivers are made in one place; the local cluster starts Kafka before there is a node.
    "delayd.bus.confluent": (
        # In a process of Spark's, to which no bus can be handed.
        "delayd.audit.reading.partition",
        "delayd.audit.reading.stream",
        "delayd.bus.confluent",
        "delayd.client.confluent",
        "delayd.cluster.connect",
        "delayd.dev.demo",
        "delayd.dev.kafka",
        "delayd.dev.startup",
    ),
    "delayd.bus.kafka_python": (
        # It reads what librdkafka cannot.
        "delayd.bus.confluent",
        "delayd.bus.kafka_python",
        "delayd.client.kafka_python",
        "delayd.cluster.connect",
    ),
    "delayd.coordination.etcd": ("delayd.cluster.connect",),
    "delayd.node.monitoring": (
        "delayd.node.fetcher",
        "delayd.node.monitoring",
        "delayd.node.node",
        "delayd.node.surroundings",
    ),
}

TWINS = ("delayd.bus.memory", "delayd.coordination.memory")
"""For tests only."""

PURE = frozenset(
    {
        "bisect",
        "collections",
        "dataclasses",
        "enum",
        "fractions",
        "functools",
        "heapq",
        "itertools",
        "json",
        "math",
        "types",
        "typing",
        "zlib",
    }
)
"""What the protocol may use: nothing that has a clock, a thread, a file or a die."""

GRAPH = graph_of(*PACKAGES)


# --- The tree


def test_the_architecture_page_shows_the_layers_that_are_checked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(c["layers"] for c in settings["contracts"] if c["containers"] == ["delayd"])
    page = (ROOT / "docs" / "architecture.md").read_text()
    shown = [
        [f"delayd.{name}" for name in re.findall(r"`([a-z]+)`", row)]
        for row in re.findall(r"^\| \d \| (.+?) \|", page, re.MULTILINE)
    ]
    checked = [[f"delayd.{name}" for name in re.findall(r"\w+", layer)] for layer in layers]
    assert shown == checked and len(checked) <= 7


def test_the_package_has_few_rooms() -> None:
    entries = {module.split(".")[1] for module in GRAPH if module.startswith("delayd.")}
    assert len(entries | {"__init__"}) <= 17


@pytest.mark.parametrize("thing", sorted(DOORS))
def test_each_outside_thing_has_one_door(thing: str) -> None:
    assert intruders(GRAPH, thing, DOORS[thing]) == []
    assert unused_doors(GRAPH, thing, DOORS[thing]) == []


@pytest.mark.parametrize("twin", TWINS)
def test_twins_are_for_tests(twin: str) -> None:
    """For ours, and for those of programs that use delayd."""
    assert intruders(GRAPH, twin, [twin, "delayd.testing"]) == []


def test_the_judge_of_loads_knows_nothing_of_what_it_judges() -> None:
    graph = graph_of("chaos")
    # What starts clusters and runs their commands, and nothing that judges or counts.
    doors = ["chaos.docker", "chaos.processes", "chaos.rehearsals", "chaos.__main__"]
    assert len(graph) > 3 and intruders(graph, "delayd", doors) == []
    assert unused_doors(graph, "delayd", doors) == []
    judging = {"reference_model", "judge", "acknowledgements", "order", "cross_check", "evidence"}
    judging |= {"recovery", "verdict"}
    for name in judging:
        for backend in ("chaos.docker", "chaos.processes"):
            assert intruders({f"chaos.{name}": graph[f"chaos.{name}"]}, backend, []) == []
    assert intruders(graph, "replication", []) == []


def test_the_protocol_is_pure() -> None:
    """docs/design/frontier.md, Ingest and Step: no clock, no I/O, no randomness of its own."""
    impure = [
        f"{module} -> {other}"
        for module, imported in GRAPH.items()
        if entry_of(module, ["replication"])
        for other in sorted(imported)
        if other not in PURE and entry_of(other, ["replication"]) is None
    ]
    assert impure == []


def test_nobody_reads_the_clock_past_its_door() -> None:
    """docs/design/frontier.md, Now: one clock, which the simulation can replace."""
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(sources) >= len(GRAPH)
    assert [path for path in sources if clock_calls(path.read_text())] == []


# --- That all this can fail, on a small tree

FAKE: Graph = {
    "low": frozenset({"os"}),
    "middle": frozenset({"low", "time"}),
    "middle.part": frozenset({"middle.other"}),
    "middle.other": frozenset(),
    "high": frozenset({"middle.part", "socket.more"}),
}


def test_a_good_tree_passes() -> None:
    assert intruders(FAKE, "time", ["middle"]) == unused_doors(FAKE, "time", ["middle"]) == []


def test_whoever_goes_past_a_door_is_found() -> None:
    assert intruders(FAKE, "socket", ["low"]) == ["high -> socket.more"]
    assert intruders(FAKE, "time", []) == ["middle -> time"]
    assert intruders(FAKE, "tim", []) == []


def test_a_door_that_nobody_uses_is_found() -> None:
    assert unused_doors(FAKE, "time", ["middle", "high"]) == ["high"]


@pytest.mark.parametrize(
    "source",
    [
        "from datetime import datetime, UTC\nx = datetime.now(UTC)\n",
        "import datetime\nx = datetime.datetime.utcnow()\n",
        "from datetime import date\nread = date.today\n",
    ],
)
def test_a_look_at_the_clock_is_found(source: str) -> None:
    assert clock_calls(source)


def test_other_uses_of_datetime_are_no_look_at_the_clock() -> None:
    assert clock_calls("from datetime import datetime\nx = datetime.fromtimestamp(5)\n") == []
