"""Processes of delayd that fork from one that has imported all of it, and did nothing else: a start
costs a hundredth of a second of the processor instead of a whole one.

Each is a process of its own: it can be killed, frozen, and starved. Unlike one that the shell has
started, it shows another command line, and none of its imports can fail.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path

IMPORTED = (
    "delayd.commands.cli",
    "delayd.bus.confluent",
    "delayd.bus.kafka_python",
    "delayd.commands.backup.commands",
    "delayd.commands.cluster",
    "delayd.commands.dead.commands",
    "delayd.commands.examine.commands",
    "delayd.commands.knowing",
    "delayd.commands.messages",
    "delayd.commands.move.commands",
    "delayd.commands.node",
    "delayd.commands.upgrade",
)

_server = get_context("forkserver")
_server.set_forkserver_preload([*IMPORTED])


class Forked:
    """One `delayd` command, started. What it prints is appended to files."""

    def __init__(
        self, arguments: tuple[str, ...], out: Path, errors: Path, env: Mapping[str, str]
    ) -> None:
        self.arguments = arguments
        self._process = _server.Process(
            target=_run,
            args=(arguments, out, errors, {**os.environ, **env}, Path.cwd()),
            daemon=True,  # so that it goes with whoever started it
        )
        self._process.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None, "it was started"
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, once it has ended; the negative signal that killed it."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(self.arguments, timeout or 0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _run(
    arguments: tuple[str, ...], out: Path, errors: Path, env: Mapping[str, str], where: Path
) -> None:
    for descriptor, file in ((1, out), (2, errors)):
        opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(where)
    sys.argv = ["delayd", *arguments]
    from delayd.commands.cli import main

    main()
