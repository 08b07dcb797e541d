"""The line to another node's heartbeat: one HTTP request whose answer does not end.

Straight to the admin port, whatever proxy the environment names. Nothing here decides anything
(`replication/pulse.py` does), raises, or waits longer than it is told.
"""

import asyncio
import hashlib
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

from delayd.node.election.heartbeat import BEAT, CUT_OFF, FAREWELL
from replication import pulse

LINE_BYTES_MAX = 4096
TLS = "https://"


class Place(NamedTuple):
    """Where a life answers."""

    host: str
    port: int
    certificate: str | None = None
    """The SHA-256 of the certificate that it must show; None: it speaks no TLS."""

    @classmethod
    def of(cls, admin: str) -> "Place | None":
        """Return the place that a node announces (`delayd.cluster.admin_client`); None if that is
        no address."""
        address = admin.removeprefix(TLS)
        certificate, _, address = address.rpartition("@")
        host, _, port = address.rpartition(":")
        if not host or "/" in host or not port.isdecimal():
            return None
        if bool(certificate) is not admin.startswith(TLS):
            return None
        return cls(host, int(port), certificate or None)


Heard = Callable[[int], pulse.Heard]
"""What was heard: a fact that still lacks its time."""


_STATUS: Mapping[bytes, Heard] = {b"200": pulse.Answered, b"404": pulse.Replaced}
"""What a status says of the life that was asked for; any other says nothing."""


class Line(Protocol):
    """One connection that the other life has answered."""

    place: Place
    """Where it was answered: an address, where the one that was asked for may have been a name."""

    async def hear(self, within_ms: int) -> Heard:
        """Return what comes next: Beaten, CutOff, Silent, Ended or Parted."""

    def close(self) -> None:
        """Hang up."""


class Opened(NamedTuple):
    """What came of an attempt to connect."""

    heard: Heard
    """Answered, Refused, Replaced, Unanswered or Ended."""
    line: Line | None
    """If it was answered."""


class Exchange(Protocol):
    """Connects to nodes."""

    async def open(self, place: Place, life: str, lease_id: int, within_ms: int) -> Opened:
        """Ask for the pulse of a life, and for the farewell of its leadership under a lease."""


class HttpExchange:
    """The exchange over TCP."""

    def __init__(self) -> None:
        self._names = _Names()

    async def open(self, place: Place, life: str, lease_id: int, within_ms: int) -> Opened:
        """See the port."""
        line = _HttpLine(lease_id)
        try:
            async with asyncio.timeout(within_ms / 1000):
                heard = await line.ask(await self._names.address(place), life)
        except ConnectionRefusedError:
            heard = pulse.Refused
        except (ConnectionError, asyncio.IncompleteReadError):
            heard = pulse.Ended
        except (OSError, ValueError, IndexError, asyncio.LimitOverrunError):
            heard = pulse.Unanswered
        if heard is pulse.Answered:
            return Opened(heard, line)
        self._names.turn += 1
        line.close()
        return Opened(heard, None)


class _HttpLine:
    """One connection to an admin port."""

    def __init__(self, lease_id: int) -> None:
        self._farewell = FAREWELL % lease_id
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.place = Place("", 0)

    async def ask(self, place: Place, life: str) -> Heard:
        """Connect and ask; raise what connections and broken answers raise."""
        self._reader, self._writer = await asyncio.open_connection(
            place.host, place.port, limit=LINE_BYTES_MAX, ssl=place.certificate and _any_context()
        )
        self.place = place
        if place.certificate is not None:
            shown = self._writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            if hashlib.sha256(shown or b"").hexdigest() != place.certificate:
                return pulse.Replaced
        asks = f"GET /pulse/{life} HTTP/1.1\r\nHost: {place[0]}:{place[1]}\r\n\r\n"
        self._writer.write(asks.encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        return _STATUS.get(head.split(maxsplit=2)[1], pulse.Unanswered)

    async def hear(self, within_ms: int) -> Heard:
        """See the port. Between the lines stands what HTTP frames them with."""
        assert self._reader is not None, "it was answered"
        try:
            async with asyncio.timeout(within_ms / 1000):
                while True:
                    line = await self._reader.readuntil()
                    if line == self._farewell:
                        return pulse.Parted
                    if line == BEAT:
                        return pulse.Beaten
                    if line == CUT_OFF:
                        return pulse.CutOff
        except TimeoutError:
            pass  # Ours, or the kernel's: then the connection is broken for good.
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return pulse.Ended
        return pulse.Silent if self._reader.exception() is None else pulse.Ended

    def close(self) -> None:
        """See the port."""
        if self._writer is not None:
            self._writer.transport.abort()  # A farewell of TLS would wait for the other side.


def _any_context() -> ssl.SSLContext:
    """Return TLS that trusts whoever it is: the digest tells which certificate it must be."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class _Names:
    """Looks up names of hosts, one at a time, in a thread that nothing waits for: a name server
    that hangs must not hold up calls to etcd, nor the end of the node."""

    def __init__(self) -> None:
        self._asked: asyncio.Future[Place] | None = None
        self.turn = 0
        """Which of a name's addresses is the next: a node need not listen at all of them."""

    async def address(self, place: Place) -> Place:
        """Return host and port with an address in place of the name; OSError if it has none."""
        if self._asked is not None and not self._asked.done():
            raise OSError("the last name is still being looked up")
        loop = asyncio.get_running_loop()
        asked, turn = loop.create_future(), self.turn
        self._asked = asked
        asked.add_done_callback(lambda _: asked.cancelled() or asked.exception())

        def settle(found: Place | OSError) -> None:
            if asked.cancelled():
                return
            if isinstance(found, OSError):
                asked.set_exception(found)
            else:
                asked.set_result(found)

        def look_up() -> None:
            found: Place | OSError
            try:
                asked_for = place.host, place.port
                known = socket.getaddrinfo(*asked_for, type=socket.SOCK_STREAM)
                found = place._replace(host=str(known[turn % len(known)][4][0]))
            except (OSError, ValueError) as error:
                found = OSError(str(error))
            with suppress(RuntimeError):  # The loop was closed meanwhile.
                loop.call_soon_threadsafe(settle, found)

        threading.Thread(target=look_up, name="pulse-name", daemon=True).start()
        return await asyncio.shield(asked)
