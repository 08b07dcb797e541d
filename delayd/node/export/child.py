"""The writer's process: the one door by which a node starts another program.

A process, because neither the interpreter's lock nor the memory of the Parquet library may burden
the node. It is nicer than the node, and ends when the node does: its standard input is a pipe that
only the node holds. (The kernel's signal at a parent's death would come with the death of the
thread that started it.)
"""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

ORPHANED = 3
"""Exit code of a writer whose node is gone."""
NO_ROOM = 4
"""Exit code when the disk is full."""
NICER_BY = 10
NICENESS_MAX = 19
SAID_BYTES_MAX = 64 * 1024

_ENVIRONMENT = {
    # One thread and no arenas of its own: less memory, and the other cores are the node's.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}
_SECRETS = ("DELAYD_CLUSTER_KEY", "DELAYD_KAFKA")


class Child:
    """One writer at work. `kill` may be called from another thread."""

    def __init__(self, folder: Path) -> None:
        """Start it on this export's folder; OSError if that fails."""
        inherited = {name: value for name, value in os.environ.items() if name not in _SECRETS}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "delayd.node.export.writer", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**inherited, **_ENVIRONMENT},
        )
        with contextlib.suppress(OSError):
            nicer = min(os.getpriority(os.PRIO_PROCESS, 0) + NICER_BY, NICENESS_MAX)
            os.setpriority(os.PRIO_PROCESS, self._process.pid, nicer)

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    def wait(self) -> tuple[int, str]:
        """Wait until it has ended, and bury it: 0 if the file is complete, else its exit code and
        the problem."""
        with self._process as process:
            assert process.stdin is not None and process.stdout is not None, "both are pipes"
            # Not communicate(): it would close standard input, which is what keeps it alive.
            said = process.stdout.read(SAID_BYTES_MAX)
            code = process.wait()
        try:
            fields = json.loads(said)
        except ValueError:
            fields = {}
        if code == 0 and "count" in fields:
            return 0, ""
        return code or 1, str(fields.get("problem", f"the writer ended with {code}"))

    def kill(self) -> None:
        """End it at once; `wait` returns then. Idempotent."""
        self._process.kill()
