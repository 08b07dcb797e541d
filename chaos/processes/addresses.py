"""Brokers that nodes find by name, and that move to other addresses, as pods do.

    node -> broker-2.test -> a hosts file -> 127.0.1.2:port      the broker's listener for nodes
                                             127.0.2.2:port      the same, once it has moved

Connections to where a broker was hang, and none is refused: a listener whose queue is full stands
there. The hosts file is mounted over /etc/hosts for the nodes only, which needs root.

Not here: ending and starting the brokers.

Invariant: a name leads to the old address until the broker that has moved answers, which is the
worst that a name server does.
"""

import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chaos.backend import BackendError
from delayd.dev.ports import LOOPBACK
from delayd.dev.startup import Servers

_MOUNT: Final = 'mount --bind "$0" /etc/hosts && exec "$@"'
LISTENER: Final = "NAMED"


class BrokerAddresses:
    """Where the brokers of one cluster are for its nodes. `close` gives the ports back."""

    def __init__(self, directory: Path, servers: Servers, ports: Sequence[int]) -> None:
        """Give each broker a listener at one of the ports; the configuration is written already."""
        self._config = directory / "config"
        self._hosts = directory / "config" / "hosts"
        self._servers = servers
        self._ports = dict(zip((part.name for part in servers.kafka.brokers), ports, strict=True))
        self._moves = dict.fromkeys(self._ports, 0)
        self._held: list[socket.socket] = []
        for broker in self._ports:
            self._configure(broker)
        self._name()

    @property
    def bootstrap(self) -> str:
        """All brokers by name."""
        return ",".join(f"{broker}.test:{port}" for broker, port in self._ports.items())

    def command(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return the command of a process that finds them, and keeps its process id."""
        unshare = shutil.which("unshare")
        if unshare is None:
            raise BackendError("unshare, which gives nodes a hosts file, is missing")
        own = (unshare, "--mount", "--propagation", "private", "/bin/sh", "-c", _MOUNT)
        return (*own, str(self._hosts), *command)

    def leave(self, broker: str) -> None:
        """Have a broker that does not run start elsewhere; let connections to here hang."""
        hole = socket.socket()
        hole.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.append(hole)
        hole.bind((self._address(broker), self._ports[broker]))
        hole.listen(0)
        self._held.append(socket.create_connection(hole.getsockname()))
        self._moves[broker] += 1
        self._configure(broker)

    def arrive(self) -> None:
        """Have the names lead to where the brokers are now."""
        self._name()

    def close(self) -> None:
        """End what stands at old addresses."""
        for each in self._held:
            each.close()

    def _address(self, broker: str) -> str:
        return f"127.0.{1 + self._moves[broker]}.{broker.rpartition('-')[2]}"

    def _name(self) -> None:
        lines = [f"{LOOPBACK} localhost", *(f"{self._address(b)} {b}.test" for b in self._ports)]
        with self._hosts.open("w") as file:  # In place: a mount holds on to the file.
            file.writelines(f"{line}\n" for line in lines)

    def _configure(self, broker: str) -> None:
        """A later property replaces an earlier one."""
        of_broker = self._servers.kafka.ports[int(broker.rpartition("-")[2]) - 1]
        plain = f"PLAINTEXT://{LOOPBACK}:{of_broker.client}"
        here = f"{LISTENER}://{self._address(broker)}:{self._ports[broker]}"
        named = f"{LISTENER}://{broker}.test:{self._ports[broker]}"
        protocols = ",".join(f"{each}:PLAINTEXT" for each in ("PLAINTEXT", "CONTROLLER", LISTENER))
        with (self._config / f"{broker}.properties").open("a") as file:
            file.write(
                f"listeners={plain},CONTROLLER://{LOOPBACK}:{of_broker.controller},{here}\n"
                f"advertised.listeners={plain},{named}\n"
                f"listener.security.protocol.map={protocols}\n"
            )
