"""A RabbitMQ that holds what is imported: its connection, by AMQP 0-9-1.

Source: docs/guides/importing.md, "RabbitMQ".
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from delayd.errors import ConfigError, SourceUnreachableError

CONNECT_TIMEOUT_S: Final = 10
BLOCKED_TIMEOUT_S: Final = 60


class AmqpServer:
    """A connection, used by one thread. Channels are pika's."""

    def __init__(self, url: str) -> None:
        """ConfigError if it is no URL of AMQP, or there is no pika. SourceUnreachableError."""
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
        given.heartbeat = 0  # whoever waits for delayd reads nothing meanwhile
        given.socket_timeout = given.stack_timeout = CONNECT_TIMEOUT_S
        given.blocked_connection_timeout = BLOCKED_TIMEOUT_S
        self.name = f"{given.host}:{given.port}/{given.virtual_host}"
        """Without a password."""
        self.properties: Any = pika.BasicProperties
        self._errors = (pika.exceptions.AMQPError, OSError)
        self._not_found: Any = pika.exceptions.ChannelClosedByBroker
        self._connection: Any = None
        with self.asking():
            self._connection = pika.BlockingConnection(given)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Raise SourceUnreachableError for what pika raises."""
        try:
            yield
        except self._errors as error:
            raise SourceUnreachableError(
                f"RabbitMQ at {self.name}: {error or type(error).__name__}",
                remedy="nothing is lost: --resume goes on",
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

    def wait(self, timeout_ms: int) -> None:
        """Wait for frames, and have callbacks called."""
        self._connection.process_data_events(time_limit=timeout_ms / 1000)

    def counts_of(self, queue: str) -> tuple[int, int] | None:
        """Return how many messages are ready, and how many consumers there are; None if there is
        no such queue."""
        with self.channel() as channel:
            try:
                found = channel.queue_declare(queue, passive=True).method
            except self._not_found as error:
                if error.reply_code == 404:
                    return None
                raise
            return found.message_count, found.consumer_count
