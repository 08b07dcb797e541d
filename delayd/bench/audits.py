"""`delayd bench audit`: time and memory of `delayd audit`, against a bare read of the same topics.

One local cluster gets a mixture of requests: half of them due while they are sent, half of them in
two days. A tenth has an id, and of these a third is cancelled a moment later. Nothing is kept of
what was sent, however many there are. When the nodes have delivered what is due, the cluster is
audited once per run, each time after a bare read. The nodes keep running. The audit's memory is
that of its whole process tree (process_costs.py).
"""

import contextlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from delayd.audit.reading.session import require_spark
from delayd.bench.brokers import PARTITIONS, TOPIC_TIMEOUT_MS
from delayd.bench.figures import Figure, Measured
from delayd.bench.load import USER_HEADERS, VALUE_BYTES
from delayd.bench.process_costs import MemoryPeak, tree_pss
from delayd.bench.sending import FILLING_LINGER_MS, PRODUCER, produce
from delayd.cluster.connect import open_bus
from delayd.dev.cluster import LocalCluster
from delayd.dev.kafka import create_topic
from delayd.dev.nodes import read_status
from delayd.errors import DelaydError
from delayd.runtime.clock import SystemClock

BUFFER: Final = "delayd-buffer"
VALUE: Final = b"v" * VALUE_BYTES
TARGETS: Final = 4
ID_SHARE: Final = 10
CANCEL_SHARE: Final = 30

SOON_MS: Final = 10_000
LATER_MS: Final = 48 * 3600 * 1000
LATER_SPREAD_MS: Final = 2 * 3600 * 1000
"""As many files on each node as seconds: enough for a bench."""

CANCEL_DISTANCE: Final = 5_000
"""Messages between one and its cancel: some are delivered by then."""

_STRIDE: Final = 7919

TOPICS: Final = (BUFFER, "delayd-receipts", "delayd-dead", "delayd-frontier")

STALL_MS: Final = 120_000
"""How long the nodes may stand still while messages are due."""

SAMPLE_S: Final = 0.5
BATCH_RECORDS: Final = 2_000
LOG_TAIL_CHARS: Final = 400

_STAGE: Final = re.compile(r"^(.*): done in ([0-9.]+) s$", re.MULTILINE)


class AuditBenchError(DelaydError):
    """The cluster was not ready for an audit in time, or the audit failed."""

    code = "audit-bench"


def bench_audit(cluster: LocalCluster, messages: int, runs: int) -> list[Figure]:
    """Return time, memory and findings of an audit of so many messages; needs running nodes."""
    require_spark()
    run = uuid4().hex[:8]
    targets = [f"bench.{run}.{number}" for number in range(TARGETS)]
    for target in targets:
        create_topic(open_bus(cluster.bootstrap), target, PARTITIONS)
    _wait_until_done(cluster, *_send(cluster.bootstrap, run, targets, messages))
    measured = Measured()
    for _ in range(runs):
        bare_s = _bare_read_s(cluster.bootstrap, (*TOPICS, *targets))
        _audit(cluster, messages, bare_s, measured)
    return measured.figures()


def _wait_until_done(cluster: LocalCluster, last_due_ms: int, ends: list[int]) -> None:
    """Wait until every node has ingested up to these offsets, and the frontier has passed them and
    all that is due."""
    clock = SystemClock()
    admins = [node["admin"] for node in cluster.status()["nodes"]]
    seen: list[Any] = []
    moved_ms = clock.monotonic_ms()
    while True:
        said = [read_status(admin) or {} for admin in admins]
        if all(_has_done(status, ends, last_due_ms) for status in said):
            return
        now = [(status.get("ingested"), status.get("frontier")) for status in said]
        if now != seen:
            seen, moved_ms = now, clock.monotonic_ms()
        elif clock.monotonic_ms() - moved_ms > STALL_MS:
            raise AuditBenchError(
                f"the nodes have not got on for {STALL_MS // 1000} s",
                remedy=f"their logs are in {cluster.directory}",
            )
        threading.Event().wait(0.5)


def _has_done(status: dict[str, Any], ends: list[int], due_ms: int) -> bool:
    """Return whether a node has ingested up to these offsets, and the frontier has passed them
    and that time."""
    frontier = status.get("frontier") or {}
    return int(frontier.get("cursor_ms") or 0) > due_ms and all(
        own and all(at >= end for at, end in zip(own, ends, strict=True))
        for own in (status.get("ingested"), frontier.get("offsets"))
    )


