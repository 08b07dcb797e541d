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
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

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


class Event(NamedTuple):
    """`number` is of the request or the transaction; `told` is what else the kind has."""

    at_ms: int
    what: What
    client: str
    number: int
    told: Mapping[str, Any]

    def to_json(self) -> str:
        """One line."""
        head = {"at_ms": self.at_ms, "what": self.what.value, "client": self.client}
        return json.dumps({**head, "number": self.number, **self.told})


@dataclass(slots=True)
class Sent:
    """A request as its client knows it."""

    client: str
    key: bytes | None
    value: bytes | None
    at_ms: int
    transaction: int = NO_TRANSACTION
    place: str | None = None
    """Its place by its acknowledgement: `partition/offset`."""
    stored_ms: int | None = None
    """When that came."""
    trouble: str | None = None


class History:
    """Written by any thread. `to` gets each event as it comes."""

    def __init__(self, to: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._file = to.open("w") if to is not None else None
        self._requests: list[Sent] = []
        self._transactions: list[What] = []
        self._received: list[Event] = []

    def sent(
        self,
        client: str,
        key: bytes | None,
        value: bytes | None,
        transaction: int = NO_TRANSACTION,
    ) -> int:
        """A request's number, for `stored` or `doubtful`. To be called before it is sent."""
        with self._lock:
            number, at_ms = len(self._requests), now_ms()
            self._requests.append(Sent(client, key, value, at_ms, transaction))
            told = {"key": _text(key), "value": _text(value), "transaction": transaction}
            self._write(Event(at_ms, What.SENT, client, number, told))
        return number

    def stored(self, number: int, partition: int, offset: int) -> None:
        """The broker has acknowledged it."""
        with self._lock:
            request, at_ms = self._requests[number], now_ms()
            request.place, request.stored_ms = f"{partition}/{offset}", at_ms
            told = {"place": request.place}
            self._write(Event(at_ms, What.STORED, request.client, number, told))

    def doubtful(self, number: int, why: str) -> None:
        """Its client was told that it failed, and cannot know."""
        with self._lock:
            request = self._requests[number]
            request.trouble = why
            event = Event(now_ms(), What.DOUBTFUL, request.client, number, {"why": why})
            self._write(event)

    def began(self, client: str) -> int:
        """A transaction's number, for its requests and for `ended`."""
        with self._lock:
            number = len(self._transactions)
            self._transactions.append(What.UNKNOWN)
            self._write(Event(now_ms(), What.BEGAN, client, number, {}))
        return number

    def ended(self, client: str, number: int, how: What) -> None:
        """How it ended, as its client was told."""
        assert how in (What.COMMITTED, What.ABORTED, What.UNKNOWN), how
        with self._lock:
            self._transactions[number] = how
            self._write(Event(now_ms(), how, client, number, {}))

    def received(self, client: str, topic: str, place: str, source: str | None) -> None:
        """A consumer got a record."""
        told = {"topic": topic, "place": place, "source": source}
        with self._lock:
            event = Event(now_ms(), What.RECEIVED, client, len(self._received), told)
            self._received.append(event)
            self._write(event)

    def requests(self) -> tuple[Sent, ...]:
        """All that were sent so far, by their numbers."""
        with self._lock:
            return tuple(self._requests)

    def transaction(self, number: int) -> What:
        """How it ended; UNKNOWN while it is open."""
        with self._lock:
            return self._transactions[number]

    def receipts(self) -> tuple[Event, ...]:
        """All that consumers received, in order."""
        with self._lock:
            return tuple(self._received)

    def close(self) -> None:
        """Nothing more is written."""
        if self._file is not None:
            self._file.close()

    def _write(self, event: Event) -> None:
        if self._file is not None:
            self._file.write(event.to_json() + "\n")


def now_ms() -> int:
    """Unix ms by this machine's clock."""
    return time.time_ns() // 1_000_000


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("utf-8", "backslashreplace")
