"""The command line loads what a command needs, and no more."""

import subprocess
import sys

import pytest
import typer

from delayd.cli import COMMANDS, load_command

NODES = ("delayd.node", "delayd.wheel", "fastapi", "uvicorn", "prometheus_client", "plyvel")
SPARK = ("delayd.audit", "delayd.bench", "delayd.dev", "pyarrow", "pyspark", "numpy")
CLUSTERS = ("etcd3gw", "kafka")
CONNECTING = ("confluent_kafka", "pydantic", "pydantic_settings")

RUN = """
import sys
from delayd.cli import main
sys.argv = ["delayd", *sys.argv[1:]]
try:
    main()
finally:
    print("loaded:", *sys.modules)
"""


def loaded_by(*command: str) -> set[str]:
    """The modules that a new interpreter has loaded at the end of a command."""
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=60, check=False
    )
    before, _, names = done.stdout.rpartition("loaded:")
    assert names, f"{before}{done.stderr}"
    return set(names.split())


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_the_help_of_delayd_loads_no_command(arguments: list[str]) -> None:
    loaded = loaded_by("-c", RUN, *arguments)
    assert "typer" in loaded
    assert loaded.isdisjoint((*NODES, *SPARK, *CLUSTERS, *CONNECTING, "delayd.commands"))


def test_sending_loads_neither_a_node_nor_what_looks_at_clusters() -> None:
    """What is sent is refused, so that no broker is needed."""
    arguments = ("send", "-b", "127.0.0.1:1", "-t", "orders", "--in", "soon", "value")
    loaded = loaded_by("-c", RUN, *arguments)
    assert {"delayd.client.confluent", "confluent_kafka"} <= loaded
    assert loaded.isdisjoint((*NODES, *SPARK, *CLUSTERS))


def test_importing_the_client_loads_no_driver_and_no_event_loop() -> None:
    loaded = loaded_by("-c", "import sys, delayd.client; print('loaded:', *sys.modules)")
    assert "delayd.client.client" in loaded
    assert loaded.isdisjoint((*NODES, *SPARK, *CLUSTERS, *CONNECTING, "typer", "asyncio"))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_delayd_has_the_first_lines_of_each_commands_own(name: str) -> None:
    command = load_command(name)
    assert isinstance(command, typer.core.TyperCommand | typer.core.TyperGroup)
    own = (command.help or "").partition("\n\n")[0].replace("\n", " ")
    assert own == COMMANDS[name].help
