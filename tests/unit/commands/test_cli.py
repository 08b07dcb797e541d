"""The command line loads what a command needs, and no more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from delayd.commands.cli import COMMANDS, load_command, main
from delayd.errors import ExitCode

NODES = ("delayd.node", "delayd.wheel", "fastapi", "uvicorn", "prometheus_client", "plyvel")
SPARK = ("delayd.audit", "delayd.bench", "delayd.dev", "pyarrow", "pyspark", "numpy")
CLUSTERS = ("etcd3gw", "kafka")
CONNECTING = ("confluent_kafka", "pydantic", "pydantic_settings")

RUN = """
import sys
from delayd.commands.cli import main
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
    assert loaded.isdisjoint((*NODES, *SPARK, *CLUSTERS, *CONNECTING))
    commands = {name for name in loaded if name.startswith("delayd.commands.")}
    assert commands == {"delayd.commands.cli"}


def test_the_version_is_told_without_what_parses_and_logs() -> None:
    loaded = loaded_by("-c", RUN, "--version")
    assert loaded.isdisjoint((*NODES, *SPARK, *CLUSTERS, *CONNECTING, "rich", "structlog"))


def test_sending_loads_neither_a_node_nor_what_looks_at_clusters() -> None:
    """The drivers are made as `send` makes them, and nothing is sent: no broker is needed."""
    loaded = loaded_by(
        "-c",
        "import sys, delayd.commands.cli, delayd.commands.messages as messages\n"
        "messages.open_bus('127.0.0.1:1').cluster().close()\n"
        "messages.Client('127.0.0.1:1').close()\n"
        "print('loaded:', *sys.modules)",
    )
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


def test_the_line_of_an_error_is_left_for_a_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """k8s/README.md, "How a node behaves": one line is the pod's status."""
    word = tmp_path / "word"
    monkeypatch.setenv("DELAYD_TERMINATION_LOG", str(word))
    monkeypatch.setattr(sys, "argv", ["delayd", "node", "--config", str(tmp_path / "absent.toml")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == ExitCode.USAGE
    assert word.read_text() == capsys.readouterr().err.splitlines()[-1]
    assert word.read_text().endswith("[config]")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(shell: str) -> None:
    """As the script asks that `delayd --show-completion` prints."""
    words = "delayd dead re"
    asked = {
        "_DELAYD_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": "2",
        "_TYPER_COMPLETE_ARGS": words,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN.replace("*sys.argv[1:]", "")],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "redrive" in done.stdout, done.stderr
