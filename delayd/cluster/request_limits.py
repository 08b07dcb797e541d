"""What a cluster fixed for all requests, read from its frontier record.

With it a request that the cluster would reject is refused before it is sent. Not here: the grammar
of requests (`delayd.request`).
"""

from delayd.bus import Bus
from delayd.cluster.time_kind import refuse_other_time
from delayd.cluster.topic_checks import CREATE_COMMAND
from delayd.cluster.topics import last_frontier
from delayd.errors import ConsumerError, NotInitialisedError, TopicMismatchError
from delayd.request import RequestLimits


def request_limits(bus: Bus, frontier: str, timeout_ms: int) -> RequestLimits:
    """Return the limits of the cluster with this frontier topic.

    Raises NotInitialisedError without a frontier record, VirtualClusterError if its time is of the
    other kind than this program's, KafkaUnreachableError, ConsumerError.
    """
    seen = last_frontier(bus, frontier, timeout_ms)
    if seen is None:
        raise NotInitialisedError(
            f"{frontier} holds no frontier record", remedy=f"run `{CREATE_COMMAND}`"
        )
    refuse_other_time(seen.record.settings)
    return RequestLimits.of(seen.record.settings, b"", seen.record.rules)


def request_limits_if_told(bus: Bus, frontier: str, timeout_ms: int) -> RequestLimits | None:
    """Return the limits; None if the frontier cannot be read: a producer needs no right to it.

    Raises KafkaUnreachableError.
    """
    try:
        return request_limits(bus, frontier, timeout_ms)
    except (NotInitialisedError, ConsumerError, TopicMismatchError):
        return None
