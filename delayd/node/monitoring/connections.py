"""Connections to the admin port: how many, and how long a silent one may stay.

They share the limit of open files with the wheel, so no client may hold one for nothing. Requests
themselves are bounded elsewhere (`delayd.node.monitoring.api.intake`).

Invariants: a connection without a whole request head ends after HEAD_TIMEOUT_S, whatever trickles
in, and one whose client takes no bytes after STALL_TIMEOUT_S; at most CONNECTIONS_MAX are open, and
the one that has waited longest for a request makes room for a new one. A probe or another member
is so never kept out by silence.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX: Final = 256
"""A quarter of the usual limit of open files."""
HEAD_TIMEOUT_S: Final = 10.0
STALL_TIMEOUT_S: Final = 60.0
LOOKS: Final = 4
"""How often a connection is looked at within HEAD_TIMEOUT_S."""


PEER_NAMES: Final = "peer_names"
"""In the state of a request: the names of the certificate that the client has shown."""


def names_of(certificate: Mapping[str, Any]) -> frozenset[str]:
    """Return the common names of a certificate, as `ssl` gives it, and its alternative names that
    are DNS names or URIs."""
    common = {
        value
        for part in certificate.get("subject", ())
        for kind, value in part
        if kind == "commonName"
    }
    kinds = ("DNS", "URI")
    other = {value for kind, value in certificate.get("subjectAltName", ()) if kind in kinds}
    return frozenset(common | other)


class BoundedConnection(H11Protocol):
    """One connection. Lives on the event loop."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._silent_since_s = 0.0
        """When it was opened, or its last answer ended."""
        self._stalled_since_s: float | None = None
        self._next_look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it in, and let go of another one if there are too many."""
        if len(self.connections) >= CONNECTIONS_MAX and not self._make_room():
            transport.abort()
        super().connection_made(transport)
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self.app_state = {**self.app_state, PEER_NAMES: names_of(certificate)}
        self._silent_since_s = self.loop.time()
        self._look()

    def _make_room(self) -> bool:
        """Let go of the connection that has waited longest for a request; False if none waits."""
        others = [each for each in self.connections if isinstance(each, BoundedConnection)]
        silent = [each for each in others if each.is_silent]
        if not silent:
            return False
        longest = min(silent, key=lambda each: each._silent_since_s)
        self.connections.discard(longest)  # It is lost a moment later.
        longest.transport.abort()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop looking."""
        if self._next_look is not None:
            self._next_look.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._silent_since_s = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        self._stalled_since_s = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """It took some."""
        self._stalled_since_s = None
        super().resume_writing()

    @property
    def is_silent(self) -> bool:
        """True while no request is under way."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def _look(self) -> None:
        now_s = self.loop.time()
        stalled_since_s = self._stalled_since_s
        if (self.is_silent and now_s - self._silent_since_s >= HEAD_TIMEOUT_S) or (
            stalled_since_s is not None and now_s - stalled_since_s >= STALL_TIMEOUT_S
        ):
            self.transport.abort()
            return
        self._next_look = self.loop.call_later(HEAD_TIMEOUT_S / LOOKS, self._look)
