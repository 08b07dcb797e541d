"""Imports point down, data points up, and each outside thing has one door (docs/architecture.md).

A new module is listed in RANKS when it is made: a folder stands for all that is in it, unless a
longer name is listed too.
"""

from pathlib import Path

import pytest
from imports import (
    clock_calls,
    cycles,
    entry_of,
    graph_of,
    intruders,
    modules_under,
    unlisted,
    unused_doors,
    upward,
)

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("replication", "delayd")

RANKS: tuple[tuple[str, ...], ...] = (
    # What everyone may know: the protocol, pure; and the version.
    ("replication", "delayd"),
    # Errors, time, log lines, threads.
    (
        "delayd.errors",
        "delayd.clock",
        "delayd.collector",
        "delayd.logs",
        "delayd.temporary",
        "delayd.threads",
    ),
    ("delayd.java",),
    # Ports.
    ("delayd.bus", "delayd.coordination"),
    # What is said on the wire and in the configuration.
    ("delayd.request", "delayd.cluster_key", "delayd.security"),
    ("delayd.config",),
    # Adapters, which know a port and an outside thing, and each other not at all.
    (
        "delayd.bus.confluent",
        "delayd.bus.kafka_python",
        "delayd.bus.memory",
        "delayd.coordination.etcd",
        "delayd.coordination.memory",
        "delayd.wheel",
        "delayd.client",
    ),
    # What is read from topics, and how large steps are.
    ("delayd.failing_targets", "delayd.suspects", "delayd.tally"),
    ("delayd.measures", "delayd.plain"),
    ("delayd.frontier_log", "delayd.targets", "delayd.pace"),
    ("delayd.marks", "delayd.retention", "delayd.commits", "delayd.opening"),
    ("delayd.ingest_batch", "delayd.plain_ingest", "delayd.planning"),
    ("delayd.topics", "delayd.replica"),
    # What a node does.
    ("delayd.step",),
    ("delayd.mastership", "delayd.ingestion", "delayd.export", "delayd.starting"),
    ("delayd.delivery", "delayd.kafka_watch"),
    ("delayd.control", "delayd.picture", "delayd.status", "delayd.lookup", "delayd.admin"),
    # Where adapters meet.
    ("delayd.node",),
    ("delayd.options",),
    # Around it: a cluster of processes, measurements, commands.
    ("delayd.audit",),
    ("delayd.dev",),
    ("delayd.bench",),
    ("delayd.messages", "delayd.dead", "delayd.examine", "delayd.audit.commands"),
    ("delayd.cli",),
)
RANK_OF = {name: rank for rank, names in enumerate(RANKS) for name in names}

MAY_IMPORT_UP = {
    "delayd -> delayd.client": "`delayd.Client` is loaded when it is first used",
}

DOORS: dict[str, tuple[str, ...]] = {
    # The client runs in its user's process and waits there, by that process's clock.
    "time": ("delayd.clock", "delayd.client"),
    # The bench measures against the bare driver. The audit reads in Spark's processes, ranges at a
    # time, and shares no code with what it judges.
    "confluent_kafka": (
        "delayd.bus.confluent",
        "delayd.client.confluent",
        "delayd.audit.reading",
        "delayd.bench",
    ),
    # The witness sees Kafka through another driver than what it judges.
    "kafka": ("delayd.bus.kafka_python.library", "delayd.client.kafka_python", "delayd.dev.watch"),
    "etcd3gw": ("delayd.coordination.etcd",),
    "requests": ("delayd.coordination.etcd",),
    "plyvel": ("delayd.wheel.catalogue",),
    "msgpack": (
        "delayd.wheel.catalogue",
        "delayd.wheel.counts",
        "delayd.wheel.frame",
        "delayd.wheel.id_memory",
        "delayd.wheel.kills",
    ),
    "crc32c": ("delayd.wheel.decoding", "delayd.wheel.frame", "delayd.wheel.leveldb_log"),
    "ctypes": ("delayd.wheel.disk",),
    "fastapi": ("delayd.admin",),
    "uvicorn": ("delayd.admin",),
    "prometheus_client": ("delayd.admin.metrics",),
    "pydantic": ("delayd.config", "delayd.security"),
    "pydantic_settings": ("delayd.config", "delayd.security"),
    # A node writes exports in a process of their own.
    "subprocess": ("delayd.dev", "delayd.java", "delayd.export.child", "delayd.bench"),
    # Adapters meet in node.py; the local cluster starts Kafka before there is a node.
    "delayd.bus.confluent": (
        # In a process of Spark's, to which no bus can be handed.
        "delayd.audit.reading.stream",
        "delayd.bus.confluent",
        "delayd.node",
        "delayd.dev.demo",
        "delayd.dev.kafka",
        "delayd.dev.startup",
    ),
    "delayd.bus.kafka_python": ("delayd.bus.kafka_python", "delayd.node"),
    "delayd.coordination.etcd": ("delayd.node",),
    "delayd.admin": ("delayd.admin", "delayd.node"),
}

