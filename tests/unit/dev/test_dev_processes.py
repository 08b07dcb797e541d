"""delayd.dev.processes: a signal reaches the process that was meant, or none."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from delayd.dev.processes import (
    CLUSTER_VARIABLE,
    ProcessIdentity,
    identity_of,
    is_alive,
    is_stopped,
    processes_of,
    send,
    spawn,
    wait_until_gone,
    wait_until_stopped,
)
from delayd.runtime.clock import wait_until

TIMEOUT_MS = 10_000


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[ProcessIdentity]:
    process = spawn(
        ["/bin/sleep", "60"],
        env={CLUSTER_VARIABLE: str(tmp_path)},
        log=tmp_path / "log",
    )
    yield process
    send(process, signal.SIGKILL)
    assert wait_until_gone([process], TIMEOUT_MS) == ()


def test_a_reused_pid_is_neither_alive_nor_killed(sleeper: ProcessIdentity) -> None:
    stale = replace(sleeper, started="another boot/12345")

    assert not is_alive(stale)
    assert not send(stale, signal.SIGKILL)
    assert wait_until_gone([stale], TIMEOUT_MS) == ()
    assert is_alive(sleeper)


def test_a_pid_that_nobody_has_is_gone() -> None:
    nobody = ProcessIdentity(pid=2**22 + 1, started="boot/1")  # above the kernel's largest pid

    assert not is_alive(nobody)
    assert not send(nobody, signal.SIGKILL)


def test_a_killed_child_is_gone_and_buried(sleeper: ProcessIdentity) -> None:
    assert send(sleeper, signal.SIGKILL)

    assert wait_until_gone([sleeper], TIMEOUT_MS) == ()
    assert not is_alive(sleeper)
    with pytest.raises(ChildProcessError):
        os.waitpid(sleeper.pid, os.WNOHANG)


def test_a_wait_that_ends_too_early_names_who_is_left(sleeper: ProcessIdentity) -> None:
    assert wait_until_gone([sleeper], timeout_ms=10) == (sleeper,)


def test_a_process_is_not_gone_before_its_last_thread(tmp_path: Path) -> None:
    """As after SIGKILL, while a thread is still in the kernel: its ports are still taken."""
    program = (
        "import ctypes, sys, threading; "
        "threading.Thread(target=sys.stdin.read).start(); "
        "print('begun', flush=True); ctypes.CDLL(None).pthread_exit(None)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        process = identity_of(child.pid)
        parent = psutil.Process(child.pid)
        assert wait_until(lambda: parent.status() == psutil.STATUS_ZOMBIE, TIMEOUT_MS, 2)

        assert is_alive(process)
        assert wait_until_gone([process], timeout_ms=10) == (process,)

        child.stdin.close()  # the other thread ends
        assert wait_until_gone([process], TIMEOUT_MS) == ()


def test_a_frozen_process_is_alive_and_known_to_be_frozen(sleeper: ProcessIdentity) -> None:
    assert not is_stopped(sleeper)
    send(sleeper, signal.SIGSTOP)
    assert wait_until_stopped(sleeper, TIMEOUT_MS)

    assert is_alive(sleeper)
    assert is_stopped(sleeper)


def test_who_does_not_stop_is_not_waited_for_for_ever(sleeper: ProcessIdentity) -> None:
    assert not wait_until_stopped(sleeper, timeout_ms=10)
    assert not wait_until_stopped(replace(sleeper, started="another boot/1"), TIMEOUT_MS)


def test_a_clusters_processes_are_found_by_their_environment_alone(
    sleeper: ProcessIdentity, tmp_path: Path
) -> None:
    # The kernel shows the environment a moment after the program has begun.
    assert wait_until(lambda: processes_of(tmp_path) == {sleeper}, TIMEOUT_MS, 2)
    assert processes_of(tmp_path / "other") == frozenset()
    assert processes_of(tmp_path.parent) == frozenset()


def test_a_process_leads_a_session_of_its_own(sleeper: ProcessIdentity) -> None:
    assert os.getsid(sleeper.pid) == sleeper.pid


def test_a_child_takes_signals_that_its_parent_ignores(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a background job of a shell
    try:
        process = spawn(["/bin/sleep", "60"], env={}, log=tmp_path / "log")
    finally:
        signal.signal(signal.SIGINT, before)

    send(process, signal.SIGINT)

    assert wait_until_gone([process], TIMEOUT_MS) == ()


def test_what_a_process_says_is_appended_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")

    process = spawn(["/bin/sh", "-c", "echo out; echo err >&2"], env={}, log=log)

    assert wait_until_gone([process], TIMEOUT_MS) == ()
    assert log.read_text() == "before\nout\nerr\n"


def test_what_cannot_be_executed_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        spawn([str(tmp_path / "nothing")], env={}, log=tmp_path / "log")
