"""Single threads of another process, held still by ptrace: signals stop whole ones.

A broker whose threads towards the controllers are held is cut off from these only: it goes on
serving clients and the other brokers by what it knew of leaders.

Linux only. The thread that holds them is the one that must let go.
"""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
ANY_THREAD = 0x40000000
"""`__WALL`: wait for what is a thread, too."""
COMM_CHARS = 15
"""Linux keeps so many of a thread's name."""
PAUSED_IN = {"202", "232", "281", "441", "22", "98", "115"}
"""futex and epoll_wait, by their numbers on x86-64 and arm64: a Java thread that is held there
holds up no garbage collection."""
TRIES = 1_000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def _ptrace(request: int, thread_id: int) -> None:
    if _libc.ptrace(request, thread_id, None, None) == -1:
        raise OSError(ctypes.get_errno(), f"ptrace({request:#x}) of thread {thread_id}")


@contextmanager
def held(pid: int, *names: str) -> Iterator[int]:
    """Hold the threads whose names begin so; yield how many. OSError if this user may not."""
    wanted = tuple(name[:COMM_CHARS] for name in names)
    tasks = Path(f"/proc/{pid}/task")
    ids = [int(t.name) for t in tasks.iterdir() if (t / "comm").read_text().startswith(wanted)]
    seized: list[int] = []
    try:
        for thread_id in ids:
            _hold(tasks / str(thread_id), thread_id)
            seized.append(thread_id)
        yield len(seized)
    finally:
        for thread_id in seized:
            _ptrace(PTRACE_DETACH, thread_id)


def _hold(task: Path, thread_id: int) -> None:
    """Stop a thread while it waits for something."""
    for _ in range(TRIES):
        _ptrace(PTRACE_SEIZE, thread_id)
        _ptrace(PTRACE_INTERRUPT, thread_id)
        os.waitpid(thread_id, ANY_THREAD)
        if (task / "syscall").read_text().split()[0] in PAUSED_IN:
            return
        _ptrace(PTRACE_DETACH, thread_id)
        threading.Event().wait(0.01)
    raise OSError(f"thread {thread_id} never waits")