TWINS = ("delayd.bus.memory", "delayd.coordination.memory")
"""For tests only."""

PURE = frozenset(
    {
        "bisect",
        "collections",
        "collections.abc",
        "dataclasses",
        "enum",
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

SOURCES = modules_under(ROOT, PACKAGES)
GRAPH = graph_of(SOURCES)


# --- The tree


def test_every_module_has_a_rank() -> None:
    assert unlisted(GRAPH, RANK_OF) == [] and len(GRAPH) > 50


def test_every_listed_module_exists() -> None:
    assert [name for name in RANK_OF if name not in GRAPH] == []


def test_new_modules_of_the_package_itself_are_not_covered_by_its_name() -> None:
    covered = [m for m in GRAPH if m != "delayd" and entry_of(m, RANK_OF) == "delayd"]
    assert covered == [], "list them in RANKS"


def test_imports_point_down() -> None:
    excused = tuple(MAY_IMPORT_UP)
    wrong = [w for w in upward(GRAPH, RANK_OF) if _without_ranks(w) not in excused]
    assert wrong == []


def test_no_module_imports_itself_in_the_end() -> None:
    without_excused = {
        module: frozenset(o for o in imported if f"{module} -> {o}" not in MAY_IMPORT_UP)
        for module, imported in GRAPH.items()
    }
    assert cycles(without_excused) == []


@pytest.mark.parametrize("thing", sorted(DOORS))
def test_each_outside_thing_has_one_door(thing: str) -> None:
    assert intruders(GRAPH, thing, DOORS[thing]) == []
    assert unused_doors(GRAPH, thing, DOORS[thing]) == []


@pytest.mark.parametrize("twin", TWINS)
def test_twins_are_for_tests(twin: str) -> None:
    assert intruders(GRAPH, twin, [twin]) == []


def test_the_judge_of_loads_knows_nothing_of_what_it_judges() -> None:
    graph = graph_of(modules_under(ROOT, ("chaos",)))
    # What starts clusters, and nothing that judges.
    doors = ["chaos.docker", "chaos.processes", "chaos.__main__"]
    assert len(graph) > 3 and intruders(graph, "delayd", doors) == []
    assert unused_doors(graph, "delayd", doors) == []
    judging = ("judge", "promises", "order", "plain_check", "evidence", "recovery", "verdict")
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
    read = {m: calls for m, source in SOURCES.items() if (calls := clock_calls(source))}
    assert read == {}


def _without_ranks(line: str) -> str:
    module, _, _, _, other, *_ = line.split(" ")
    return f"{module} -> {other}"


# --- That all this can fail, on a small tree

FAKE = {
    "low": "import os\n",
    "middle": "from low import thing\nimport time\n",
    "middle.part": "import middle.other\n",
    "middle.other": "",
    "high": "import middle.part\nimport socket.more\n",
}
FAKE_RANKS = {"low": 0, "middle": 1, "high": 2}


def test_a_good_tree_passes() -> None:
    graph = graph_of(FAKE)
    assert unlisted(graph, FAKE_RANKS) == upward(graph, FAKE_RANKS) == cycles(graph) == []
    assert intruders(graph, "time", ["middle"]) == unused_doors(graph, "time", ["middle"]) == []


def test_a_module_that_is_not_listed_is_found() -> None:
    assert unlisted(graph_of({**FAKE, "stray": "", "lower": ""}), FAKE_RANKS) == ["lower", "stray"]


@pytest.mark.parametrize(
    "source",
    [
        "import high\n",
        "from high import thing\n",
        "def later():\n    import high\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from high import thing\n",
    ],
)
def test_an_import_that_points_up_is_found_wherever_it_stands(source: str) -> None:
    assert upward(graph_of({**FAKE, "low": source}), FAKE_RANKS) == [
        "low (rank 0) -> high (rank 2)"
    ]


def test_an_import_of_a_neighbour_of_the_same_rank_is_found() -> None:
    graph = graph_of({**FAKE, "beside": "import high\n"})
    assert upward(graph, {**FAKE_RANKS, "beside": 2}) == ["beside (rank 2) -> high (rank 2)"]


def test_a_part_that_is_listed_has_its_own_rank() -> None:
    ranks = {**FAKE_RANKS, "middle.other": 5}
    assert upward(graph_of(FAKE), ranks) == ["middle.part (rank 1) -> middle.other (rank 5)"]


def test_whoever_goes_past_a_door_is_found() -> None:
    graph = graph_of(FAKE)
    assert intruders(graph, "socket", ["low"]) == ["high -> socket.more"]
    assert intruders(graph, "time", []) == ["middle -> time"]
    assert intruders(graph, "tim", []) == []


def test_a_door_that_nobody_uses_is_found() -> None:
    assert unused_doors(graph_of(FAKE), "time", ["middle", "high"]) == ["high"]


def test_a_cycle_is_found() -> None:
    assert cycles(graph_of({"a": "import b\n", "b": "import c\n", "c": "import a\n"})) != []


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
