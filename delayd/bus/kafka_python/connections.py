"""The connections of one client to the cluster, and waiting for answers with a bound.

Not here: requests and their meaning.

Invariants:
- opening one connects to nobody, and starts no thread that is not given back by `close`;
- no request allows a broker to create a topic;
- a broker that refused the credentials is asked again;
- a socket is given back when it is of no use any more;
- a wait ends within its bound, however frozen a broker is.
"""

from threading import Event
from typing import Any, Final

from delayd.bus.kafka_python.library import KafkaNetClient, KafkaNetSocket, errors
from delayd.bus.kafka_python.settings import Properties

STOP_WAIT_MS: Final = 1_000
"""How long a loop's thread is watched as it ends; at once, unless it looks up a name."""


class _GivenBack(KafkaNetSocket):  # type: ignore[misc]  # kafka-python has no types
    """How sockets are opened: one that cannot connect is closed at once.

    kafka-python drops it for the cycle collector to find, which a node runs seldom; while a broker
    is away that is a descriptor for each try.
    """

    SCHEMES = ("delayd",)

    async def sock_connect(
        self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None
    ) -> Any:
        """The same socket, connected."""
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:  # also where the attempt is given up
            sock.close()
            raise


def open_client(properties: Properties) -> Any:
    """A client without a thread; whoever opens it drives its loop, or starts one."""
    client = KafkaNetClient(**properties, proxy_url="delayd://")
    # kafka-python 3.0.12 takes this setting and forgets it: every look at a missing topic would
    # create it on brokers that allow that.
    client.cluster.config["allow_auto_create_topics"] = False
    client._manager._auth_failures = _Refusals()
    return client


class _Refusals(dict[Any, BaseException]):
    """Brokers that refused the credentials, until they take them.

    kafka-python looks here before it connects, and never tries such a broker again: a node would
    outlive a mended password file, deaf. So a look finds nothing, and only `refusal` reads it.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        return default


def refusal(client: Any) -> BaseException | None:
    """Why a broker would not let this client in, if one would not."""
    return next(iter(client._manager._auth_failures.values()), None)


def wait_done(future: Any, timeout_ms: int) -> bool:
    """Wait until a future of kafka-python has an outcome; False if it has none in time."""
    if future.is_done:
        return True
    event = Event()
    future.add_both(lambda _: event.set())
    return event.wait(timeout_ms / 1000) or future.is_done


def was_answered(metadata: Any) -> bool:
    """Has a broker answered this question for metadata, be it that the topic does not exist, or may
    not be seen?"""
    return metadata.exception is None or isinstance(
        metadata.exception,
        (errors.UnknownTopicOrPartitionError, errors.TopicAuthorizationFailedError),
    )


def close_driven(client: Any) -> None:
    """Close a client whose loop has a thread of its own: the thread first, and then its sockets."""
    client._net.stop(timeout_ms=STOP_WAIT_MS)
    client.close()
