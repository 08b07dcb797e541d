"""A RabbitMQ that holds what is imported: its connection, by AMQP 0-9-1.

Source: docs/guides/importing.md, "RabbitMQ".
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from delayd.commands.importing.job import CUT, REFUSED
from delayd.errors import ConfigError, SourceUnreachableError

CONNECT_TIMEOUT_S: Final = 10
BLOCKED_TIMEOUT_S: Final = 60
HEARTBEAT_S: Final = 60
HEARTBEATS: Final = 4
"""As long as so many silences: whoever waits for delayd reads nothing meanwhile."""


class AmqpServer:
    """A connection, used by one thread. Channels are pika's."""

    def __init__(self, url: str, silent_s: float = 0) -> None:
        """`silent_s`: for how long nobody may use it. ConfigError if it is no URL of AMQP, or there
        is no pika. SourceUnreachableError."""
        try:
            # An extra: nodes need none of it.
            import pika
        except ImportError as error:
            raise ConfigError(
                "pika is not installed", remedy="pip install 'delayd[import]'"
            ) from error
        try:
            if not url.startswith(("amqp://", "amqps://")):
                raise ValueError("it does not begin with amqp://")
            given = pika.URLParameters(url)
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"--from-url is no URL of a RabbitMQ: {error}",
                remedy="write amqp://USER:PASSWORD@HOST:5672/VHOST, %2F for the virtual host /",
            ) from error
        # It raises what it logs.
        logging.getLogger("pika").setLevel(logging.CRITICAL)
        given.heartbeat = int(max(HEARTBEAT_S, HEARTBEATS * silent_s))
        given.socket_timeout = given.stack_timeout = CONNECT_TIMEOUT_S
        given.blocked_connection_timeout = BLOCKED_TIMEOUT_S
        self.name = f"{given.host}:{given.port}/{given.virtual_host}"
        """Without a password."""
        self.properties: Any = pika.BasicProperties
        self._errors = (pika.exceptions.AMQPError, OSError)
        self._refusals: Any = (
            pika.exceptions.AMQPChannelError,
            pika.exceptions.AuthenticationError,
            pika.exceptions.ProbableAuthenticationError,
            pika.exceptions.ProbableAccessDeniedError,
            pika.exceptions.ConnectionClosedByBroker,
        )
        self._closed: Any = pika.exceptions.ChannelClosedByBroker
        self._connection: Any = None
        with self.asking():
            self._connection = pika.BlockingConnection(given)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Raise SourceUnreachableError for what pika raises."""
        try:
            yield
        except self._errors as error:
            is_refusal = isinstance(error, self._refusals)
            raise SourceUnreachableError(
                f"RabbitMQ at {self.name}: {str(error) or repr(error)}",  # pika says some so only
                remedy=REFUSED if is_refusal else CUT,
            ) from error

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """Lend a channel; what it has fetched and not acknowledged goes back when it is closed."""
        with self.asking():
            channel = self._connection.channel()
            try:
                yield channel
            finally:
                if channel.is_open:
                    channel.close()

    def close(self) -> None:
        """Close the connection, unless it is."""
        if self._connection.is_open:
            with self.asking():
                self._connection.close()

    def committed(self, channel: Any) -> bool:
        """Commit; return whether RabbitMQ has taken all that was published."""
        try:
            channel.tx_commit()
        except self._closed as error:
            if error.reply_code == 406:
                return False
            raise
        return True

    def delete(self, queue: str) -> None:
        """Delete a queue, unless the connection is gone."""
        if self._connection.is_open:
            with self.channel() as channel:
                channel.queue_delete(queue)

    def counts_of(self, queue: str) -> tuple[int, int] | None:
        """Return how many messages are ready, and how many consumers there are; None if there is
        no such queue."""
        with self.channel() as channel:
            try:
                found = channel.queue_declare(queue, passive=True).method
            except self._closed as error:
                if error.reply_code == 404:
                    return None
                raise
            return found.message_count, found.consumer_count
