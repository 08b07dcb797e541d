"""Processes in the background: started, recognised for certain, signalled, waited for.

Linux only (`/proc` and pidfds). Not here: what the processes are.

Invariants: a signal goes to the process that was meant or to none, even if its pid was reused
(pid + boot + start time are compared while a pidfd holds the process). A zombie counts as gone as
soon as its last thread has ended: until then it still holds its ports and files.
"""

import contextlib
import os
import select
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from delayd.runtime.clock import SystemClock

CLUSTER_VARIABLE = "DELAYD_DEV_CLUSTER"  # in each process's environment: the folder it belongs to

# Python and shells ignore some signals, and ignoring is inherited: children start with defaults.
_DEFAULT_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGPIPE,
    signal.SIGXFSZ,
)


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process for ever: `started` is the boot's id and the start time in clock ticks."""

    pid: int
    started: str


def spawn(command: Sequence[str], *, env: Mapping[str, str], log: Path) -> ProcessIdentity:
    """Starts `command` in a session of its own, output appended to `log`, no standard input.

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
    return identity_of(pid)  # a child that nobody waited for stays in /proc


def is_alive(process: ProcessIdentity) -> bool:
    """Whether this very process still runs (stopped counts as running, a zombie does not)."""
    status = _status_of(process.pid)
    if status is None or status.started != process.started:
        return False
    if status.is_over:
        # Only its parent can bury it, and only a direct child of ours is ours to bury.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
        return False
    return True


def is_stopped(process: ProcessIdentity) -> bool:
    """Whether this very process is frozen by SIGSTOP, each of its threads."""
    status = _status_of(process.pid)
    if status is None or status.started != process.started:
        return False
    threads = [_status_of(process.pid, thread) for thread in _threads_of(process.pid)]
    states = {thread.state for thread in threads if thread is not None}
    return bool(states & set("Tt")) and states <= set("TtZX")


def wait_until_stopped(process: ProcessIdentity, timeout_ms: int) -> bool:
    """Waits until a SIGSTOP has reached each thread: until then the others run, and may answer.
    False if it is gone or does not stop within `timeout_ms`."""
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + timeout_ms
    while not is_stopped(process):
        if not is_alive(process) or clock.monotonic_ms() > deadline_ms:
            return False
        wait_for_an_exit([process], timeout_ms=1)
    return True


def identity_of(pid: int) -> ProcessIdentity:
    """Who has this pid now. Raises ProcessLookupError if nobody has."""
    status = _status_of(pid)
    if status is None:
        raise ProcessLookupError(f"no process {pid}")
    return ProcessIdentity(pid, status.started)


def send(process: ProcessIdentity, signal_number: signal.Signals) -> bool:
    """Signals this very process; False if it is gone."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(pidfd, signal_number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)


def wait_for_an_exit(processes: Iterable[ProcessIdentity], timeout_ms: int) -> None:
    """Returns when one of `processes` has ended, or after `timeout_ms`."""
    poll = select.poll()
    with contextlib.ExitStack() as opened:
        for process in processes:
            try:
                pidfd = os.pidfd_open(process.pid)
            except ProcessLookupError:
                return
            opened.callback(os.close, pidfd)
            if not is_alive(process):
                return
            poll.register(pidfd, select.POLLIN)
        poll.poll(max(0, timeout_ms))


def wait_until_gone(
    processes: Iterable[ProcessIdentity], timeout_ms: int
) -> tuple[ProcessIdentity, ...]:
    """Waits until all are gone; what is still alive after `timeout_ms` is returned."""
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + timeout_ms
    for process in (waited_for := tuple(processes)):
        while is_alive(process):
            left_ms = deadline_ms - clock.monotonic_ms()
            if left_ms <= 0:
                break
            wait_for_an_exit([process], left_ms)
    return tuple(process for process in waited_for if is_alive(process))


def processes_of(directory: Path) -> frozenset[ProcessIdentity]:
    """Every living process that carries this cluster's folder in its environment."""
    marker = f"{CLUSTER_VARIABLE}={directory}".encode()
    return frozenset(
        process for process in _all_processes() if marker in _environment_of(process.pid)
    )


@dataclass(frozen=True, slots=True)
class _ProcessStatus:
    state: str
    threads: int
    started: str

    @property
    def is_over(self) -> bool:
        """Whether it only waits to be buried. Its first thread may be dead before the others."""
        return self.state in "ZX" and self.threads <= 1


def _status_of(pid: int, thread: int | None = None) -> _ProcessStatus | None:
    folder = f"/proc/{pid}" if thread is None else f"/proc/{pid}/task/{thread}"
    try:
        text = Path(folder, "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # proc(5): the command may hold spaces and parentheses; state is field 3, the number of threads
    # field 20, start time field 22.
    fields = text.rpartition(")")[2].split()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return _ProcessStatus(state=fields[0], threads=int(fields[17]), started=f"{boot}/{fields[19]}")


def _threads_of(pid: int) -> list[int]:
    try:
        return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _all_processes() -> Iterator[ProcessIdentity]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        status = _status_of(int(entry.name))
        if status is not None and not status.is_over:
            yield ProcessIdentity(int(entry.name), status.started)


def _environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
