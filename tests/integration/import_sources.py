"""What other systems hold, for imports of any size: each source filled with so many messages."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import pika
import redis
from celery_filled import fill_celery
from confluent_kafka import Producer
from nodes import HANGS_S, wait_for
from rabbit_servers import rabbit_server
from redis_servers import redis_server
from rocket_servers import RocketMq

from delayd.commands.importing.amqp_server import AmqpServer

DAY_MS: Final = 24 * 3_600_000
FILLER: Final = "x" * 100


class Place(NamedTuple):
    """Where a source may put its files, and its topics."""

    folder: Path
    bootstrap: str
    new_topic: Callable[[str], str]


class Held(NamedTuple):
    """What a source holds, and how it is imported."""

    source: str
    options: tuple[str, ...]
    mapping: str
    """Without the target."""
    due_ms: Mapping[str, int]
    """When each is due in delayd, by id."""
    left: Callable[[], int] = lambda: 0
    """How many messages the old system would still deliver."""


Filling: TypeAlias = Callable[[Place, int, int], AbstractContextManager[Held]]
"""Takes the place, how many, and when the first is due; each is due a millisecond behind it."""


@contextmanager
def of_csv(place: Place, count: int, first_ms: int) -> Iterator[Held]:
    """Due in seconds with fractions, values of two lines."""
    rows = place.folder / "jobs.csv"
    with rows.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "run_at", "payload"])
        for n in range(count):
            seconds, ms = divmod(first_ms + n, 1000)
            writer.writerow([n, f"{seconds}.{ms:03}", f"line one\nof {n}"])
    mapping = 'id = "csv-{id}"\ndue = "{run_at}"\nunit = "s"\nvalue = "{payload}"\n'
    yield Held(str(rows), (), mapping, _due("csv", count, first_ms))


@contextmanager
def of_json_lines(place: Place, count: int, first_ms: int) -> Iterator[Held]:
    """Due in milliseconds."""
    rows = place.folder / "jobs.jsonl"
    with rows.open("w") as file:
        for n in range(count):
            file.write(json.dumps({"id": n, "at": first_ms + n, "what": FILLER}) + "\n")
    mapping = 'id = "jsonl-{id}"\ndue = "{at}"\n'
    yield Held(str(rows), (), mapping, _due("jsonl", count, first_ms))


@contextmanager
def of_topic(place: Place, count: int, first_ms: int) -> Iterator[Held]:
    """Due by a header."""
    topic = place.new_topic("waiting")
    producer = Producer({"bootstrap.servers": place.bootstrap, "queue.buffering.max.messages": 0})
    for n in range(count):
        headers: dict[str, str | bytes | None] = {"not-before": b"%d" % (first_ms + n)}
        producer.produce(topic, FILLER.encode(), b"topic-%d" % n, headers=headers)
    assert producer.flush(HANGS_S) == 0
    mapping = 'id = "{key}"\ndue = "{headers.not-before}"\n'
    yield Held(f"kafka:{topic}", (), mapping, _due("topic", count, first_ms))


@contextmanager
def of_zset(place: Place, count: int, first_ms: int) -> Iterator[Held]:
    """The due times in milliseconds, and a hash of payloads."""
    with redis_server() as url, closing(redis.Redis.from_url(url)) as client:
        for ids in _lots(count):
            client.zadd("later", {f"zset-{n}": first_ms + n for n in ids})
            client.hset("payloads", mapping={f"zset-{n}": f"{n} {FILLER}" for n in ids})
        given = ("--from-url", url, "--payload", "payloads")
        mapping = 'id = "{member}"\ndue = "{score}"\n'
        yield Held(
            *("zset:later", given, mapping, _due("zset", count, first_ms)),
            lambda: int(client.zcard("later")),
        )


@contextmanager
def of_celery(place: Place, count: int, first_ms: int) -> Iterator[Held]:
    """A half is with workers that died."""
    with redis_server() as url, closing(redis.Redis.from_url(url)) as client:
        due_ms = _due("celery", count, first_ms)
        at = {
            id_: datetime.fromtimestamp(ms // 1000, UTC) + timedelta(milliseconds=ms % 1000)
            for id_, ms in due_ms.items()
        }
        fill_celery(url, at, count // 2)
        mapping = 'id = "{id}"\ndue = "{eta}"\n'
        yield Held(
            *("celery:celery", ("--from-url", url), mapping, due_ms),
            lambda: int(client.llen("celery") + client.hlen("unacked")),
        )


@contextmanager
def of_rabbitmq(place: Place, count: int, first_ms: int) -> Iterator[Held]:
    """Each with an expiry of its own, and the time at which it was published."""
    lives_ms = DAY_MS
    with rabbit_server() as url:
        with closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
            channel = connection.channel()
            dead = {"x-dead-letter-exchange": "dead"}
            channel.queue_declare("wait", durable=True, arguments=dead)
            for n in range(count):
                properties = pika.BasicProperties(
                    message_id=f"rabbitmq-{n}",
                    expiration=str(lives_ms + n),
                    delivery_mode=2,
                    headers={"timestamp_in_ms": first_ms - lives_ms},
                )
                channel.basic_publish("", "wait", FILLER.encode(), properties)
        wait_for(lambda: ready(url, "wait") == count, "all are there")
        mapping = 'id = "{message_id}"\ndue = "{due_ms}"\n'
        yield Held(
            *("rabbitmq:wait", ("--from-url", url), mapping, _due("rabbitmq", count, first_ms)),
            lambda: ready(url, "wait"),
        )


@contextmanager
def of_rocketmq(place: Place, count: int, first_ms: int) -> Iterator[Held]:
    """Timer messages as the program of the guide exports them, when the wheel has stopped."""
    with RocketMq(place.folder / "rocketmq") as rocket:
        sent = rocket.schedule("orders", count, first_ms)
        rocket.restart_without_wheel()
        rows = rocket.export(place.folder / "timers.jsonl")
        mapping = 'id = "{id}"\ndue = "{due_ms}"\nkey = "{key}"\nvalue = "{body}"\n'
        yield Held(str(rows), (), f'{mapping}encoding = "base64"\n', sent)


SOURCES: Final[Mapping[str, Filling]] = {
    "csv": of_csv,
    "jsonl": of_json_lines,
    "topic": of_topic,
    "zset": of_zset,
    "celery": of_celery,
    "rabbitmq": of_rabbitmq,
    "rocketmq": of_rocketmq,
}


def ready(url: str, queue: str) -> int:
    """How many messages a queue of RabbitMQ has for whoever asks."""
    with closing(AmqpServer(url)) as server:
        return (server.counts_of(queue) or (0, 0))[0]


def _due(kind: str, count: int, first_ms: int) -> dict[str, int]:
    return {f"{kind}-{n}": first_ms + n for n in range(count)}


def _lots(count: int, size: int = 1_000) -> Iterator[Any]:
    for at in range(0, count, size):
        yield range(at, min(at + size, count))
