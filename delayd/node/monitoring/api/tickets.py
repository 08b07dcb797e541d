"""Tickets: a link that shows one page for a while, to a browser that can send no token with it.

Invariant: a ticket leads to its page only, and ends after TICKET_MS or with the process.
"""

import hmac
import secrets
from typing import Final

from delayd.node.monitoring.api.problems import NotKnownError
from delayd.runtime.clock import Clock

TICKET_MS: Final = 600_000
"""Longer than a console takes to renew its links; short beside the life of a token."""


class Tickets:
    """Leave to see one page for a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)

    def path(self, id: str) -> str:
        """Return the path of a page, with a ticket for it."""
        until_ms = str(self._clock.monotonic_ms() + TICKET_MS)
        return f"/audits/{id}/{until_ms}.{self._mac(id, until_ms)}"

    def check(self, id: str, ticket: str) -> None:
        """Raise NotKnownError unless the ticket is one for this page, and holds still."""
        until_ms, _, mac = ticket.partition(".")
        is_ours = hmac.compare_digest(mac.encode(), self._mac(id, until_ms).encode())
        if not is_ours or int(until_ms) < self._clock.monotonic_ms():
            raise NotKnownError(
                "this link has ended, or the node was started again",
                remedy="open the report from the console",
            )

    def _mac(self, id: str, until_ms: str) -> str:
        return hmac.digest(self._key, f"{id} {until_ms}".encode(), "sha256").hex()
