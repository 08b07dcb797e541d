"""Retries for consumers: a record that could not be processed comes again later.

A retry is an ordinary request, so it needs no id, no state and no consumer that sleeps: the record
goes back to its topic after a delay that grows with the attempts, and at the end to another topic.
What was tried travels in headers, which any client can write and read:

    retry-attempt   how often it was tried, from 1
    retry-error     what the last attempt failed with
    retry-origin    topic/partition/offset of the record that failed first

Sent in the consumer's own transaction, with its offsets, a retry is neither lost nor doubled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from delayd.bus import Headers
from delayd.client.asking import Request, Span
from delayd.client.errors import RequestRefusedError
from delayd.request.headers import HEADER_PREFIX

ATTEMPT: Final = "retry-attempt"
ERROR: Final = "retry-error"
ORIGIN: Final = "retry-origin"
OURS: Final = frozenset({ATTEMPT, ERROR, ORIGIN})

ERROR_BYTES_MAX: Final = 1_000
DEAD_SUFFIX: Final = "-dead"

ROCKETMQ_DELAYS: Final[tuple[Span, ...]] = (
    *("10s", "30s", "1m", "2m", "3m", "4m", "5m", "6m"),
    *("7m", "8m", "9m", "10m", "20m", "30m", "1h", "2h"),
)
"""The 16 steps of a RocketMQ consumer; source: RocketMQ's documentation, "Consumption Retry"."""


class Consumed(NamedTuple):
    """A record as a consumer got it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @classmethod
    def of(cls, record: Any) -> Self:
        """Return a `confluent_kafka.Message` or a `ConsumerRecord` of kafka-python as one.

        Raises RequestRefusedError for anything else, for what a deserializer has changed, and for a
        message that is an error.
        """
        try:
            if callable(record.topic):
                if record.error() is not None:
                    raise _refused(f"the message is an error: {record.error()}")
                found = (getattr(record, name)() for name in cls._fields)
            else:
                found = (getattr(record, name) for name in cls._fields)
            topic, partition, offset, key, value, headers = found
        except AttributeError as error:
            raise _refused(f"a {type(record).__name__} is no consumed record") from error
        for name, content in (("key", key), ("value", value)):
            if content is not None and not isinstance(content, bytes):
                raise _refused(f"the {name} is {type(content).__name__}, not the bytes of Kafka")
        return cls(topic, partition, offset, key, value, list(headers or ()))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a record that failed comes again, and what becomes of it at the end."""

    delays: Sequence[Span] = ROCKETMQ_DELAYS
    """Before each attempt; as many attempts after the first one."""
    topic: str | None = None
    """Where it comes again; default: its own topic, at the same partition. Give each consumer group
    a topic of its own, if several read the same: all of them see what comes again."""
    dead_topic: str | None = None
    """Where it goes after the last attempt; default: its first topic and `-dead`. It must exist."""
    hopeless: tuple[type[BaseException], ...] = ()
    """Errors that no further attempt mends: the record goes to `dead_topic` at once."""

    @classmethod
    def backoff(
        cls, first_ms: int, attempts: int, *, factor: float = 2, most_ms: int = 3_600_000
    ) -> Self:
        """Return a policy whose delays grow by `factor` up to `most_ms`."""
        delays = (min(most_ms, round(first_ms * factor**n)) for n in range(attempts))
        return cls(delays=tuple(delays))


def retry(record: Any, error: BaseException | str, policy: RetryPolicy | None = None) -> Request:
    """Return the request by which a consumed record comes again, or goes to the dead topic.

    `record` is confluent-kafka's or kafka-python's. Its key, value and headers stay, without
    delayd's own. Raises RequestRefusedError for what is no record.
    """
    policy = policy or RetryPolicy()
    consumed = Consumed.of(record)
    known = {name: content for name, content in consumed.headers if name in OURS}
    attempt = _number(known.get(ATTEMPT)) + 1
    here = f"{consumed.topic}/{consumed.partition}/{consumed.offset}".encode()
    origin = known.get(ORIGIN) or here
    headers = [
        (name, content)
        for name, content in consumed.headers
        if name not in OURS and not name.startswith(HEADER_PREFIX)
    ]
    headers += [(ATTEMPT, b"%d" % attempt), (ERROR, _text(error)), (ORIGIN, origin)]
    delay: Span = 0
    if attempt > len(policy.delays) or isinstance(error, policy.hopeless):
        first_topic = origin.decode(errors="replace").split("/", 1)[0]
        topic = policy.dead_topic or first_topic + DEAD_SUFFIX
    else:
        topic, delay = policy.topic or consumed.topic, policy.delays[attempt - 1]
    return Request(
        topic,
        consumed.value,
        key=consumed.key,
        in_=delay,
        headers=headers,
        partition=consumed.partition if topic == consumed.topic else None,
    )


def _number(content: bytes | None) -> int:
    """Return how often it was tried; what nobody can read is no attempt."""
    text = (content or b"").decode(errors="replace")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _text(error: BaseException | str) -> bytes:
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return text.encode(errors="replace")[:ERROR_BYTES_MAX].decode(errors="ignore").encode()


def _refused(what: str) -> RequestRefusedError:
    return RequestRefusedError(
        f"{what}, so it cannot be retried",
        remedy="give the record as confluent-kafka or kafka-python returned it, without "
        "deserializers",
    )
