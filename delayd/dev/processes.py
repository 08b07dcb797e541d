"""Processes in the background: started, recognised for certain, signalled, waited for.

Linux only (pidfds). Not here: what the processes are.

Invariants: a signal goes to the process that was meant or to none, even if its pid was reused
(pid, boot and start time are compared while a pidfd holds the process). A killed process counts as
gone when its last thread has ended: until then it still holds its ports and files.
"""

import contextlib
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from delayd.runtime.clock import wait_until

POLL_MS = 10
CLUSTER_VARIABLE = "DELAYD_DEV_CLUSTER"  # in each process's environment: its cluster's folder

# Python and shells ignore some signals, and ignoring is inherited: children start with defaults.
_DEFAULT_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGPIPE,
    signal.SIGXFSZ,
)
_ENDED: Final = {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
_FROZEN: Final = {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, for ever: `started` is the id of the boot and the start time in clock ticks."""

    pid: int
    started: str


def spawn(command: Sequence[str], *, env: Mapping[str, str], log: Path) -> ProcessIdentity:
    """Start `command` in a session of its own, output appended to `log`, no standard input.

    Raises OSError if it cannot be executed.
    """
    log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        command[0],
        list(command),
        dict(env),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), log_flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=_DEFAULT_SIGNALS,
    )
    return identity_of(pid)  # the kernel keeps a child until its parent has waited for it


def is_alive(process: ProcessIdentity) -> bool:
    """Return whether this very process still runs (a stopped one does, a zombie does not)."""
    with contextlib.suppress(psutil.NoSuchProcess):
        found = _find(process)
        if found is not None and not _is_over(found):
            return True
        if found is not None:
            # Only the parent can reap it, and this may be the parent.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
    return False


def is_stopped(process: ProcessIdentity) -> bool:
    """Return whether SIGSTOP has frozen this very process, each of its threads."""
    states = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        found = _find(process)
        for thread in found.threads() if found is not None else ():
            with contextlib.suppress(psutil.NoSuchProcess):
                states.add(psutil.Process(thread.id).status())
    return bool(states & _FROZEN) and states <= _FROZEN | _ENDED


def wait_until_stopped(process: ProcessIdentity, timeout_ms: int) -> bool:
    """Wait until a SIGSTOP has reached each thread: until then the others run, and may answer.
    Return False if the process is gone or does not stop within `timeout_ms`."""
    wait_until(lambda: is_stopped(process) or not is_alive(process), timeout_ms, poll_ms=1)
    return is_stopped(process)


def identity_of(pid: int) -> ProcessIdentity:
    """Return the process that has this pid now. Raises ProcessLookupError if none has."""
    started = _started(pid)
    if started is None:
        raise ProcessLookupError(f"no process {pid}")
    return ProcessIdentity(pid, started)


def send(process: ProcessIdentity, signal_number: signal.Signals) -> bool:
    """Signal this very process. Return False if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(process.pid)
        try:
            if is_alive(process):
                signal.pidfd_send_signal(pidfd, signal_number)
                return True
        finally:
            os.close(pidfd)
    return False


def wait_until_gone(
    processes: Iterable[ProcessIdentity], timeout_ms: int
) -> tuple[ProcessIdentity, ...]:
    """Wait until all are gone. Return the processes that still live after `timeout_ms`."""
    waited_for = tuple(processes)
    wait_until(lambda: not any(map(is_alive, waited_for)), timeout_ms, poll_ms=POLL_MS)
    return tuple(filter(is_alive, waited_for))


def processes_of(directory: Path) -> frozenset[ProcessIdentity]:
    """Return all other living processes that carry this cluster's folder in their environment."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
            is_marked = process.environ().get(CLUSTER_VARIABLE) == str(directory)
            if is_marked and process.pid != os.getpid() and not _is_over(process):
                found.add(identity_of(process.pid))
    return frozenset(found)


def _find(process: ProcessIdentity) -> psutil.Process | None:
    """Return this very process, a zombie too; None if it is gone or its pid was reused."""
    with contextlib.suppress(psutil.NoSuchProcess):
        found = psutil.Process(process.pid)
        if _started(process.pid) == process.started:
            return found
    return None


def _is_over(found: psutil.Process) -> bool:
    """Return whether it only waits to be reaped. Its first thread may end before the others."""
    return found.status() in _ENDED and found.num_threads() <= 1


def _started(pid: int) -> str | None:
    """Return the boot and the start time of whoever has this pid now; None if nobody has.

    Not psutil's `create_time`, which moves when the machine's clock is set.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # proc(5): the command may hold spaces and parentheses; the start time is field 22.
    return f"{boot}/{stat.rpartition(')')[2].split()[19]}"
