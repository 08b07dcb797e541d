"""Rows of a queue of RabbitMQ in which messages wait until their time to live is over.

Taken is a message by a transaction of AMQP: one commit publishes it into a queue of the import's
own, where it lives for ever, and acknowledges it in the old one. Until then an end of the
connection gives it back to the old queue; its expiry is what it was.

A client is not told when a message came into its queue: the due time is that of its publisher, by
a timestamp, plus its time to live.

Source: docs/guides/importing.md, "RabbitMQ".
"""

import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from delayd.commands.importing.amqp_server import AmqpServer
from delayd.commands.importing.contents import fields_of
from delayd.commands.importing.job import Kept
from delayd.commands.importing.mapping import Row
from delayd.errors import ConfigError, SourceUnreachableError
from delayd.runtime.clock import SystemClock, wait_until

MESSAGES_MAX: Final = 500
"""Taken by one commit, and fetched ahead."""
KIND: Final = "rabbitmq"
STILL_MS: Final = 60_000
"""Without a message that must be there."""
ENDS_MS: Final = 2_000
"""Without a message in a queue from which they go by themselves."""
POLL_MS: Final = 100
MADE: Final = "x-delayd-"
"""Headers of what is parked, beside those that it had."""
COPIES: Final = ("CC", "BCC")
"""Headers by which RabbitMQ would send what is parked elsewhere, too."""
TIMESTAMP_MS: Final = "timestamp_in_ms"
"""The header that RabbitMQ writes itself, if it was told to."""


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
        with self._server.channel() as channel:
            channel.queue_declare(self._parked, durable=True)
            channel.tx_select()
            fetched = _Fetched(self._server, channel, self._queue)
            taken = 0
            while taken < ready:
                some = fetched.next(min(MESSAGES_MAX, ready - taken), ENDS_MS)
                for tag, method, properties, body in some:
                    self._park(channel, method, properties, body)
                    channel.basic_ack(tag)
                channel.tx_commit()
                taken += len(some)
                if not some:
                    break
        self._total = self._counted(self._parked)
        return f"0/{self._total}/0"

    def kept(self) -> Kept:
        """Return what is parked."""
        return Kept(self._parked, self._counted(self._parked))

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
        for method, properties, body in self._messages(self._parked, total, STILL_MS):
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
        return f"delayd-import.{self._token}.{self._queue}"

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

    def _messages(self, queue: str, many: int, still_ms: int) -> Iterator[tuple[Any, Any, bytes]]:
        with self._server.channel() as channel:
            fetched = _Fetched(self._server, channel, queue)
            while many and (some := fetched.next(min(MESSAGES_MAX, many), still_ms)):
                many -= len(some)
                for _, method, properties, body in some:
                    yield method, properties, body

    def _rows_of_now(self) -> Iterator[Row]:
        ready, _ = self._server.counts_of(self._queue) or (0, 0)
        messages = self._messages(self._queue, ready, ENDS_MS)
        for index, (method, properties, body) in enumerate(messages, 1):
            yield self._row("", f"message {index}", method, properties, body)

    def _park(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        given: Mapping[str, Any] = properties.headers or {}
        headers = {name: each for name, each in given.items() if name not in COPIES}
        made = {
            **{name.lower(): given[name] for name in COPIES if name in given},
            "id": uuid.uuid4().hex[:16],
            "expiration": properties.expiration,
            "user-id": properties.user_id,  # RabbitMQ takes no other than ours
            "exchange": method.exchange,
            "routing-key": method.routing_key,
        }
        for name, each in made.items():
            if each is not None:
                headers.setdefault(f"{MADE}{name}", each)  # it may have been parked before
        properties.headers = headers
        properties.expiration = properties.user_id = None
        properties.delivery_mode = 2
        channel.basic_publish("", self._parked, body, properties)

    def _row(self, position: str, name: str, method: Any, properties: Any, body: bytes) -> Row:
        headers: Mapping[str, Any] = properties.headers or {}
        expiration = headers.get(f"{MADE}expiration", properties.expiration)
        fields: dict[str, Any] = {
            "message_id": properties.message_id,
            "correlation_id": properties.correlation_id,
            "type": properties.type,
            "expiration": expiration,
            "headers": {name: _plain(each) for name, each in headers.items()},
            "exchange": headers.get(f"{MADE}exchange", method.exchange),
            "routing_key": headers.get(f"{MADE}routing-key", method.routing_key),
            "due_ms": _due_ms(
                _published_ms(headers, properties.timestamp), expiration, self._ttl_ms
            ),
            "_id": headers.get(f"{MADE}id", name),
        }
        return Row(position, name, fields | fields_of({"body": body}), body)


class _Fetched:
    """Messages of a queue, fetched and not acknowledged: each lot by a consumer of its own, which
    gets no more than it may hold."""

    def __init__(self, server: AmqpServer, channel: Any, queue: str) -> None:
        self._server = server
        self._channel = channel
        self._queue = queue
        self._came: deque[tuple[int, Any, Any, bytes]] = deque()

    def next(self, many: int, still_ms: int) -> list[tuple[int, Any, Any, bytes]]:
        """Return so many, or fewer if none came for so long."""
        self._channel.basic_qos(prefetch_count=many)
        tag = self._channel.basic_consume(self._queue, self._take)
        clock = SystemClock()
        until_ms = clock.monotonic_ms() + still_ms
        while len(self._came) < many and clock.monotonic_ms() < until_ms:
            before = len(self._came)
            self._server.wait(POLL_MS)
            if len(self._came) > before:
                until_ms = clock.monotonic_ms() + still_ms
        self._channel.basic_cancel(tag)
        some, self._came = list(self._came), deque()
        return some

    def _take(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._came.append((method.delivery_tag, method, properties, body))


def _name_of(properties: Any) -> int:
    return int(str((properties.headers or {}).get(f"{MADE}id", "0")), 16)


def _published_ms(headers: Mapping[str, Any], timestamp: Any) -> int | None:
    """Return when it was published; of a timestamp in seconds the end of that second: a message is
    never early."""
    if isinstance(exact := headers.get(TIMESTAMP_MS), int):
        return exact
    if isinstance(timestamp, datetime):
        timestamp = int(timestamp.timestamp())
    return (timestamp + 1) * 1000 if isinstance(timestamp, int) else None


def _due_ms(published_ms: int | None, expiration: Any, ttl_ms: int | None) -> int | None:
    own_ms = int(expiration) if str(expiration).isdigit() else None
    lives_ms = [each for each in (own_ms, ttl_ms) if each is not None]
    return None if published_ms is None or not lives_ms else published_ms + min(lives_ms)


def _plain(value: Any) -> Any:
    """Return what an AMQP table holds as JSON has it."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value) if isinstance(value, datetime | Decimal) else value
