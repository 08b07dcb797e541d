"""Real nodes as processes, for tests: started from a file, watched over HTTP, killed for real."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from forking import Forked
from typer.testing import CliRunner

from delayd.commands import cli
from delayd.config.security import certificate_digest
from delayd.dev.nodes import read_status, toml_value
from delayd.dev.ports import pick_ports
from delayd.dev.processes import identity_of, wait_until_stopped
from delayd.errors import DelaydError
from delayd.runtime.clock import SystemClock, wait_until

CLOCK = SystemClock()

CLUSTER_KEY = "the key of clusters in tests"

HANGS_S = 300
"""Whoever waits so long waits for ever: no measure of anything, but the end of a test that hangs. A
machine with other work can stand still for many seconds."""

POLL_MS, PATIENT_POLL_MS = 50, 200
"""How often a condition is looked at, and how often after the first second. Most of them ask nodes
or read a topic, which costs them and us some milliseconds of the processors that they wait for."""


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = HANGS_S) -> None:
    """Wait until a condition holds; AssertionError that says what did not happen."""
    first_ms = min(1_000, int(timeout_s * 1000))
    is_true = wait_until(condition, first_ms, POLL_MS) or wait_until(
        condition, int(timeout_s * 1000) - first_ms, PATIENT_POLL_MS
    )
    assert is_true, f"not within {timeout_s} s: {what}"


def wait_until_wall(at_ms: int) -> None:
    """Wait until the wall clock is there."""
    wait_for(lambda: CLOCK.wall_ms() >= at_ms, "time passes")


def delayd(
    *arguments: str, timeout_s: float = HANGS_S, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the `delayd` command to its end."""
    with TemporaryDirectory(prefix="delayd-said-") as folder:
        out, errors = Path(folder) / "out", Path(folder) / "errors"
        process = Forked(arguments, out, errors, env or {})
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, code, out.read_text(), errors.read_text())


def delayd_in_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the `delayd` command in this process, which costs less than one of its own."""
    result = CliRunner().invoke(cli.app, arguments)
    code, stderr = result.exit_code, result.stderr
    if isinstance(error := result.exception, DelaydError):
        code, stderr = int(error.exit_code), f"{stderr}delayd: {error} [{error.code}]\n"
    elif error is not None and not isinstance(error, SystemExit):
        raise error
    return subprocess.CompletedProcess(arguments, code, result.stdout, stderr)


class NodeProcess:
    """One `delayd node` process, with its configuration file, data and log in a folder."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        cluster: str,
        bootstrap: str,
        etcd: str,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.name = name
        self.port = pick_ports(1)[0]
        self.data = folder / name / "data"
        self.log_file = folder / name / "log"
        self.data.mkdir(parents=True, exist_ok=True)
        self.config = folder / name / "node.toml"
        document: dict[str, object] = {
            "cluster": cluster,
            "node": name,
            "bootstrap": bootstrap,
            "etcd": [etcd],
            "cluster_key": CLUSTER_KEY,
            "data_dir": str(self.data),
            "admin_port": self.port,
            "prefix": f"{cluster}-",
            **(settings or {}),
        }
        cert = document.get("admin_cert_file")
        whose = "http://" if cert is None else f"https://{certificate_digest(Path(str(cert)))}@"
        self.url = f"{whose}127.0.0.1:{self.port}"
        self.config.write_text("".join(f"{k} = {toml_value(v)}\n" for k, v in document.items()))
        self.process: subprocess.Popen[bytes] | Forked | None = None

    def start(self, env: Mapping[str, str] | None = None) -> "NodeProcess":
        """Start the process: a fork of one that has imported all of delayd."""
        arguments = ("node", "--config", str(self.config))
        self.process = Forked(arguments, self.log_file, self.log_file, env or {})
        return self

    def start_program(
        self,
        env: Mapping[str, str] | None = None,
        prelude: str = "",
        program: str = "-m delayd.commands.cli",
    ) -> "NodeProcess":
        """Start it as a shell does; `prelude` is shell (such as `ulimit`) that runs before it,
        `program` what Python runs."""
        command = f'{prelude}exec "$0" {program} node --config "$1"'
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", command, sys.executable, str(self.config)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
            )
        return self

    @property
    def log(self) -> str:
        """What the node has printed so far."""
        return self.log_file.read_text() if self.log_file.exists() else ""

    def status(self) -> dict[str, Any]:
        """`GET /status`; empty while the node does not answer."""
        return read_status(self.url) or {}

    def wait_ready(self) -> "NodeProcess":
        """Wait until it says that it could take over."""
        wait_for(lambda: bool(self.status().get("ready")), f"{self.name} is ready")
        return self

    def is_master(self) -> bool:
        """Does it deliver now, as it says?"""
        return bool(self.status().get("delivering"))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self.process is not None, "the node was never started"
        self.process.send_signal(number)
        if number is signal.SIGSTOP:
            assert wait_until_stopped(identity_of(self.process.pid), int(HANGS_S * 1000))

    def wait_exit(self, timeout_s: float = HANGS_S) -> int:
        """The exit code; AssertionError with the log if it does not end."""
        assert self.process is not None, "the node was never started"
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end:\n{self.log[-3000:]}") from None

    def kill(self) -> None:
        """SIGKILL, also of a frozen process, and wait until it is gone."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(HANGS_S)


@contextmanager
def node_group(nodes: list[NodeProcess]) -> Iterator[list[NodeProcess]]:
    """Nodes that are killed when the test ends, however it ends; what they logged, if it failed."""
    try:
        yield nodes
    except BaseException:
        for node in nodes:
            print(f"--- log of {node.name} ---\n{node.log}")
        raise
    finally:
        for node in nodes:
            node.kill()


@contextmanager
def running(nodes: list[NodeProcess]) -> Iterator[NodeProcess]:
    """Start these nodes. Yield the one that delivers; at the end all are killed."""
    with node_group(nodes):
        for node in nodes:
            node.start()
        yield master_of(nodes)


def master_of(nodes: list[NodeProcess], timeout_s: float = HANGS_S) -> NodeProcess:
    """The node that delivers, as soon as there is one."""
    found: list[NodeProcess] = []

    def look() -> bool:
        found[:] = [node for node in nodes if node.is_master()]
        return bool(found)

    wait_for(look, "a node becomes master", timeout_s)
    return found[0]
