"""The client's one import of kafka-python: making its objects, and what their failures mean."""

import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from delayd.client.driver import cannot_be_made, no_topic
from delayd.errors import KafkaUnreachableError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the library's own code; not ours to mend
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka import errors as faults
    from kafka.admin import KafkaAdminClient
    from kafka.net.inet import KafkaNetSocket

CLOSE_MS: Final = 1_000
"""What a client that has nothing to send needs to end; then it is ended by force."""

SCHEME: Final = "delayd-client"


class _ClosingSocket(KafkaNetSocket):  # type: ignore[misc]  # kafka-python has no types
    """How sockets are opened: one that cannot connect is closed, not left to the collector."""

    SCHEMES = (SCHEME,)

    async def sock_connect(
        self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None
    ) -> Any:
        """Return the same socket, connected."""
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


def made(kind: Any, properties: Mapping[str, Any], timeout_ms: int) -> Any:
    """Make one of the library's objects, which connects it."""
    try:
        return kind(**properties)
    except faults.KafkaTimeoutError as error:
        raise unreachable(timeout_ms, error) from error
    except (faults.KafkaError, ValueError, TypeError, AssertionError, RuntimeError) as error:
        raise cannot_be_made(kind.__name__, error) from error


def of_kind(properties: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Return the properties that this kind of client has."""
    return {name: value for name, value in properties.items() if name in kind.DEFAULT_CONFIG}


def partition_count(properties: Mapping[str, Any], topic: str, timeout_ms: int) -> int:
    """Return the partitions of an existing topic; NotInitialisedError if there is none.

    An admin client asks: a producer waits for missing topics to appear.
    """
    bounded = {
        **of_kind(properties, KafkaAdminClient),
        "bootstrap_timeout_ms": timeout_ms,
        "request_timeout_ms": timeout_ms,
    }
    client = made(KafkaAdminClient, bounded, timeout_ms)
    try:
        [found] = client.describe_topics([topic])
    except faults.KafkaError as error:
        raise unreachable(timeout_ms, error) from error
    finally:
        with suppress(faults.KafkaError):
            client.close()
    if not found["partitions"]:
        raise no_topic(topic)
    return len(found["partitions"])


def unreachable(timeout_ms: int, error: BaseException) -> KafkaUnreachableError:
    """Return the error for brokers that did not answer in time."""
    return KafkaUnreachableError(
        f"no broker answered within {timeout_ms} ms: {error}",
        remedy="check the bootstrap address and the security settings",
    )
