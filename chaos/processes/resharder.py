"""Whoever gives a cluster other shards: a person's `delayd shards set`, which may be killed."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from delayd.dev.nodes import CLUSTER_NAME
from delayd.dev.supervision import environment_for

ROOT: Final = Path(__file__).parents[2]


def started(shards: int, bootstrap: str, directory: Path) -> Callable[[float], int]:
    """Run the command on this machine; its log is in the folder `logs` of the cluster's directory.
    Return who waits for its end, for so many seconds, then kills it, and returns its exit code."""
    command = (sys.executable, "-m", "delayd.commands.cli", "shards", "set", str(shards))
    options = ("--bootstrap", bootstrap, "--cluster", CLUSTER_NAME)
    with (directory / "logs" / "shards.log").open("ab") as log:
        env = environment_for({"PYTHONPATH": str(ROOT)}, directory)
        person = subprocess.Popen((*command, *options), env=env, stdout=log, stderr=log)

    def wait(timeout_s: float) -> int:
        try:
            return person.wait(timeout_s)
        except subprocess.TimeoutExpired:
            person.kill()
            return person.wait()

    return wait
