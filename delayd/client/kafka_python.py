"""The client's port over kafka-python.

Slower than librdkafka (a tenth), pure Python, and with traps (docs/guides/python-client.md,
"Drivers"); what is done about each stands beside it here.

Invariants: what the wire contract fixes cannot be overridden; nothing is connected before the first
request (the library connects when its objects are made); an unknown property is a ConfigError when
the driver is made, a value that the library refuses one at the first request.
"""

import logging
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any, Final

from delayd.bus import Ack
from delayd.client.awaited import Awaited
from delayd.client.driver import (
    Failure,
    NotTakenError,
    OnOutcome,
    Overrides,
    PlainRecord,
    bare_name,
    of_role,
)
from delayd.errors import ConfigError, ConsumerError, KafkaUnreachableError, NotInitialisedError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the library's own code; not ours to mend
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka import errors as faults
    from kafka.admin import KafkaAdminClient
    from kafka.net.inet import KafkaNetSocket

REQUEST_TIMEOUT_MS: Final = 30_000
"""How long one answer of a broker may take, where the acknowledgement may take longer."""

CLOSE_MS: Final = 1_000
"""What a sender that has nothing to send needs to end; then it is ended by force."""

REPORT_GRACE_MS: Final = 1_000
"""How much later than its time-out the library may report it."""

EXPIRY_INTERVAL_MS: Final = 100
"""How soon what it does not report at all is noticed."""

RECONNECT_BACKOFF_MS_MAX: Final = 500
"""How long after its return a broker may be overlooked; the library's default is 30 s."""

FETCH_WAIT_MS: Final = 50
"""A read_committed fetch behind a commit marker waits this out: a verdict's latency against idle
requests."""

READ_RECORDS_MAX: Final = 1_000

_SCHEME: Final = "delayd-client"
_DEFAULTS: Final[Mapping[str, Any]] = {
    "reconnect_backoff_max_ms": RECONNECT_BACKOFF_MS_MAX,
    "proxy_url": f"{_SCHEME}://",
}
_FIXED_PRODUCER: Final[Mapping[str, Any]] = {
    "acks": "all",
    "enable_idempotence": True,
    "allow_auto_create_topics": False,
    # Else the library serializes what must arrive as it is; and its own partitioner is murmur2.
    "key_serializer": None,
    "value_serializer": None,
}
_FIXED_CONSUMER: Final[Mapping[str, Any]] = {
    "group_id": None,
    "isolation_level": "read_committed",
    "enable_auto_commit": False,
    "auto_offset_reset": "none",
    "allow_auto_create_topics": False,
    "key_deserializer": None,
    "value_deserializer": None,
}
_OF_ARGUMENTS: Final = frozenset(
    {"bootstrap_servers", "bootstrap_timeout_ms", "delivery_timeout_ms", "max_block_ms"}
)
_FORBIDDEN: Final = frozenset({"transactional_id", "partitioner"})

_WORDS: Final[Mapping[str, str]] = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}
"""librdkafka's names, which the settings of security have, and the library's own."""

_CERTAIN: Final = (
    faults.MessageSizeTooLargeError,
    faults.RecordListTooLargeError,
    faults.InvalidRecordError,
    faults.InvalidTimestampError,
    faults.PolicyViolationError,
    faults.TopicAuthorizationFailedError,
    faults.UnknownTopicOrPartitionError,
)


class _GivenBack(KafkaNetSocket):  # type: ignore[misc]  # kafka-python has no types
    """How sockets are opened: one that cannot connect is closed, not left to the collector."""

    SCHEMES = (_SCHEME,)

    async def sock_connect(
        self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None
    ) -> Any:
        """The same socket, connected."""
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


