"""Another release of delayd beside this one: the code of a commit, in a tree of its own."""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from clusters import TestCluster
from mixed_load import RETRY_DELAYS_MS
from nodes import CLUSTER_KEY, HANGS_S, NodeProcess

from delayd.dev.cluster import LocalCluster
from delayd.errors import ExitCode

ROOT = Path(__file__).parents[2]
COMMIT_BEFORE = "36c172e"
"""v0.1.0: the last commit before the modules moved into rooms."""

_numbers = itertools.count()


class Code(NamedTuple):
    """A version of delayd, by the folder that holds its packages."""

    tree: Path

    @property
    def environment(self) -> dict[str, str]:
        """Where its processes, and what they start, find their modules."""
        return {"PYTHONPATH": str(self.tree)}

    @property
    def command(self) -> str:
        """The module that is the `delayd` command."""
        is_older = (self.tree / "delayd/cli.py").exists()
        return "delayd.cli" if is_older else "delayd.commands.cli"

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python with the modules of this version to its end."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.tree,  # `-m` looks there first
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=HANGS_S,
            check=False,
        )

    def delayd(self, *arguments: str) -> str:
        """Run the `delayd` command of this version; it succeeds. Return what it prints."""
        done = self.python("-m", self.command, *arguments)
        assert done.returncode == ExitCode.FINE, done.stdout + done.stderr
        return done.stdout

    def start(self, node: NodeProcess) -> None:
        """Start a node of this version."""
        if self.tree == ROOT:
            node.start()
            return
        prelude = f"cd '{self.tree}' && "
        node.start_program(self.environment, prelude, program=f"-m {self.command}")


def release_before(tree: Path) -> Code:
    """Put the code of v0.1.0, out of the repository's own history, into a folder."""
    archive = subprocess.run(
        ["git", "archive", COMMIT_BEFORE, "delayd", "replication"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if archive.returncode != 0:
        pytest.fail(
            f"commit {COMMIT_BEFORE} is not in this checkout: {archive.stderr.decode().strip()}; "
            "fetch the whole history (git fetch --unshallow)"
        )
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    code = Code(tree)
    found = code.python("-c", "import delayd; print(delayd.__file__)").stdout
    assert found.strip() == str(tree / "delayd" / "__init__.py"), "its own modules are imported"
    return code


def create_cluster(code: Code, kafka_and_etcd: LocalCluster, folder: Path) -> TestCluster:
    """Create the topics of a cluster with this version."""
    name = f"v{os.getpid()}x{next(_numbers)}"
    delays = ",".join(f"{delay_ms}ms" for delay_ms in RETRY_DELAYS_MS)
    code.delayd(
        *("topics", "create", "--bootstrap", kafka_and_etcd.bootstrap),
        *("--cluster", name, "--prefix", f"{name}-", "--cluster-key", CLUSTER_KEY),
        *("--partitions", "3", "--retry-delays", delays),
    )
    return TestCluster(name, kafka_and_etcd.bootstrap, kafka_and_etcd.etcd_url, folder)
