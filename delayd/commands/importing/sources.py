"""Which source a word of the command line is."""

from pathlib import Path
from typing import Final, NamedTuple

from delayd.cluster.connect import open_bus
from delayd.commands.importing import celery_queue, rabbit_queue, zset
from delayd.commands.importing.amqp_server import AmqpServer
from delayd.commands.importing.celery_queue import CeleryRows
from delayd.commands.importing.files import FileRows
from delayd.commands.importing.job import Source
from delayd.commands.importing.rabbit_queue import RabbitRows
from delayd.commands.importing.redis_server import RedisServer
from delayd.commands.importing.topic import TopicRows
from delayd.commands.importing.zset import ZsetRows
from delayd.config.security import load_security
from delayd.errors import ConfigError
from delayd.request.reasons import RefusedError
from delayd.request.times import delay_ms_of
from delayd.runtime.clock import SystemClock

KAFKA: Final = "kafka"
URLS: Final = {
    zset.KIND: "redis://HOST:6379/0",
    celery_queue.KIND: "redis://HOST:6379/0",
    rabbit_queue.KIND: "amqp://USER:PASSWORD@HOST:5672/VHOST",
}
"""How the place of a source is written."""


class Given(NamedTuple):
    """What the command line says about it."""

    bootstrap: str
    config: Path | None
    """Of the Kafka of a topic."""
    url: str | None
    payload: str | None
    ttl: str | None
    workers_stopped: bool
    timeout_s: float = 0
    """For how long an import waits for delayd."""


def source_of(source: str, given: Given) -> Source:
    """Open a source. ConfigError, KafkaUnreachableError, SourceUnreachableError."""
    kind, _, name = source.partition(":")
    if kind == KAFKA and name:
        bus = open_bus(given.bootstrap, load_security(given.config).properties())
        return TopicRows(bus, name, SystemClock())
    if kind == KAFKA:
        raise ConfigError(f"{source}: it needs a name", remedy=f"write {kind}:TOPIC")
    if kind not in URLS:
        return FileRows(Path(source))
    if given.url is None or not name:
        raise ConfigError(
            f"{source}: it needs a name, and --from-url",
            remedy=f"write {kind}:NAME --from-url {URLS[kind]}",
        )
    if kind == rabbit_queue.KIND:
        ttl_ms = None if given.ttl is None else _ttl_ms_of(given.ttl)
        return RabbitRows(AmqpServer(given.url, given.timeout_s), name, ttl_ms)
    server = RedisServer(given.url)
    if kind == zset.KIND:
        return ZsetRows(server, name, given.payload)
    return CeleryRows(server, name, has_no_workers=given.workers_stopped)


def _ttl_ms_of(ttl: str) -> int:
    try:
        return delay_ms_of(ttl)
    except RefusedError as error:
        raise ConfigError(f"--ttl {ttl}: {error.detail}", remedy="write it like 15m") from error
