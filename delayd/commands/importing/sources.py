"""Which source a word of the command line is."""

from pathlib import Path
from typing import Final, NamedTuple

from delayd.cluster.connect import open_bus
from delayd.commands.importing import celery_queue, zset
from delayd.commands.importing.celery_queue import CeleryRows
from delayd.commands.importing.files import FileRows
from delayd.commands.importing.job import Source
from delayd.commands.importing.redis_server import RedisServer
from delayd.commands.importing.topic import TopicRows
from delayd.commands.importing.zset import ZsetRows
from delayd.config.security import load_security
from delayd.errors import ConfigError
from delayd.runtime.clock import SystemClock

KAFKA: Final = "kafka"
REDIS: Final = (zset.KIND, celery_queue.KIND)


class Given(NamedTuple):
    """What the command line says about it."""

    bootstrap: str
    config: Path | None
    """Of the Kafka of a topic."""
    url: str | None
    payload: str | None
    workers_stopped: bool


def source_of(source: str, given: Given) -> Source:
    """Open a source. ConfigError, KafkaUnreachableError, SourceUnreachableError."""
    kind, _, name = source.partition(":")
    if kind == KAFKA:
        bus = open_bus(given.bootstrap, load_security(given.config).properties())
        return TopicRows(bus, name, SystemClock())
    if kind not in REDIS:
        return FileRows(Path(source))
    if given.url is None or not name:
        raise ConfigError(
            f"{source}: it needs the name of a key, and --from-url",
            remedy=f"write {kind}:NAME --from-url redis://HOST:6379/0",
        )
    server = RedisServer(given.url)
    if kind == zset.KIND:
        return ZsetRows(server, name, given.payload)
    return CeleryRows(server, name, has_no_workers=given.workers_stopped)
