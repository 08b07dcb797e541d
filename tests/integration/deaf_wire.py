"""A wire to a broker on which fetches can be made to hang, and nothing else.

A fetch that hangs is never answered, while the same broker answers every other request. So a
client's connections are up, it hears who leads and where logs end, and reads nothing: what a reader
looks like that its driver has forgotten.

Not here: whole connections that are cut (`chaos.network`).
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Final, TypeAlias

LOOPBACK: Final = "127.0.0.1"
FETCH: Final = 1
"""Kafka's number of the request, in the first two bytes of it."""
LENGTH_BYTES: Final = 4
Pump: TypeAlias = Callable[[socket.socket, socket.socket], None]


class DeafWire:
    """Listens on a loopback port and passes on to another; `hang` may be set at any time."""

    def __init__(self, port: int, server_port: int) -> None:
        self._server_port = server_port
        self.hang = threading.Event()
        """Set: fetches get lost."""
        self.lost_count = 0
        """Fetches that got lost. A client has one under way at each broker, so it hears of nothing
        new once one of its own is among them."""
        self._listener = socket.create_server((LOOPBACK, port))
        self._open: set[socket.socket] = {self._listener}
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection((LOOPBACK, self._server_port))
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._open |= {client, server}
                for pump, ends in ((self._up, (client, server)), (self._down, (server, client))):
                    threading.Thread(target=self._pump, args=(pump, *ends), daemon=True).start()

    def _pump(self, pump: Pump, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            pump(source, sink)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on whole requests, but for fetches while they hang."""
        with client.makefile("rb") as requests:
            while length := requests.read(LENGTH_BYTES):
                request = requests.read(int.from_bytes(length, "big"))
                is_fetch = int.from_bytes(request[:2], "big") == FETCH
                if is_fetch and self.hang.is_set():
                    self.lost_count += 1
                else:
                    server.sendall(length + request)

    def _down(self, server: socket.socket, client: socket.socket) -> None:
        while chunk := server.recv(1 << 16):
            client.sendall(chunk)
