"""One-way cuts: rules in a container's own network namespace, set from this machine as root.

Docker itself can only take a container off a network, which cuts both ways (engine.py).
"""

import subprocess
from typing import Final

from chaos.backend import BackendError

TIMEOUT_S: Final = 20


def drop(process_id: int, subnet: str, *, incoming: bool, outgoing: bool) -> None:
    """What comes from there, or goes there, or both, is dropped without a word."""
    for is_dropped, chain, side in ((incoming, "INPUT", "-s"), (outgoing, "OUTPUT", "-d")):
        if is_dropped:
            _iptables(process_id, "-A", chain, side, subnet, "-j", "DROP")


def mend(process_id: int) -> None:
    """Undo all of it."""
    _iptables(process_id, "-F")


def _iptables(process_id: int, *words: str) -> None:
    command = ["nsenter", "-t", str(process_id), "-n", "iptables", "-w", *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except OSError as error:
        raise BackendError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise BackendError(f"{' '.join(command)}: {done.stderr.strip()} (needs root)")
