"""Rows of a queue of RabbitMQ in which messages wait until their time to live is over.

Taken is a message by a transaction of AMQP: one commit publishes it into a queue of the import's
own, where it lives for ever, and acknowledges it in the old one. Until then an end of the
connection gives it back to the old queue; its expiry is what it was.

A client is not told when a message came into its queue: the due time is that of its publisher, by
a timestamp, plus its time to live.

Messages are fetched one by one, without a consumer: with its last consumer RabbitMQ deletes a
queue that is `auto-delete`.

Source: docs/guides/importing.md, "RabbitMQ".
"""

import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from delayd.commands.importing.amqp_server import AmqpServer
from delayd.commands.importing.contents import fields_of
from delayd.commands.importing.job import Kept
from delayd.commands.importing.mapping import Row
from delayd.commands.importing.rabbit_parked import (
    MADE,
    MESSAGES_MAX,
    Fetched,
    Parking,
    parked_name,
)
from delayd.commands.importing.rabbit_times import due_ms, published_ms
from delayd.errors import ConfigError, SourceUnreachableError
from delayd.runtime.clock import wait_until

KIND: Final = "rabbitmq"
STILL_MS: Final = 60_000
"""Without messages that must be there."""
POLL_MS: Final = 100


class RabbitRows:
    """The messages of one queue, in their order. The position is how many are behind, of how many,
    and the sum of their names: `500/100000/81985529216486895`."""

    def __init__(self, server: AmqpServer, queue: str, ttl_ms: int | None = None) -> None:
        """`ttl_ms`: of the queue, `x-message-ttl`. ConfigError if there is no such queue."""
        self._server = server
        self._queue = queue
        self._ttl_ms = ttl_ms
        self._token: str | None = None
        self._total = 0
        self.name = f"{KIND}:{queue} at {server.name}"
        self.start: str | None = None
        self.disarms = True
        if server.counts_of(queue) is None:
            raise ConfigError(
                f"{self.name}: there is no such queue", remedy="name it as RabbitMQ has it"
            )

    def identity(self, known: str | None = None) -> str:
        """Return by what the parked queue is known again."""
        self._token = known or uuid.uuid4().hex[:8]
        return self._token

    def disarm(self) -> str:
        """Move messages into the parked queue. ConfigError if somebody consumes the old one."""
        ready, consumers = self._server.counts_of(self._queue) or (0, 0)
        if consumers:
            raise ConfigError(
                f"{self.name} has {consumers} consumers: messages do not wait there",
                remedy="name the queue in which they wait, or stop its consumers and --resume",
            )
        with Parking(self._server, self.name, self._parked) as parking:
            parking.try_(each[2] for each in self._messages(self._parked, parking.before))
            with self._server.channel() as channel:
                channel.tx_select()
                while ready and (lot := _fetched(channel, self._queue, min(MESSAGES_MAX, ready))):
                    parking.move(channel, lot)
                    ready -= len(lot)
        self._total = self._counted(self._parked)
        return f"0/{self._total}/0"

    def kept(self) -> Kept:
        """Return what is parked, and what is in the queue again."""
        found, consumers = self._server.counts_of(self._queue) or (0, 0)
        rest = f"{found:,} messages and {consumers:,} consumers" if found or consumers else ""
        return Kept(self._parked, self._counted(self._parked), rest)

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def rows(self, after: str | None) -> Iterator[Row]:
        """Yield the messages behind a position. ConfigError if the queue is not what it was."""
        if after is None:
            yield from self._rows_of_now()
            return
        behind, total, wanted = map(int, after.split("/"))
        self._total = total
        if (found := self._counted(self._parked)) != total:
            raise self._changed(f"holds {found:,} messages and not {total:,}")
        index = names = 0
        for method, properties, body in self._messages(self._parked, total):
            index += 1
            names += _name_of(properties)
            if index == behind and names != wanted:
                raise self._changed("has its messages in another order")
            if index > behind:
                place = f"{index}/{total}/{names}"
                yield self._row(place, f"message {index}", method, properties, body)
        if index < total:
            raise SourceUnreachableError(
                f"{self._parked} at {self._server.name} gave {index:,} of {total:,} messages",
                remedy="nothing is lost: --resume goes on",
            )

    @property
    def _parked(self) -> str:
        assert self._token is not None, "an import has an identity"
        return parked_name(self._token)

    def _changed(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self._parked} at {self._server.name} {what}",
            remedy=f"import {KIND}:{self._parked} itself with another --job: ids are known again",
        )

    def _counted(self, queue: str) -> int:
        """Return how many messages a queue has: those that were fetched are on their way back."""
        count = 0

        def is_whole() -> bool:
            nonlocal count
            count, _ = self._server.counts_of(queue) or (0, 0)
            return count >= self._total

        wait_until(is_whole, STILL_MS, POLL_MS)
        return count

    def _messages(self, queue: str, many: int) -> Iterator[Fetched]:
        with self._server.channel() as channel:
            while many and (lot := _fetched(channel, queue, min(MESSAGES_MAX, many))):
                many -= len(lot)
                yield from (message for _, message in lot)

    def _rows_of_now(self) -> Iterator[Row]:
        ready, _ = self._server.counts_of(self._queue) or (0, 0)
        messages = self._messages(self._queue, ready)
        for index, (method, properties, body) in enumerate(messages, 1):
            yield self._row("", f"message {index}", method, properties, body)

    def _row(self, position: str, name: str, method: Any, properties: Any, body: bytes) -> Row:
        headers: Mapping[str, Any] = properties.headers or {}
        expiration = headers.get(f"{MADE}expiration", properties.expiration)
        if f"{MADE}id" in headers:
            came_ms = headers.get(f"{MADE}published-ms")
        else:
            came_ms = published_ms(headers, properties.timestamp)
        told = {
            "message_id": properties.message_id,
            "correlation_id": properties.correlation_id,
            "type": properties.type,
            "expiration": expiration,
            "headers": headers,
            "exchange": headers.get(f"{MADE}exchange", method.exchange),
            "routing_key": headers.get(f"{MADE}routing-key", method.routing_key),
        }
        fields: dict[str, Any] = {
            **_plain(told),
            "due_ms": due_ms(came_ms, expiration, self._ttl_ms),
            "_id": headers.get(f"{MADE}id", name),
        }
        return Row(position, name, fields | fields_of({"body": body}), body)


def _fetched(channel: Any, queue: str, many: int) -> list[tuple[int, Fetched]]:
    """Return so many, each with its delivery tag, or fewer if it has no more."""
    lot: list[tuple[int, Fetched]] = []
    while len(lot) < many:
        method, properties, body = channel.basic_get(queue)
        if method is None:
            break
        lot.append((method.delivery_tag, (method, properties, body)))
    return lot


def _name_of(properties: Any) -> int:
    return int(str((properties.headers or {}).get(f"{MADE}id", "0")), 16)


def _plain(value: Any) -> Any:
    """Return what an AMQP table holds as JSON has it."""
    if isinstance(value, Mapping):
        return {str(_plain(name)): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value) if isinstance(value, datetime | Decimal) else value