class _WithoutRequests(logging.Filter):
    """Drops what the library says of each request when it debugs: passwords are in them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG


def _hide_requests() -> None:
    for name in ("kafka.protocol.parser", "kafka.net.connection"):
        logger = logging.getLogger(name)
        if not any(isinstance(each, _WithoutRequests) for each in logger.filters):
            logger.addFilter(_WithoutRequests())


def in_its_words(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of security by the library's names; ConfigError for any other."""
    unknown = sorted(properties.keys() - _WORDS.keys())
    if unknown:
        raise ConfigError(
            f"the Kafka property {', '.join(unknown)} is librdkafka's",
            remedy="give kafka-python's own in overrides, and leave it out of the table kafka",
        )
    return {_WORDS[name]: value for name, value in properties.items()}


class KafkaPythonDriver:
    """See the port `Driver`."""

    def __init__(self, bootstrap: str, overrides: Overrides, ack_timeout_ms: int) -> None:
        _hide_requests()
        named = {bare_name(name) for name in overrides}
        clash = sorted(
            named & (_FIXED_PRODUCER.keys() | _FIXED_CONSUMER.keys() | _OF_ARGUMENTS | _FORBIDDEN)
        )
        if clash:
            raise ConfigError(
                f"the producer property {', '.join(clash)} cannot be overridden",
                remedy="delayd's contract fixes it, or an argument of Client sets it",
            )
        known = KafkaProducer.DEFAULT_CONFIG.keys() | KafkaConsumer.DEFAULT_CONFIG.keys()
        unknown = sorted(named - known)
        if unknown:
            raise ConfigError(
                f"kafka-python has no property {', '.join(unknown)}",
                remedy="name it as KafkaProducer and KafkaConsumer do",
            )
        address = {"bootstrap_servers": bootstrap.split(",")}
        self._shared = {**_DEFAULTS, **of_role("producer", overrides), **address}
        request_timeout_ms = min(
            REQUEST_TIMEOUT_MS, max(1, ack_timeout_ms - int(self._shared.get("linger_ms", 0)))
        )
        self._producer = {
            "request_timeout_ms": request_timeout_ms,
            **_known(self._shared, KafkaProducer),
            "bootstrap_timeout_ms": ack_timeout_ms,
            "delivery_timeout_ms": ack_timeout_ms,
            "max_block_ms": ack_timeout_ms,
            **_FIXED_PRODUCER,
        }
        self._consumer = {
            **_known({**_DEFAULTS, **of_role("consumer", overrides), **address}, KafkaConsumer),
            "fetch_max_wait_ms": FETCH_WAIT_MS,
            **_FIXED_CONSUMER,
        }

    def sender(self) -> "KafkaPythonSender":
        """See the port."""
        return KafkaPythonSender(self._producer, _known(self._shared, KafkaAdminClient))

    def reader(self, topic: str) -> "KafkaPythonReader":
        """See the port."""
        return KafkaPythonReader(topic, self._consumer)

    def refusal(self, record: PlainRecord) -> str | None:
        """See the port."""
        return refusal_of(record)


class KafkaPythonSender:
    """See the port `Sender`. The library's own thread sends and reports.

    A thread of ours ends what that one forgets: while a broker is frozen it waits for an answer
    and looks at no time-out.
    """

    def __init__(self, properties: Mapping[str, Any], admin: Mapping[str, Any]) -> None:
        self._properties = properties
        self._admin = admin
        self._lock = Lock()
        self._producer: Any = None
        self._judge = _Judge()
        self._awaited = Awaited(properties["delivery_timeout_ms"] + REPORT_GRACE_MS)
        self._closed = Event()
        self._expiry = Thread(target=self._expire, name="delayd-client", daemon=True)
        self._expiry.start()

    def partition_count(self, topic: str, timeout_ms: int) -> int:
        """See the port. By an admin client: the producer waits for missing topics to appear."""
        return _partition_count(self._admin, topic, timeout_ms)

    def send(self, record: PlainRecord, on_outcome: OnOutcome) -> bool:
        """See the port. The library's queue has no bound, so it is never full."""
        with self._lock:
            if self._producer is not None and self._producer._transaction_manager.has_error():
                # One refused record ends it for all: every later one would fail with that error.
                spent, self._producer = self._producer, None
                _end(spent, CLOSE_MS)
            if self._producer is None:
                timeout_ms = self._properties["bootstrap_timeout_ms"]
                self._producer = _made(KafkaProducer, self._properties, timeout_ms)
                # The library takes the setting and forgets it.
                self._producer._metadata.config["allow_auto_create_topics"] = False
                self._judge = _Judge()
            once = self._awaited.add(on_outcome)
            try:
                _send(self._producer, record, once, self._judge.failure_of)
            except NotTakenError:
                self._awaited.drop(once)
                raise
        return True

    def wait_for_room(self, timeout_ms: int) -> None:
        """See the port: never needed."""

    def close(self, timeout_ms: int) -> None:
        """See the port."""
        with self._lock:
            producer, self._producer = self._producer, None
        self._closed.set()
        if producer is not None:
            _end(producer, timeout_ms)
        self._awaited.end_all("the client was closed")
        self._expiry.join(timeout_ms / 1000)

    def _expire(self) -> None:
        while not self._closed.wait(EXPIRY_INTERVAL_MS / 1000):
            self._awaited.end_overdue()


