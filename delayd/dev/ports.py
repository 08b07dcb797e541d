"""Free loopback ports that stay usable across a part's restart.

They are picked below the range from which the kernel gives ports to outgoing connections. A port
inside that range can be taken, while its broker is down, by a client's own connection attempt (a
connection to the dead port may even connect to itself), and then the restart fails.
"""

import contextlib
import random
import socket
from pathlib import Path

from delayd.dev.parts import LocalClusterError

LOOPBACK = "127.0.0.1"
PORT_MIN = 10_000  # below are well-known servers
TRIES_MAX = 2_000  # bounds the search on a machine that is nearly full


def pick_ports(count: int) -> tuple[int, ...]:
    """Return `count` different free ports, all held open until the last is found, then released.

    Raises LocalClusterError if the machine has too few.
    """
    candidates = range(PORT_MIN, max(_first_outgoing_port(), PORT_MIN))
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        for port in random.sample(candidates, min(TRIES_MAX, len(candidates))) + [0] * count:
            if len(ports) == count:
                break
            # Port 0, any free port, is the last resort of a machine with an unusual range.
            listener = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind((LOOPBACK, port))
                ports.append(listener.getsockname()[1])
    if len(ports) < count:
        raise LocalClusterError(
            f"found only {len(ports)} of {count} free loopback ports",
            remedy="end some servers on this machine",
        )
    return tuple(ports)


def _first_outgoing_port() -> int:
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
