"""The local cluster's folder, state file, ports and node configuration."""

import socket
import tomllib
from pathlib import Path

import pytest

from delayd.dev.cluster import LocalCluster
from delayd.dev.nodes import toml_value
from delayd.dev.parts import Kind, LocalClusterError, Part, State, last_words, load, save
from delayd.dev.ports import pick_ports
from delayd.dev.processes import ProcessIdentity


@pytest.fixture
def part(tmp_path: Path) -> Part:
    return Part(
        kind=Kind.NODE,
        name="node-1",
        command=("python", "-m", "delayd.commands.cli"),
        env={"DELAYD_CLOCK_OFFSET_MS": "-5"},
        address="http://127.0.0.1:1",
        data=tmp_path / "data",
        log=tmp_path / "log",
        process=ProcessIdentity(pid=7, started="boot/9"),
    )


def test_the_state_is_read_as_it_was_saved(tmp_path: Path, part: Part) -> None:
    state = State((part,))
    save(state, tmp_path / "cluster.json")

    assert load(tmp_path / "cluster.json") == state


@pytest.mark.parametrize("kept", [0, 1, 100])
def test_a_state_file_written_half_is_an_error_that_says_down(
    tmp_path: Path, part: Part, kept: int
) -> None:
    file = tmp_path / "cluster.json"
    save(State((part,)), file)
    file.write_text(file.read_text()[:kept])

    with pytest.raises(LocalClusterError, match="delayd dev down --dir"):
        load(file)


def test_without_a_state_file_nothing_is_up(tmp_path: Path) -> None:
    assert load(tmp_path / "cluster.json") is None
    with pytest.raises(LocalClusterError, match=r"no cluster is up.*delayd dev up"):
        LocalCluster(tmp_path).status()


def test_down_where_nothing_is_up_does_nothing(tmp_path: Path) -> None:
    assert LocalCluster(tmp_path).down() is False
    assert LocalCluster(tmp_path / "absent").down() is False
    assert not (tmp_path / "absent").exists()


def test_up_refuses_a_folder_with_other_things_in_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "thesis.tex").write_text("years of work")

    with pytest.raises(LocalClusterError, match=r"thesis\.tex"):
        LocalCluster(tmp_path).up()

    assert (tmp_path / "data").is_dir()


def test_an_unknown_part_is_answered_with_the_known_ones(part: Part) -> None:
    with pytest.raises(LocalClusterError, match=r"broker-9.*node-1"):
        State((part,)).part("broker-9")


def test_the_last_words_of_a_log_are_not_a_stack_frame(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("starting\nException: no room\n\tat Kafka.main\n\n")

    assert last_words(log) == "Exception: no room"


def test_ports_are_different_free_and_out_of_reach_of_outgoing_connections() -> None:
    ports = pick_ports(20)
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    assert len(set(ports)) == 20
    assert all(port < first_outgoing for port in ports)
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


@pytest.mark.parametrize(
    "value",
    ["plain", 'quote " and \\ and \n', "ümlaut", True, 5, -0.5, ["a", "b"], {"acks": "all"}, []],
)
def test_a_setting_arrives_in_a_nodes_file_as_it_was_given(value: object) -> None:
    assert tomllib.loads(f"key = {toml_value(value)}") == {"key": value}


def test_a_setting_that_toml_cannot_hold_is_a_bug_of_the_caller() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        toml_value(None)