class KafkaPythonTransaction:
    """See the port `Transacting`: the user's own producer."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def send(self, record: PlainRecord, on_outcome: OnOutcome) -> bool:
        """See the port."""
        for serializer in ("key_serializer", "value_serializer"):
            if self._producer.config[serializer] is not None:
                raise NotTakenError(f"the producer's {serializer} would change the record")
        # Its other errors may be those of records before it: none says certainly that it failed.
        _send(self._producer, record, on_outcome, lambda error, _: Failure(False, str(error)))
        return True

    def begin(self) -> None:
        """See the port."""
        self._producer.begin_transaction()

    def flush(self) -> None:
        """See the port; the library ends each record by its own `delivery_timeout_ms`."""
        self._producer.flush()

    def commit(self) -> None:
        """See the port."""
        self._producer.commit_transaction()

    def abort(self) -> None:
        """See the port."""
        self._producer.abort_transaction()


class KafkaPythonReader:
    """See the port `Reader`."""

    def __init__(self, topic: str, properties: Mapping[str, Any]) -> None:
        self._topic = topic
        self._properties = properties
        self._client: Any = None

    def open(self, timeout_ms: int) -> None:
        """See the port."""
        deadline_s = time.monotonic() + timeout_ms / 1000
        count = _partition_count(
            _known(self._properties, KafkaAdminClient), self._topic, timeout_ms
        )
        bounded = {**self._properties, "bootstrap_timeout_ms": timeout_ms}
        self._client = _made(KafkaConsumer, bounded, timeout_ms)
        self._client._client.cluster.config["allow_auto_create_topics"] = False
        try:
            all_of_it = [TopicPartition(self._topic, number) for number in range(count)]
            self._client.assign(all_of_it)
            left_ms = max(1, int((deadline_s - time.monotonic()) * 1000))
            ends = self._client.end_offsets(all_of_it, timeout_ms=left_ms)
            for each in all_of_it:
                self._client.seek(each, ends[each])
        except faults.KafkaError as error:
            raise _unreachable(timeout_ms, error) from error

    def poll(self, timeout_ms: int) -> list[tuple[bytes | None, bytes | None]]:
        """See the port. The library retries transient trouble by itself."""
        try:
            polled = self._client.poll(timeout_ms=timeout_ms, max_records=READ_RECORDS_MAX)
        except faults.KafkaError as error:
            if error.retriable:
                return []
            raise ConsumerError(f"reading {self._topic} failed: {error}") from error
        return [(each.key, each.value) for records in polled.values() for each in records]

    def close(self) -> None:
        """See the port."""
        if self._client is not None:
            with suppress(faults.KafkaError):
                self._client.close(autocommit=False, timeout_ms=CLOSE_MS)
            self._client = None


def transacting(producer: object) -> KafkaPythonTransaction | None:
    """The user's own producer, if it is of this library."""
    return KafkaPythonTransaction(producer) if isinstance(producer, KafkaProducer) else None


