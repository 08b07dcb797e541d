"""delayd dev: what the command line refuses before anything is started."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from delayd.dev.cluster import LocalCluster
from delayd.dev.commands import app, default_directory
from delayd.dev.folder import REPORT, ClusterFolder
from delayd.dev.parts import Kind, LocalClusterError, Part, State, save
from delayd.dev.startup import ClusterOptions
from delayd.errors import ExitCode


@pytest.mark.parametrize(
    "arguments",
    [
        ["up", "--brokers", "2"],
        ["up", "--nodes", "-1"],
        ["kill", "node-1", "--signal", "NOSUCH"],
        ["kill"],
    ],
)
def test_what_makes_no_sense_is_a_usage_error(arguments: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*arguments, "--dir", str(tmp_path / "dev")])

    assert result.exit_code == ExitCode.USAGE
    assert not (tmp_path / "dev").exists()


@pytest.mark.parametrize("command", ["up", "status", "env"])
def test_a_folder_that_is_a_file_is_said_in_one_line(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        result = CliRunner().invoke(app, [command, "--dir", str(directory)])
        assert isinstance(result.exception, LocalClusterError), result.exception
        assert str(directory) in str(result.exception) and "--dir" in str(result.exception)


def test_the_environment_leads_commands_to_the_local_cluster(tmp_path: Path) -> None:
    state = State((part(Kind.BROKER, "127.0.0.1:9"), part(Kind.ETCD, "http://127.0.0.1:2")))
    save(state, tmp_path / "cluster.json")
    printed = CliRunner().invoke(app, ["env", "--dir", str(tmp_path)]).stdout
    told = subprocess.run(
        ["bash", "-c", 'eval "$(cat)"; printenv DELAYD_BOOTSTRAP DELAYD_ETCD DELAYD_CLUSTER'],
        input=printed,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == ["127.0.0.1:9", "http://127.0.0.1:2", "dev"]


def part(kind: Kind, address: str) -> Part:
    where = Path("data")
    return Part(kind, f"{kind.value}-1", ("true",), {}, address, where, where)


def test_a_cluster_that_is_kept_is_not_started_as_another(tmp_path: Path) -> None:
    """Whoever wants other nodes says that the data may go."""
    nodes = [replace(part(Kind.NODE, "http://x"), name=f"node-{n}") for n in (1, 2)]
    kept = State((part(Kind.BROKER, "127.0.0.1:9"), part(Kind.ETCD, "http://x"), *nodes))
    folder = ClusterFolder(tmp_path)
    folder.prepare()
    (tmp_path / "data").mkdir()
    folder.keep(kept)
    assert LocalCluster(tmp_path).kept() == ClusterOptions(nodes=2, brokers=1)
    with pytest.raises(LocalClusterError, match=r"--nodes 2 --brokers 1.*--fresh"):
        LocalCluster(tmp_path, ClusterOptions(nodes=3)).up(fresh=False)
    assert (tmp_path / "data").is_dir() and folder.kept() == kept


def test_what_a_demo_left_comes_up_again(tmp_path: Path) -> None:
    """Its report lies beside its cluster; anything else is somebody's."""
    (tmp_path / REPORT).touch()
    ClusterFolder(tmp_path).prepare()
    (tmp_path / "letters").touch()
    with pytest.raises(LocalClusterError, match="holds other things"):
        ClusterFolder(tmp_path).prepare()


def test_the_default_folder_is_the_users_state_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")

    assert default_directory() == Path("/state/delayd/dev")
