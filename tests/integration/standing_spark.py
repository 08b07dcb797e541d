"""One Spark for the audits of all tests of a run, in a process of its own. To start one, and to
have it load and compile what an audit needs, takes longer than the audit itself.

    python standing_spark.py FOLDER OWNER

Audits wait for each other. It ends when the process OWNER has ended, and removes the folder. What
a user's own command adds, a Spark that it starts and ends, has tests that use the real one:
test_guarded_nodes.py, test_demo.py, test_audit_session.py.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import psutil
from nodes import HANGS_S, delayd_in_process, wait_for

from delayd.dev.locks import locked
from delayd.dev.parts import LocalClusterError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NICENESS = 10
"""Tests beside it watch the time."""

KEY = b"of tests"
_servers: list["subprocess.Popen[bytes]"] = []


class Auditor:
    """Carries out `delayd audit`, one after the other."""

    def __init__(self) -> None:
        self._turn = threading.Lock()

    def audit(
        self, arguments: tuple[str, ...], env: Mapping[str, str]
    ) -> "subprocess.CompletedProcess[str]":
        """What the command prints, and its exit code."""
        with self._turn, mock.patch.dict(os.environ, env, clear=True):
            return delayd_in_process("audit", *arguments)


class Manager(BaseManager):
    """The way to the one auditor."""


def audit(
    *arguments: str, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run `delayd audit` with these arguments, in the Spark that the run's tests share."""
    in_worker = "PYTEST_XDIST_WORKER" in os.environ
    owner = os.getppid() if in_worker else os.getpid()
    folder = Path(tempfile.gettempdir()) / f"delayd-standing-spark-{owner}"
    refusal = LocalClusterError("another worker starts Spark for ever", remedy="see its log")
    with locked(folder.with_suffix(".lock"), timeout_s=HANGS_S, refusal=refusal):
        auditor = _auditor_at(folder) or _started(folder, owner)
    done: subprocess.CompletedProcess[str] = auditor.audit(arguments, {**os.environ, **(env or {})})
    return done


def _auditor_at(folder: Path) -> Any:
    """The auditor, None if there is none yet."""
    Manager.register("auditor")
    manager: Any = Manager(address=str(folder / "socket"), authkey=KEY)
    with suppress(OSError, EOFError):
        manager.connect()
        return manager.auditor()
    return None


def _started(folder: Path, owner: int) -> Any:
    folder.mkdir(exist_ok=True)
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, str(folder), str(owner)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    _servers.append(process)  # outlives this process, which does not wait for it
    found: list[Any] = []

    def is_there() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        found.append(_auditor_at(folder))
        return found[-1] is not None

    wait_for(is_there, "a Spark for audits starts")
    return found[-1]


def _serve(folder: Path, owner: int) -> None:
    from delayd.audit import run
    from delayd.audit.reading.session import FOR_FEW, open_session

    os.nice(NICENESS)
    try:
        with open_session(
            folder / "spark", name="delayd tests", master="local[2]", settings=FOR_FEW
        ) as spark:

            @contextmanager
            def standing(*_: object, **__: object) -> "Iterator[SparkSession]":
                yield spark

            auditor = Auditor()
            Manager.register("auditor", callable=lambda: auditor)
            with mock.patch.object(run, "open_session", standing):
                server = Manager(address=str(folder / "socket"), authkey=KEY).get_server()
                threading.Thread(target=server.serve_forever, daemon=True).start()
                while psutil.pid_exists(owner):
                    time.sleep(0.5)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(".lock").unlink(missing_ok=True)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
