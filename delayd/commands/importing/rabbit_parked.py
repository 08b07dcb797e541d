"""The queue of RabbitMQ into which an import moves messages, and what it writes on them.

A policy may be for this queue, too, whatever its name: then RabbitMQ may drop what is moved, with
no word to whoever moves it by a transaction. So each lot goes into a trial queue first, as many
messages of as many bytes: the trial is of a name, and of arguments, by which the same policies are
for it. What does not stay there is not moved. A TTL that is longer than a trial is not seen.

Source: docs/guides/importing.md, "RabbitMQ".
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

from delayd.commands.importing.amqp_server import AmqpServer
from delayd.commands.importing.rabbit_times import published_ms
from delayd.errors import ConfigError
from delayd.runtime.clock import wait_until

Fetched: TypeAlias = tuple[Any, Any, bytes]
"""Method, properties, body, as pika has them."""

MADE: Final = "x-delayd-"
"""Headers of what is parked, beside those that it had."""
COPIES: Final = ("CC", "BCC")
"""Headers by which RabbitMQ would send what is parked elsewhere, too."""
MESSAGES_MAX: Final = 500
"""Tried, or moved, by one commit."""
SETTLES_MS: Final = 5_000
"""Until a count shows what was committed."""
POLL_MS: Final = 50
ARGUMENTS: Final = {
    "x-queue-type": "classic",  # a transaction of AMQP knows no other
    "x-overflow": "reject-publish",
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "delayd-import.none",
}
"""They go before a policy: nothing that is parked is dropped for what comes behind it, or comes
back to those who work."""


def parked_name(token: str) -> str:
    """Return the name: nothing of that of the old queue, whose policies know it by its name."""
    return f"delayd-import.{token}"


class Parking:
    """Moves messages, lot by lot. A context manager, used once."""

    def __init__(self, server: AmqpServer, source: str, parked: str) -> None:
        """`source`: as people name it."""
        self._server = server
        self._source = source
        self._parked = parked
        self._trial = f"{parked}.trial"
        with server.channel() as channel:
            channel.queue_declare(parked, durable=True, arguments=ARGUMENTS)
            # With the connection it goes.
            channel.queue_declare(self._trial, durable=True, exclusive=True, arguments=ARGUMENTS)
        self._before, _ = server.counts_of(parked) or (0, 0)
        self._tried = 0

    def __enter__(self) -> "Parking":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.delete(self._trial)

    @property
    def before(self) -> int:
        """How many an earlier run has moved: they must be tried again."""
        return self._before

    def try_(self, bodies: Iterable[bytes]) -> None:
        """Raise ConfigError if RabbitMQ would not keep messages of these sizes, too."""
        left = iter(bodies)
        with self._server.channel() as channel:
            channel.tx_select()
            while lot := [len(body) for body in islice(left, MESSAGES_MAX)]:
                for size in lot:
                    channel.basic_publish("", self._trial, bytes(size))
                self._tried += len(lot)
                if not self._server.committed(channel) or not self._holds(self._trial, self._tried):
                    raise ConfigError(
                        f"{self._source}: RabbitMQ does not keep what is put into {self._parked};"
                        f" {self._before:,} messages are there, all others are where they were",
                        remedy="end the policy with a length or a TTL that is for it, and --resume",
                    )

    def move(self, channel: Any, lot: Sequence[tuple[int, Fetched]]) -> None:
        """Move what was fetched, each with its delivery tag, by one commit of a channel in a
        transaction. ConfigError, with nothing moved, if it would not stay."""
        self.try_(body for _, (_, _, body) in lot)
        for tag, (method, properties, body) in lot:
            _mark(method, properties)
            channel.basic_publish("", self._parked, body, properties)
            channel.basic_ack(tag)
        self._before += len(lot)
        if not self._server.committed(channel) or not self._holds(self._parked, self._before):
            found, _ = self._server.counts_of(self._parked) or (0, 0)
            raise ConfigError(
                f"{self._source}: of {self._before:,} messages that were moved into {self._parked}"
                f" {found:,} are there",
                remedy="somebody changed a policy, or the queue: import what is there as a source",
            )

    def _holds(self, queue: str, many: int) -> bool:
        return wait_until(
            lambda: (self._server.counts_of(queue) or (0, 0))[0] == many, SETTLES_MS, POLL_MS
        )


def _mark(method: Any, properties: Any) -> None:
    """Have properties say what a move would change; have nothing expire."""
    given: Mapping[str, Any] = properties.headers or {}
    headers = {name: each for name, each in given.items() if name not in COPIES}
    if f"{MADE}id" not in given:  # it may have been parked before
        made = {
            **{name.lower(): given[name] for name in COPIES if name in given},
            "id": uuid.uuid4().hex[:16],
            "published-ms": published_ms(given, properties.timestamp),  # RabbitMQ may stamp it anew
            "expiration": properties.expiration,
            "user-id": properties.user_id,  # RabbitMQ takes no other than ours
            "exchange": method.exchange,
            "routing-key": method.routing_key,
        }
        headers |= {f"{MADE}{name}": each for name, each in made.items() if each is not None}
    properties.headers = headers
    properties.expiration = properties.user_id = None
    properties.delivery_mode = 2
