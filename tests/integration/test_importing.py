"""`delayd import` on real Kafka with a real node: killed on its way, and resumed.

Source: docs/guides/importing.md.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import count as counting
from pathlib import Path
from typing import Any

import pika
import pytest
from clusters import TestCluster, make_cluster
from confluent_kafka import Producer
from forking import Forked
from import_sources import DAY_MS, SOURCES, Place, of_rabbitmq, ready
from nodes import HANGS_S, NodeProcess, delayd_in_process, running, wait_for
from topics_read import read_until

from delayd.bus.confluent import ConfluentBus
from delayd.client.changing import UNDER_WAY_MAX
from delayd.commands.importing.job import ROWS as ROWS_NOTED
from delayd.commands.importing.journal import Journal
from delayd.dev.cluster import LocalCluster
from delayd.runtime.clock import wait_until

NOTED = UNDER_WAY_MAX + ROWS_NOTED
"""Who has sent more has answers in the journal: what is under way is bounded."""
ROWS = 2 * NOTED
"""So that an import that is killed behind its first note has not sent all."""
RECORDS = 200
MEMORY_KIB_MAX = 200 * 1024
"""Of an import, whatever the number of its rows."""

_numbers = counting()

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

    def new_topic(self, name: str) -> str:
        """Create a topic; its name."""
        return self.cluster.create_topic(f"{self.cluster.name}.{name}{next(_numbers)}", 3)

    def compared(self, due_ms: Mapping[str, int]) -> tuple[int, int, int]:
        """How many of these are not pending, are so more than once or unasked, or for another
        time."""
        prefix, limit = _common_prefix([*due_ms]), 2 * len(due_ms)
        wait_until(lambda: len(self._pending(prefix, limit)) >= len(due_ms), HANGS_S * 1000, 500)
        found = self._pending(prefix, limit)
        ids = {id_ for id_, _ in found}
        moved = sum(due_ms.get(id_, ms) != ms for id_, ms in found)
        doubled = len(found) - len(ids) + len(ids - due_ms.keys())
        return len(due_ms.keys() - ids), doubled, moved

    def _pending(self, id_prefix: str, limit: int) -> list[tuple[str, int]]:
        arguments = ("list", "--id-prefix", id_prefix, "--limit", str(limit), "--json")
        done = delayd_in_process(*arguments, "--admin", self.node.url)
        assert done.returncode == 0, done.stderr
        return [(each["id"], each["due_ms"]) for each in json.loads(done.stdout)["messages"]]


@pytest.fixture(scope="module")
def desk(kafka_and_etcd: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("importing")
    cluster = make_cluster(kafka_and_etcd, folder)
    cluster.target("orders")
    node = cluster.node(1, api_anonymous_reads=True)
    with running([node]):
        yield Desk(cluster, node, folder)


@pytest.mark.parametrize("kind", SOURCES)
def test_an_import_that_was_killed_and_resumed_has_each_message_once(desk: Desk, kind: str) -> None:
    imported_in_parts(desk, kind, ROWS)


@pytest.mark.rehearsal
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("kind", SOURCES)
def test_a_hundred_thousand_messages_are_imported_each_once(desk: Desk, kind: str) -> None:
    """`DELAYD_IMPORT_ROWS` for another number. What came of it is printed (`-s`)."""
    print(imported_in_parts(desk, kind, int(os.environ.get("DELAYD_IMPORT_ROWS", "100000"))))


def imported_in_parts(desk: Desk, kind: str, count: int) -> str:
    """Look, then import, killed when it has begun and again behind a note. Return figures."""
    folder = desk.folder / f"{kind}-{count}"
    folder.mkdir()
    place = Place(folder, desk.cluster.bootstrap, desk.new_topic)
    first_ms = int(time.time() * 1000) + DAY_MS
    began_s = time.monotonic()
    with SOURCES[kind](place, count, first_ms) as held:
        assert len(held.due_ms) == count
        filled_s, before = time.monotonic() - began_s, desk.buffered()
        text = f'topic = "target.{desk.cluster.name}.orders"\n{held.mapping}'
        mapping = desk.mapping(f"{kind}-{count}", text)
        given = (held.source, "--mapping", str(mapping), *held.options)
        tried = desk.run(*given, "--dry-run")
        looked_s = time.monotonic() - began_s - filled_s
        assert (tried["rows"], tried["malformed"], tried["overdue"]) == (count, 0, 0)
        journal = mapping.with_suffix(".job")
        assert desk.buffered() == before and not journal.exists(), "a look sends nothing"
        _kill_when(desk, given, journal.exists, "it has begun")
        assert "--resume" in delayd_in_process("import", *given, *desk.kafka).stderr
        again = desk.buffered()
        _kill_when(desk, (*given, "--resume"), lambda: desk.buffered() > again + NOTED, "it notes")
        with Journal(journal) as noted:
            assert not noted.is_done and 0 < noted.rows < count, "it was killed on its way"
        for _ in range(2):
            said = desk.run(*given, "--resume")
            assert said["complete"] and said["rows"] == count
            assert said["verdicts"] == {"scheduled": count}
            assert said.get("kept", {"messages": count})["messages"] == count
        other = ("import", *given, "--payload", "other", *desk.kafka, "--resume")
        assert "another mapping, --payload or --ttl" in delayd_in_process(*other).stderr
        assert held.left() == 0, "the old system delivers none of them"
        imported_s = time.monotonic() - began_s - filled_s - looked_s
    lost, doubled, moved = desk.compared(held.due_ms)
    figures = (
        f"{kind}: {count:,} messages, {lost} lost, {doubled} doubled, {moved} at another time;"
        f" filled in {filled_s:.0f} s, looked at in {looked_s:.0f} s,"
        f" imported in {imported_s:.0f} s"
    )
    assert (lost, doubled, moved) == (0, 0, 0), figures
    return figures


def _common_prefix(ids: list[str]) -> str:
    first, last = min(ids), max(ids)
    alike = (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(alike, len(first))]


def _kill_when(
    desk: Desk, given: tuple[str, ...], condition: Callable[[], bool], what: str
) -> None:
    job = ("import", *given, *desk.kafka)
    process = Forked(job, desk.folder / "out", desk.folder / "errors", {})
    wait_for(lambda: condition() or process.poll() is not None, what)
    process.kill()
    process.wait(HANGS_S)


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


def test_what_is_in_the_queue_again_is_no_success(desk: Desk) -> None:
    """Somebody had fetched two messages when all others were taken."""
    begun_ms = int(time.time() * 1000)
    mapping = desk.mapping(
        "again",
        f'topic = "target.{desk.cluster.name}.orders"\nid = "a{{_id}}"\ndue = "{{due_ms}}"\n',
    )
    place = Place(desk.folder, desk.cluster.bootstrap, desk.new_topic)
    with of_rabbitmq(place, 5, begun_ms + DAY_MS) as held:
        url, given = held.options[1], (held.source, "--mapping", str(mapping), *held.options)
        with closing(pika.BlockingConnection(pika.URLParameters(url))) as other:
            channel = other.channel()
            assert all(channel.basic_get("wait")[0] for _ in range(2))
            assert desk.run(*given)["verdicts"] == {"scheduled": 3}
        wait_for(lambda: ready(url, "wait") == 2, "they are back")
        said = desk.run(*given, "--resume", code=1)
        assert said["complete"] and said["kept"]["messages"] == 3
        assert said["kept"]["rest"] == "2 messages and 0 consumers"
        refused = delayd_in_process("import", *given, "--ttl", "15m", *desk.kafka, "--resume")
        assert "another mapping, --payload or --ttl" in refused.stderr


@pytest.mark.rehearsal
@pytest.mark.timeout(7_200)
def test_a_hundred_thousand_rows_are_imported_in_bounded_memory(desk: Desk) -> None:
    """`DELAYD_IMPORT_ROWS` for another number. What it took is printed (`-s`)."""
    count = int(os.environ.get("DELAYD_IMPORT_ROWS", "100000"))
    rows = desk.folder / "many.jsonl"
    begun_ms = int(time.time() * 1000) + DAY_MS
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
    due_ms = {f"many-{n}": begun_ms + n for n in range(count)}
    assert desk.compared(due_ms) == (0, 0, 0)
