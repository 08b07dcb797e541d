"""The connections of one client to the cluster, and waiting for answers with a bound.

Not here: requests and their meaning.

Invariants:
- opening one connects to nobody, and starts no thread that is not given back by `close`;
- no request allows a broker to create a topic;
- a broker that refused the credentials is asked again, and why it did is remembered;
- a socket is given back when it is of no use any more;
- a broker that takes a connection and says nothing is left for another try in time;
- a wait ends within its bound, however frozen a broker is.
"""

import ssl
from threading import Event
from typing import Any, Final
from weakref import WeakSet

from delayd.bus.kafka_python.library import (
    KafkaNetClient,
    KafkaNetSocket,
    KafkaSSLTransport,
    KafkaTCPTransport,
    create_connection,
    errors,
)
from delayd.bus.kafka_python.settings import Properties

STOP_WAIT_MS: Final = 1_000
"""How long a loop's thread is watched as it ends; at once, unless it looks up a name."""


SCHEME: Final = "delayd"
PROXY_URL: Final = f"{SCHEME}://"
"""The setting by which kafka-python opens its sockets through the class below."""


class _GivenBack(KafkaNetSocket):  # type: ignore[misc]  # kafka-python has no types
    """Opens sockets, and closes at once one that cannot connect.

    kafka-python drops it for the cycle collector to find, which a node runs seldom; while a broker
    is away that is a descriptor for each try.
    """

    SCHEMES = (SCHEME,)

    async def sock_connect(
        self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None
    ) -> Any:
        """Return the same socket, connected."""
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:  # also where the attempt is given up
            sock.close()
            raise


def _heard_out(data: bytes, error: Any) -> tuple[bytes, Any]:
    """kafka-python drops an answer that comes together with the end of its connection, which is how
    brokers refuse credentials; the end is still there at the next look."""
    return data, None if data else error


class _Plain(KafkaTCPTransport):  # type: ignore[misc]
    def _sock_recv(self) -> tuple[bytes, Any]:
        return _heard_out(*super()._sock_recv())


class _Tls(KafkaSSLTransport):  # type: ignore[misc]
    def _sock_recv(self) -> tuple[bytes, Any]:
        return _heard_out(*super()._sock_recv())


def open_client(properties: Properties) -> Any:
    """Return a client without a thread: the caller drives its loop, or starts one."""
    client = KafkaNetClient(**{"proxy_url": PROXY_URL, **properties})
    # kafka-python 3.0.12 takes this setting and forgets it: every look at a missing topic would
    # create it on brokers that allow that.
    client.cluster.config["allow_auto_create_topics"] = False
    client.opened = WeakSet()
    _watch(client._manager, client.opened)
    return client


class _Refusals(dict[Any, BaseException]):
    """By broker, why the last connection to it ended in an error, until one is let in.

    kafka-python looks here before it connects, and never again tries a broker that refused the
    credentials: a node would outlive a mended password file, deaf. So a look finds nothing. It also
    forgets a broker as soon as it hears the refusal, so that is left undone.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        return default

    def pop(self, key: Any, default: Any = None) -> Any:
        return default


def _watch(manager: Any, opened: WeakSet[Any]) -> None:
    """Remember how each connection ends, open each in bounded time, and add what was opened to
    `opened`."""
    refusals = manager._auth_failures = _Refusals()
    connect = manager.get_connection

    def connect_watched(node_id: Any, *arguments: Any, **named: Any) -> Any:
        known = manager._conns.get(node_id)
        connection = connect(node_id, *arguments, **named)
        if connection is not known:
            # The error that it was closed comes first, and says less.
            connection._init_future.add_callback(lambda _: dict.pop(refusals, node_id, None))
            connection._init_future.add_errback(lambda why: refusals.__setitem__(node_id, why))
        return connection

    async def build_transport(node: Any, timeout_at: float | None = None) -> Any:
        transport = await _built(manager, node, timeout_at)
        opened.add(transport)
        return transport

    manager.get_connection = connect_watched
    manager._build_transport = build_transport


async def _built(manager: Any, node: Any, timeout_at: float | None) -> Any:
    """Connect as kafka-python does, but close the socket of a failed handshake (it leaves that to
    the cycle collector), and do not wait for ever for a silent broker's part of a handshake."""
    config, net = manager.config, manager._net
    sock = await create_connection(
        net,
        node.host,
        node.port,
        config["socket_options"],
        proxy_url=config["proxy_url"],
        timeout_at=timeout_at,
    )
    transport: Any = None
    try:
        if not manager.ssl_enabled:
            return _Plain(net, sock, host=node.host)
        of_tls = {name: value for name, value in config.items() if name.startswith("ssl_")}
        transport = _Tls(net, sock, host=node.host, **of_tls)
        await _handshake(net, transport._sock, timeout_at)
        return transport
    except BaseException as error:  # also where the attempt is given up
        (sock if transport is None else transport._sock).close()
        if not isinstance(error, Exception):
            raise
        raise errors.KafkaConnectionError(f"Handshake failed: {error}") from None


async def _handshake(net: Any, sock: ssl.SSLSocket, timeout_at: float | None) -> None:
    while True:
        try:
            sock.do_handshake()
            return
        except ssl.SSLWantReadError:
            await net.wait_read(sock, timeout_at)
        except ssl.SSLWantWriteError:
            await net.wait_write(sock, timeout_at)


def refusal(client: Any) -> BaseException | None:
    """Return why a broker refused this client, if one did."""
    return next(iter(list(client._manager._auth_failures.values())), None)


def wait_done(future: Any, timeout_ms: int) -> bool:
    """Wait until a future of kafka-python has an outcome; False if it has none in time."""
    if future.is_done:
        return True
    event = Event()
    future.add_both(lambda _: event.set())
    return event.wait(timeout_ms / 1000) or future.is_done


def was_answered(metadata: Any) -> bool:
    """Return whether a broker answered this question for metadata, if only that the topic does not
    exist or may not be seen."""
    return metadata.exception is None or isinstance(
        metadata.exception,
        (errors.UnknownTopicOrPartitionError, errors.TopicAuthorizationFailedError),
    )


def close_driven(client: Any) -> None:
    """Close a client whose loop has a thread of its own: the thread first, and then its sockets."""
    client._net.stop(timeout_ms=STOP_WAIT_MS)
    client.close()
    give_back(client)


def give_back(client: Any) -> None:
    """Close the sockets that a closed client has left to a loop that no longer runs."""
    for transport in list(client.opened):
        if transport._sock is not None:
            transport._sock.close()
