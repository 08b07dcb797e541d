"""One-way cuts: rules in a container's own network namespace, set from this machine as root.

Docker itself can only take a container off a network, which cuts both ways (engine.py).
"""

from chaos.processes.disks import run_as_root


def drop(process_id: int, subnet: str, *, incoming: bool, outgoing: bool) -> None:
    """What comes from there, or goes there, or both, is dropped without a word."""
    for is_dropped, chain, side in ((incoming, "INPUT", "-s"), (outgoing, "OUTPUT", "-d")):
        if is_dropped:
            _iptables(process_id, "-A", chain, side, subnet, "-j", "DROP")


def mend(process_id: int) -> None:
    """Undo all of it."""
    _iptables(process_id, "-F")


def _iptables(process_id: int, *words: str) -> None:
    run_as_root("nsenter", "-t", str(process_id), "-n", "iptables", "-w", *words)
