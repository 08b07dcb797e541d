"""`delayd node` is told to end before it runs: while it waits for etcd, for Kafka, or for shards.

Source: k8s/README.md, "How a node behaves".
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

WAIT_S = 120
AS_FIRST_PROCESS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""As in a container: there the kernel ignores what a signal does by default."""


def may_unshare() -> bool:
    """Return whether this user may make a namespace of processes."""
    try:
        return subprocess.run([*AS_FIRST_PROCESS, "true"], check=False).returncode == 0
    except OSError:
        return False


def config(folder: Path, etcd_port: int) -> Path:
    """A node that finds no etcd for long."""
    file = folder / "node.toml"
    file.write_text(
        'node = "n"\nbootstrap = "127.0.0.1:1"\ncluster_key = "a key of sixteen or more"\n'
        f'data_dir = "{folder}"\netcd = ["http://127.0.0.1:{etcd_port}"]\n'
        f"connect_timeout_s = {WAIT_S}\n"
    )
    return file


@pytest.mark.parametrize("before", [(), AS_FIRST_PROCESS], ids=["a process", "the first process"])
def test_a_node_that_waits_at_its_start_ends_at_once(tmp_path: Path, before: Sequence[str]) -> None:
    if before and not may_unshare():
        pytest.skip("this user may not make a namespace of processes")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        node = ("-m", "delayd.commands.cli", "node", "--config", str(config(tmp_path, _port(deaf))))
        with subprocess.Popen(
            [*before, sys.executable, *node], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout is not None
            said = next((line for line in process.stdout if b"node_starting" in line), b"")
            deaf.settimeout(WAIT_S)
            deaf.accept()[0].close()
            inner = _only_child(process.pid) if before else process.pid
            os.kill(inner, signal.SIGTERM)
            assert said and process.wait(WAIT_S / 2) == 0


def _port(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def _only_child(pid: int) -> int:
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)