def _audit(cluster: LocalCluster, messages: int, bare_s: float, measured: Measured) -> None:
    """Audit the cluster once, and add the figures of that."""
    clock = SystemClock()
    said, log = (cluster.directory / name for name in ("audit.json", "audit.log"))
    command = ["audit", "--json", "--dir", str(cluster.directory)]
    with said.open("wb") as out, log.open("wb") as err:
        begun_ms = clock.monotonic_ms()
        process = subprocess.Popen(
            [sys.executable, "-m", "delayd.commands.cli", *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        try:
            with MemoryPeak(lambda: tree_pss(process.pid), SAMPLE_S) as memory:
                code = process.wait()
        finally:
            process.kill()  # its Spark ends with it
            process.wait()
        wall_s = (clock.monotonic_ms() - begun_ms) / 1000
    told = log.read_text(errors="replace")
    found = _found(said)
    if code not in (0, 1) or found is None:
        raise AuditBenchError(f"the audit was not made: {' '.join(told.split())[-LOG_TAIL_CHARS:]}")
    reading_s, judging_s = stage_seconds(told)
    measured.add("audit", "s", wall_s, "bare read of the same topics", bare_s)
    measured.add("audit-reading", "s", reading_s)
    measured.add("audit-judging", "s", judging_s)
    measured.add("audit-rate", "messages/s", messages / wall_s)
    measured.add("audit-memory", "MiB", memory.peak_bytes / 2**20)
    measured.add("bare-read", "s", bare_s)
    measured.add("audit-wrong", "findings", float(found))


def stage_seconds(told: str) -> tuple[float, float]:
    """Return the seconds of an audit's stages that read topics, and of all others, from its
    output."""
    reading = judging = 0.0
    for name, seconds in _STAGE.findall(told):
        if name.startswith("reading "):
            reading += float(seconds)
        else:
            judging += float(seconds)
    return reading, judging


def _found(said: Path) -> int | None:
    try:
        found: dict[str, int] = json.loads(said.read_bytes())["found"]
        return sum(found.values())
    except (ValueError, KeyError):
        return None


def _bare_read_s(bootstrap: str, topics: Iterable[str]) -> float:
    """Return the seconds that it takes to consume all that is committed, and to do nothing with
    it."""
    ends = {}
    with contextlib.closing(open_bus(bootstrap).cluster()) as kafka:
        for topic in topics:
            for partition, end in kafka.end_offsets(
                topic, TOPIC_TIMEOUT_MS, committed=True
            ).items():
                if end:
                    ends[topic, partition] = end
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 10,
        }
    )
    clock = SystemClock()
    begun_ms = clock.monotonic_ms()
    consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in ends])
    while ends:
        for message in consumer.consume(BATCH_RECORDS, 0.05):
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                ends.pop((message.topic(), message.partition()), None)  # type: ignore[arg-type]
    elapsed_ms = clock.monotonic_ms() - begun_ms
    consumer.close()
    return elapsed_ms / 1000


def _send(bootstrap: str, run: str, targets: list[str], messages: int) -> tuple[int, list[int]]:
    """Write the mixture to the buffer. Return the last due time of the half that is due soon, when
    Kafka has acknowledged all of it, and of each partition one past the last of it: what the master
    writes behind it ends with a marker, which is no record."""
    clock = SystemClock()
    failed = [0]
    ends = [0] * PARTITIONS

    def note(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed[0] += 1
        else:
            partition, offset = message.partition() or 0, message.offset() or 0
            ends[partition] = max(ends[partition], offset + 1)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "partitioner": "murmur2_random",  # ids have their partition
            "enable.idempotence": True,
            "linger.ms": FILLING_LINGER_MS,
            "on_delivery": note,
            **PRODUCER,
            "delivery.report.only.error": False,
        }
    )
    last_due_ms = 0
    for number in range(messages + CANCEL_DISTANCE):
        before = number - CANCEL_DISTANCE
        if before >= 0 and before % CANCEL_SHARE == 0:
            id = _key(run, before)
            produce(producer, BUFFER, None, id, [("delayd-op", b"cancel"), ("delayd-id", id)])
        if number >= messages:
            continue
        now_ms = clock.wall_ms()
        due_ms = now_ms + number * _STRIDE % SOON_MS
        if number // ID_SHARE % 2:
            due_ms = now_ms + LATER_MS + number * _STRIDE % LATER_SPREAD_MS
        else:
            last_due_ms = max(last_due_ms, due_ms)
        headers = [
            *USER_HEADERS,
            ("delayd-topic", targets[number % TARGETS].encode()),
            ("delayd-due", b"%d" % due_ms),
        ]
        key = _key(run, number)
        if number % ID_SHARE == 0:
            headers.append(("delayd-id", key))
        produce(producer, BUFFER, VALUE, key, headers)
    if failed[0] + (left := producer.flush()):
        raise AuditBenchError(f"{failed[0] + left} requests were not written")
    return last_due_ms, ends


def _key(run: str, number: int) -> bytes:
    return f"{run}-{number}".encode()
