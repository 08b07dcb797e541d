"""`delayd import` on real Kafka with a real node: killed on its way, and resumed.

Source: docs/guides/importing.md.
"""

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pika
import pytest
import redis
from celery_filled import fill_celery
from clusters import TestCluster, make_cluster
from confluent_kafka import Producer
from forking import Forked
from nodes import HANGS_S, NodeProcess, delayd_in_process, running, wait_for
from rabbit_servers import rabbit_server
from redis_servers import redis_server
from topics_read import read_until

from delayd.bus.confluent import ConfluentBus
from delayd.client.changing import UNDER_WAY_MAX
from delayd.commands.importing.amqp_server import AmqpServer
from delayd.dev.cluster import LocalCluster

ROWS = UNDER_WAY_MAX + 1_000
"""More than are under way at a time: an import that is killed when it sends has not sent all."""
RECORDS = 200
HOUR_S = 3_600
MEMORY_KIB_MAX = 200 * 1024
"""Of an import, whatever the number of its rows."""

pytestmark = pytest.mark.real


@dataclass
class Desk:
    """A cluster with one node, and a user of it."""

    cluster: TestCluster
    node: NodeProcess
    folder: Path

    @property
    def kafka(self) -> tuple[str, ...]:
        return ("--bootstrap", self.cluster.bootstrap, "--prefix", f"{self.cluster.name}-")

    def mapping(self, name: str, text: str) -> Path:
        path = self.folder / f"{name}.toml"
        path.write_text(text)
        return path

    def run(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Run an import with --json; what it says."""
        done = delayd_in_process("import", *arguments, *self.kafka, "--json")
        assert done.returncode == code, (done.returncode, done.stdout[-500:], done.stderr)
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def buffered(self) -> int:
        """Where the buffer ends, over all partitions."""
        with closing(ConfluentBus(self.cluster.bootstrap).cluster()) as kafka:
            ends = kafka.end_offsets(self.cluster.buffer, 10_000, committed=True)
        return sum(ends.values())

    def pending(self, id_prefix: str, limit: int) -> list[tuple[str, int]]:
        """The ids of what is listed, each with its due time."""
        arguments = ("list", "--id-prefix", id_prefix, "--limit", str(limit), "--json")
        done = delayd_in_process(*arguments, "--admin", self.node.url)
        assert done.returncode == 0, done.stderr
        return sorted((each["id"], each["due_ms"]) for each in json.loads(done.stdout)["messages"])


@pytest.fixture(scope="module")
def desk(kafka_and_etcd: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("importing")
    cluster = make_cluster(kafka_and_etcd, folder)
    cluster.target("orders")
    node = cluster.node(1, api_anonymous_reads=True)
    with running([node]):
        yield Desk(cluster, node, folder)


def test_an_import_that_was_killed_and_resumed_has_each_row_once(desk: Desk) -> None:
    """CSV, due in seconds with fractions, as most schedulers have it."""
    due_s = {n: time.time() + HOUR_S + n % 97 for n in range(ROWS)}
    rows = desk.folder / "jobs.csv"
    with rows.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "run_at", "payload"])
        writer.writerows([n, f"{at:.3f}", f"line one\nof {n}"] for n, at in due_s.items())
    mapping = desk.mapping(
        "jobs",
        f'topic = "target.{desk.cluster.name}.orders"\nid = "job-{{id}}"\ndue = "{{run_at}}"\n'
        'unit = "s"\nvalue = "{payload}"\n',
    )
    job = (str(rows), "--mapping", str(mapping))
    tried = desk.run(*job, "--dry-run")
    assert (tried["rows"], tried["malformed"], tried["overdue"]) == (ROWS, 0, 0)
    assert desk.buffered() == 0 and not mapping.with_suffix(".job").exists()
    process = Forked(("import", *job, *desk.kafka), desk.folder / "out", desk.folder / "errors", {})
    wait_for(lambda: desk.buffered() > 0 or process.poll() is not None, "it sends")
    process.kill()
    process.wait(HANGS_S)
    assert 0 < desk.buffered() < ROWS, "it was killed on its way"
    assert "--resume" in delayd_in_process("import", *job, *desk.kafka).stderr
    for _ in range(2):
        said = desk.run(*job, "--resume")
        assert said["complete"] and said["rows"] == ROWS
        assert said["verdicts"] == {"scheduled": ROWS}
    wanted = sorted((f"job-{n}", -int(-at * 1000 // 1)) for n, at in _milliseconds(due_s).items())
    wait_for(lambda: desk.pending("job-", 2 * ROWS) == wanted, "all are listed, each once")


def _milliseconds(due_s: dict[int, float]) -> dict[int, float]:
    """As they were written."""
    return {n: float(f"{at:.3f}") for n, at in due_s.items()}


def test_the_records_of_a_topic_are_imported_as_they_are(desk: Desk) -> None:
    """Retries that wait in a topic, due by a header."""
    topic, target = desk.cluster.create_topic(f"{desk.cluster.name}.retries", 3), "retried"
    target = desk.cluster.target(target)
    producer = Producer({"bootstrap.servers": desk.cluster.bootstrap})
    values = {n: b"\0\xff%d" % n for n in range(RECORDS)}
    for n, value in values.items():
        headers: dict[str, str | bytes | None]
        headers = {"trace": b"\xfe%d" % n, "not-before": b"%d" % (n + 1)}
        producer.produce(topic, value, b"k%d" % n, headers=headers)
    assert producer.flush(HANGS_S) == 0
    mapping = desk.mapping(
        "retries",
        f'topic = "{target}"\nid = "retry-{{partition}}-{{offset}}"\n'
        'due = "{headers.not-before}"\n',
    )
    said = desk.run(f"kafka:{topic}", "--mapping", str(mapping))
    assert said["verdicts"] == {"scheduled": RECORDS} and said["complete"]
    found = read_until(desk.cluster.bootstrap, target, lambda records: len(records) == RECORDS)
    assert {each.value: each.key for each in found} == {v: b"k%d" % n for n, v in values.items()}
    assert all(dict(each.headers)["trace"] == b"\xfe" + (each.value or b"")[2:] for each in found)
    again = desk.run(f"kafka:{topic}", "--mapping", str(mapping), "--resume")
    assert again["rows"] == RECORDS


def test_an_import_from_redis_that_was_killed_and_resumed_has_each_member_once(desk: Desk) -> None:
    """A set of the due times in milliseconds, and a hash of payloads."""
    begun_ms = int(time.time() * 1000) + HOUR_S * 1000
    with redis_server() as url, closing(redis.Redis.from_url(url)) as client:
        client.zadd("later", {f"set-{n}": begun_ms + n for n in range(ROWS)})
        client.hset("payloads", mapping={f"set-{n}": f"of {n}" for n in range(ROWS)})
        mapping = desk.mapping(
            "set",
            f'topic = "target.{desk.cluster.name}.orders"\nid = "{{member}}"\ndue = "{{score}}"\n',
        )
        given = ("--mapping", str(mapping), "--from-url", url, "--payload", "payloads")
        killed_and_resumed(desk, "zset:later", given, ROWS)
        other = ("import", "zset:later", *given[:-1], "other", *desk.kafka, "--resume")
        assert "another mapping, --payload or --ttl" in delayd_in_process(*other).stderr
        assert not client.exists("later") and client.hlen("payloads") == ROWS
    wanted = sorted((f"set-{n}", begun_ms + n) for n in range(ROWS))
    wait_for(lambda: desk.pending("set-", 2 * ROWS) == wanted, "all are listed, each once")


def killed_and_resumed(desk: Desk, source: str, given: tuple[str, ...], rows: int) -> float:
    """Kill an import when it sends, and run it on; how long the two took together, in seconds."""
    before, began_s = desk.buffered(), time.monotonic()
    tried = desk.run(source, *given, "--dry-run")
    assert (tried["rows"], tried["malformed"]) == (rows, 0)
    job = ("import", source, *given, *desk.kafka)
    process = Forked(job, desk.folder / "out", desk.folder / "errors", {})
    wait_for(lambda: desk.buffered() > before or process.poll() is not None, "it sends")
    process.kill()
    process.wait(HANGS_S)
    assert before < desk.buffered() < before + rows, "it was killed on its way"
    for _ in range(2):
        said = desk.run(source, *given, "--resume")
        assert said["verdicts"] == {"scheduled": rows} and said["complete"]
        assert said["kept"]["messages"] == rows
    return time.monotonic() - began_s


@pytest.mark.rehearsal
@pytest.mark.timeout(7_200)
def test_a_hundred_thousand_messages_of_redis_are_imported_each_once(desk: Desk) -> None:
    """A set, and a queue of Celery of which workers that died had fetched a half."""
    count = int(os.environ.get("DELAYD_IMPORT_ROWS", "100000"))
    begun = datetime.now(UTC) + timedelta(days=1)
    target = f"target.{desk.cluster.name}.orders"
    texts = {
        "zset": f'topic = "{target}"\nid = "{{member.id}}"\ndue = "{{score}}"\nunit = "s"\n',
        "celery": f'topic = "{target}"\nid = "{{id}}"\ndue = "{{eta}}"\n',
    }
    due = {n: begun + timedelta(milliseconds=n) for n in range(count)}
    with redis_server() as url, closing(redis.Redis.from_url(url)) as client:
        client.zadd(
            "later",
            {
                f'{{"id": "zset-{n}", "what": "{"x" * 100}"}}': at.timestamp()
                for n, at in due.items()
            },
        )
        fill_celery(url, {f"celery-{n}": at for n, at in due.items()}, count // 2)
        for kind, text in texts.items():
            mapping = desk.mapping(f"{kind}-many", text)
            source = {"zset": "zset:later", "celery": "celery:celery"}[kind]
            given = ("--mapping", str(mapping), "--from-url", url)
            took_s = killed_and_resumed(desk, source, given, count)
            print(f"{count} of {source}: {took_s:.0f} s, the dry run and a kill with it")
            wanted = sorted((f"{kind}-{n}", ceil_ms(at)) for n, at in due.items())
            _wait_for_pending(desk, f"{kind}-", wanted)
        assert client.llen("celery") == 0 and client.hlen("unacked") == 0


def test_what_is_in_the_queue_again_is_no_success(desk: Desk) -> None:
    """Somebody had fetched two messages when all others were taken."""
    begun_ms = int(time.time() * 1000)
    mapping = desk.mapping(
        "again",
        f'topic = "target.{desk.cluster.name}.orders"\nid = "a{{_id}}"\ndue = "{{due_ms}}"\n',
    )
    with rabbit_server() as url:
        _fill_rabbit(url, 5, begun_ms, HOUR_S * 1000)
        wait_for(lambda: _ready(url, "wait") == 5, "all are there")
        given = ("rabbitmq:wait", "--mapping", str(mapping), "--from-url", url)
        with closing(pika.BlockingConnection(pika.URLParameters(url))) as other:
            channel = other.channel()
            assert all(channel.basic_get("wait")[0] for _ in range(2))
            assert desk.run(*given)["verdicts"] == {"scheduled": 3}
        wait_for(lambda: _ready(url, "wait") == 2, "they are back")
        said = desk.run(*given, "--resume", code=1)
        assert said["complete"] and said["kept"]["messages"] == 3
        assert said["kept"]["rest"] == "2 messages and 0 consumers"
        refused = delayd_in_process("import", *given, "--ttl", "15m", *desk.kafka, "--resume")
        assert "another mapping, --payload or --ttl" in refused.stderr


@pytest.mark.rehearsal
@pytest.mark.timeout(7_200)
def test_a_hundred_thousand_messages_of_rabbitmq_are_imported_each_once(desk: Desk) -> None:
    """Each with an expiry of its own, and the time at which it was published."""
    count = int(os.environ.get("DELAYD_IMPORT_ROWS", "100000"))
    begun_ms, lives_ms = int(time.time() * 1000), 24 * HOUR_S * 1000
    with rabbit_server() as url:
        _fill_rabbit(url, count, begun_ms, lives_ms)
        mapping = desk.mapping(
            "rabbit",
            f'topic = "target.{desk.cluster.name}.orders"\nid = "{{message_id}}"\n'
            'due = "{due_ms}"\n',
        )
        wait_for(lambda: _ready(url, "wait") == count, "all are there")
        given = ("--mapping", str(mapping), "--from-url", url)
        took_s = killed_and_resumed(desk, "rabbitmq:wait", given, count)
        print(f"{count} of rabbitmq: {took_s:.0f} s, the dry run and a kill with it")
        assert _ready(url, "wait") == 0
    wanted = sorted((f"rabbit-{n}", begun_ms + lives_ms + 2 * n) for n in range(count))
    _wait_for_pending(desk, "rabbit-", wanted)


def _fill_rabbit(url: str, count: int, begun_ms: int, lives_ms: int) -> None:
    with closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        channel = connection.channel()
        channel.queue_declare("wait", durable=True, arguments={"x-dead-letter-exchange": "dead"})
        for n in range(count):
            properties = pika.BasicProperties(
                message_id=f"rabbit-{n}",
                expiration=str(lives_ms + n),
                delivery_mode=2,
                headers={"timestamp_in_ms": begun_ms + n},
            )
            channel.basic_publish("", "wait", b"x" * 100, properties)


def _ready(url: str, queue: str) -> int:
    with closing(AmqpServer(url)) as server:
        return (server.counts_of(queue) or (0, 0))[0]


def ceil_ms(at: datetime) -> int:
    """Unix milliseconds, never early."""
    return -((datetime(1970, 1, 1, tzinfo=UTC) - at) // timedelta(milliseconds=1))


@pytest.mark.rehearsal
@pytest.mark.timeout(7_200)
def test_a_hundred_thousand_rows_are_imported_in_bounded_memory(desk: Desk) -> None:
    """`DELAYD_IMPORT_ROWS` for another number. What it took is printed (`-s`)."""
    count = int(os.environ.get("DELAYD_IMPORT_ROWS", "100000"))
    rows = desk.folder / "many.jsonl"
    begun_ms = int(time.time() * 1000) + 24 * HOUR_S * 1000
    with rows.open("w") as file:
        for n in range(count):
            file.write(json.dumps({"id": n, "at": begun_ms + n, "what": "x" * 100}) + "\n")
    mapping = desk.mapping(
        "many",
        f'topic = "target.{desk.cluster.name}.orders"\nid = "many-{{id}}"\ndue = "{{at}}"\n',
    )
    out, began_s = desk.folder / "said", time.monotonic()
    with out.open("wb") as file:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "delayd.commands.cli", "import", str(rows), "--json"),
                *("--mapping", str(mapping), *desk.kafka),
            ],
            stdout=file,
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    took_s, most_kib = time.monotonic() - began_s, usage.ru_maxrss
    print(f"{count} rows: {took_s:.0f} s, {most_kib // 1024} MiB, {usage.ru_utime:.0f} s of CPU")
    assert process.returncode == 0
    assert json.loads(out.read_text())["verdicts"] == {"scheduled": count}
    assert most_kib < MEMORY_KIB_MAX
    wanted = sorted((f"many-{n}", begun_ms + n) for n in range(count))
    _wait_for_pending(desk, "many-", wanted)


def _wait_for_pending(desk: Desk, id_prefix: str, wanted: list[tuple[str, int]]) -> None:
    many = len(wanted)
    wait_for(lambda: len(desk.pending(id_prefix, 2 * many)) == many, "all are listed")
    assert desk.pending(id_prefix, 2 * many) == wanted
