"""What each client saw, and when: one event a line, in the order in which it was seen.

    sent       a request was handed to a producer: number, client, key, value, at
    stored     its acknowledgement came: place in the buffer, append time of the broker
    doubtful   an error came instead: it may be in the buffer or not
    began, committed, aborted, unknown
               a user's transaction, by its number; requests name theirs
    received   a consumer of targets, dead letters or receipts got a record: topic, place, source

Times are Unix ms by the clock of the clients' machine. acknowledgements.py compares it with the
log.

Invariant: events of one request come in the order above, whatever thread they are seen by.
"""

import json
import threading
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

NO_TRANSACTION: Final = -1


class What(Enum):
    """The kinds of events."""

    SENT = "sent"
    STORED = "stored"
    DOUBTFUL = "doubtful"
    BEGAN = "began"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    RECEIVED = "received"


class Received(NamedTuple):
    """A record as a consumer got it."""

    at_ms: int
    client: str
    topic: str
    place: str
    source: str | None


@dataclass(slots=True)
class Sent:
    """A request as its client knows it."""

    client: str
    key: bytes | None
    value: bytes | None
    transaction: int = NO_TRANSACTION
    place: str | None = None
    """Its place by its acknowledgement: `partition/offset`."""
    trouble: str | None = None


class History:
    """Written by any thread. `to` gets each event as it comes."""

    def __init__(self, to: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._file = to.open("w") if to is not None else None
        self._requests: list[Sent] = []
        self._transactions: list[What] = []
        self._received: list[Received] = []

    def sent(
        self,
        client: str,
        key: bytes | None,
        value: bytes | None,
        transaction: int = NO_TRANSACTION,
    ) -> int:
        """A request's number, for `stored` or `doubtful`. To be called before it is sent."""
        told = {"key": _text(key), "value": _text(value), "transaction": transaction}
        with self._lock:
            number = len(self._requests)
            self._requests.append(Sent(client, key, value, transaction))
            self._write(What.SENT, client, number, **told)
        return number

    def stored(self, number: int, partition: int, offset: int) -> None:
        """The broker has acknowledged it."""
        with self._lock:
            request = self._requests[number]
            request.place = f"{partition}/{offset}"
            self._write(What.STORED, request.client, number, place=request.place)

    def doubtful(self, number: int, why: str) -> None:
        """Its client was told that it failed, and cannot know."""
        with self._lock:
            request = self._requests[number]
            request.trouble = why
            self._write(What.DOUBTFUL, request.client, number, why=why)

    def began(self, client: str) -> int:
        """A transaction's number, for its requests and for `ended`."""
        with self._lock:
            number = len(self._transactions)
            self._transactions.append(What.UNKNOWN)
            self._write(What.BEGAN, client, number)
        return number

    def ended(self, client: str, number: int, how: What) -> None:
        """How it ended, as its client was told."""
        assert how in (What.COMMITTED, What.ABORTED, What.UNKNOWN), how
        with self._lock:
            self._transactions[number] = how
            self._write(how, client, number)

    def received(self, client: str, topic: str, place: str, source: str | None) -> None:
        """A consumer got a record."""
        with self._lock:
            number, told = len(self._received), {"topic": topic, "place": place, "source": source}
            at_ms = self._write(What.RECEIVED, client, number, **told)
            self._received.append(Received(at_ms, client, topic, place, source))

    def requests(self) -> tuple[Sent, ...]:
        """All that were sent so far, by their numbers."""
        with self._lock:
            return tuple(self._requests)

    def transaction(self, number: int) -> What:
        """How it ended; UNKNOWN while it is open."""
        with self._lock:
            return self._transactions[number]

    def receipts(self) -> tuple[Received, ...]:
        """All that consumers received, in order."""
        with self._lock:
            return tuple(self._received)

    def close(self) -> None:
        """Nothing more is written."""
        if self._file is not None:
            self._file.close()

    def _write(self, what: What, client: str, number: int, **told: object) -> int:
        """Write an event as one line; return its time. The caller holds the lock."""
        at_ms = now_ms()
        if self._file is not None:
            head = {"at_ms": at_ms, "what": what.value, "client": client, "number": number}
            self._file.write(json.dumps({**head, **told}) + "\n")
        return at_ms


def now_ms() -> int:
    """Unix ms by this machine's clock."""
    return time.time_ns() // 1_000_000


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("utf-8", "backslashreplace")