class _Judge:
    """What the failures of one producer say of their records.

    Kafka refuses one batch, and the library fails all others, those on their way too, with that
    same error: only the first batch is certainly not in the log.
    """

    def __init__(self) -> None:
        self._refused: object = None

    def failure_of(self, error: BaseException, batch: object) -> Failure:
        """Of a record in `batch`, which is any object that its records share."""
        if not isinstance(error, _CERTAIN):
            return Failure(False, str(error))
        if self._refused is None:
            self._refused = batch
        if batch is self._refused:
            return Failure(True, str(error))
        return Failure(False, f"another record ended the producer: {error}")


def refusal_of(record: PlainRecord) -> str | None:
    """Why kafka-python cannot send this record, or None. Nothing stands for null, so none is sent.

    A record without key and value is one that the library takes for a mistake.
    """
    nulls = [name for name, content in record.headers if content is None]
    if nulls:
        return f"kafka-python cannot send the null value of the header {nulls[0][:80]!a}"
    if record.key is None and record.value is None:
        return "kafka-python cannot send a record without key and value"
    return None


def _send(
    producer: Any,
    record: PlainRecord,
    on_outcome: OnOutcome,
    failure_of: Callable[[BaseException, object], Failure],
) -> None:
    refusal = refusal_of(record)
    if refusal is not None:
        raise NotTakenError(refusal)
    try:
        future = producer.send(
            record.topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            partition=record.partition,
        )
    except (faults.KafkaError, ValueError, TypeError, AssertionError) as error:
        raise NotTakenError(str(error) or type(error).__name__) from error

    def on_success(metadata: Any) -> None:
        on_outcome(Ack(metadata.partition, metadata.offset, metadata.timestamp))

    def on_failure(error: BaseException) -> None:
        on_outcome(failure_of(error, future._produce_future))

    future.add_callback(on_success)
    future.add_errback(on_failure)


def _end(producer: Any, timeout_ms: int) -> None:
    """Close it. The library's own `close` gives up when its `flush` does, and leaves its thread."""
    thread = producer._sender
    try:
        producer.close(timeout=CLOSE_MS / 1000)
    except Exception:
        producer._closed = True  # or the garbage collector would try the same again
    if thread.is_alive():
        thread.force_close()
        thread.join(timeout_ms / 1000)


def _made(kind: Any, properties: Mapping[str, Any], timeout_ms: int) -> Any:
    """One of the library's objects; making it connects it."""
    try:
        return kind(**properties)
    except faults.KafkaTimeoutError as error:
        raise _unreachable(timeout_ms, error) from error
    except (faults.KafkaError, ValueError, TypeError, AssertionError, RuntimeError) as error:
        raise ConfigError(
            f"{kind.__name__} cannot be made: {error}", remedy="correct the property that it names"
        ) from error


def _partition_count(properties: Mapping[str, Any], topic: str, timeout_ms: int) -> int:
    bounded = {
        **properties,
        "bootstrap_timeout_ms": timeout_ms,
        "request_timeout_ms": timeout_ms,
    }
    client = _made(KafkaAdminClient, bounded, timeout_ms)
    try:
        [found] = client.describe_topics([topic])
    except faults.KafkaError as error:
        raise _unreachable(timeout_ms, error) from error
    finally:
        with suppress(faults.KafkaError):
            client.close()
    if not found["partitions"]:
        raise NotInitialisedError(
            f"there is no topic {topic}",
            remedy="run `delayd topics create`, or name the right buffer topic",
        )
    return len(found["partitions"])


def _unreachable(timeout_ms: int, error: BaseException) -> KafkaUnreachableError:
    return KafkaUnreachableError(
        f"no broker answered within {timeout_ms} ms: {error}",
        remedy="check the bootstrap address and the security settings",
    )


def _known(properties: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """The properties that this kind of client has."""
    return {name: value for name, value in properties.items() if name in kind.DEFAULT_CONFIG}
