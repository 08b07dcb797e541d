"""`delayd bench audit`: time and memory of `delayd audit`, against a bare read of the same topics.

One local cluster gets a mixture of requests (mixture.py). When its nodes have delivered what is
due, it is audited once per run, each time after a bare read. The nodes keep running. The audit's
memory is that of its whole process tree (process_costs.py).
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

from confluent_kafka import Consumer, KafkaError, TopicPartition

from delayd.audit.reading.session import require_spark
from delayd.bench.brokers import PARTITIONS, TOPIC_TIMEOUT_MS
from delayd.bench.figures import Figure, Measured
from delayd.bench.mixture import BUFFER, send, targets_of
from delayd.bench.process_costs import MemoryPeak, tree_pss
from delayd.cluster.connect import open_bus
from delayd.dev.cluster import LocalCluster
from delayd.dev.kafka import create_topic
from delayd.dev.nodes import read_status
from delayd.errors import DelaydError
from delayd.runtime.clock import SystemClock

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
    targets = targets_of(run)
    for target in targets:
        create_topic(open_bus(cluster.bootstrap), target, PARTITIONS)
    sent = send(cluster.bootstrap, run, messages)
    if sent.failed:
        raise AuditBenchError(f"{sent.failed} requests were not written")
    _wait_until_done(cluster, sent.last_due_ms)
    measured = Measured()
    for _ in range(runs):
        bare_s = _bare_read_s(cluster.bootstrap, (*TOPICS, *targets))
        _audit(cluster, messages, bare_s, measured)
    return measured.figures()


def _wait_until_done(cluster: LocalCluster, last_due_ms: int) -> None:
    """Wait until every node has ingested all, and the frontier has passed all that is due."""
    clock = SystemClock()
    with contextlib.closing(open_bus(cluster.bootstrap).cluster()) as kafka:
        wanted = kafka.end_offsets(BUFFER, TOPIC_TIMEOUT_MS, committed=True)
    ends = [wanted[partition] for partition in range(len(wanted))]
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
            [sys.executable, "-m", "delayd.cli", *command],
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
