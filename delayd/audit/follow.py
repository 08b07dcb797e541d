"""The delivery audit, kept running: Structured Streaming over all topics of a cluster.

Spark keeps in `WORK/checkpoint` which records each batch has; following/ keeps what they came to.
So a follower that was killed goes on where it was: no alarm is lost or raised twice.

Not here: what is judged (following/), how topics are read (reading/stream.py).
"""

import fcntl
import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from delayd.audit.reading.access import Access
from delayd.clock import SystemClock
from delayd.errors import DelaydError
from replication.settings import TOPIC_ROLES, Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

INTERVAL_MS: Final = 10_000
"""From the beginning of a batch to that of the next."""

WAIT_S: Final = 0.2
RETRY_FIRST_S: Final = 2.0
RETRY_MAX_S: Final = 30.0
GIVE_UP_MS: Final = 10 * 60 * 1000
"""A follower that had no batch for so long ends, with what stands in its way."""

DRIVER_MEMORY: Final = "1g"
SHUFFLE_PARTITIONS: Final = 4

SPARK_SETTINGS: Final = {
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Batches are small and many: compiling a plan and thinking it over again takes longer than to
run it. All together less than half of the processor time (measured on the unit test)."""


class FollowFailedError(DelaydError):
    """The delivery audit does not run any more; start it again, it goes on where it was."""

    code = "audit-follow"


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """`work` keeps what must be known after a restart; it is of one cluster."""

    access: Access
    settings: Settings
    work: Path
    metrics: Path | None = None
    interval_ms: int = INTERVAL_MS
    master: str = "local[2]"


def follow(options: FollowOptions, tell: Callable[[Mapping[str, Any]], None]) -> int:
    """Runs until SIGTERM or SIGINT; `tell` gets each alarm. Returns how many there were.

    Raises FollowFailedError, SparkMissingError, JavaMissingError, SparkStartError.
    """
    from delayd.audit.following.batch import Batches, Files
    from delayd.audit.following.telling import Teller
    from delayd.audit.reading.session import open_session, require_spark

    require_spark()
    clock = SystemClock()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    with _locked(work), _stop_asked() as stop:
        _claim(work, options.settings)
        teller = Teller(work, tell)
        with open_session(
            work / "spark",
            name="delayd audit --follow",
            master=options.master,
            driver_memory=DRIVER_MEMORY,
            shuffle_partitions=SHUFFLE_PARTITIONS,
            settings=SPARK_SETTINGS,
        ) as spark:
            files = Files(work, options.metrics)
            batches = Batches(spark, options.settings, files, teller, clock)
            batches.resume()
            access = options.access.write(work / "access.json")
            try:
                _Run(spark, options, access, batches, clock).until(stop)
            finally:
                access.unlink(missing_ok=True)
    return teller.told


def line_of(alarm: Mapping[str, Any]) -> str:
    """An alarm for people: one line."""
    place = f"{alarm['topic']}/{alarm['partition']}@{alarm['offset']}"
    where = alarm["topic"] if alarm["offset"] is None else place
    named = "" if alarm["id"] is None else f" (id {alarm['id']!a})"
    return f"alarm: {alarm['fault']}: {alarm['source']}{named} in {where}: {alarm['reason']}"


class _Run:
    """Keeps a streaming query alive."""

    def __init__(
        self,
        spark: "SparkSession",
        options: FollowOptions,
        access: Path,
        batches: Any,
        clock: SystemClock,
    ) -> None:
        self._spark = spark
        self._options = options
        self._access = access
        self._batches = batches
        self._clock = clock
        self._judged_ms = clock.monotonic_ms()
        self._failure: BaseException | None = None

    def until(self, stop: threading.Event) -> None:
        """Start queries, one after the other, until asked to stop."""
        retry_s = RETRY_FIRST_S
        while not stop.is_set():
            begun_ms = self._judged_ms
            failure = self._run_one(stop)
            if failure is None:
                return
            if self._judged_ms > begun_ms:
                retry_s = RETRY_FIRST_S
            if isinstance(self._failure, DelaydError):
                raise self._failure
            if self._clock.monotonic_ms() - self._judged_ms > GIVE_UP_MS:
                raise FollowFailedError(
                    f"no batch could be judged for {GIVE_UP_MS // 60_000} min: {failure}",
                    remedy="start it again when Kafka answers; it goes on where it was",
                )
            stop.wait(retry_s)
            retry_s = min(RETRY_MAX_S, retry_s * 2)

    def _run_one(self, stop: threading.Event) -> str | None:
        """Why the query ended; None if it was asked to."""
        query = self._start()
        try:
            while not stop.wait(WAIT_S):
                if not query.isActive:
                    return str(query.exception() or "the query ended")[:1000]
            return None
        finally:
            query.stop()

    def _start(self) -> "StreamingQuery":
        from delayd.audit.reading.stream import DelaydFollow

        options = self._options
        self._spark.dataSource.register(DelaydFollow)
        topics = {role: getattr(options.settings, role).name for role in TOPIC_ROLES}
        records = (
            self._spark.readStream.format(DelaydFollow.name())
            .option("access", str(self._access))
            .option("topics", json.dumps(topics))
            .option("targets", str(options.work.resolve() / "targets"))
            .load()
        )
        return (
            records.writeStream.foreachBatch(self._judge)
            .option("checkpointLocation", str(options.work.resolve() / "checkpoint"))
            .trigger(processingTime=f"{options.interval_ms} milliseconds")
            .start()
        )

    def _judge(self, records: Any, batch: int) -> None:
        try:
            self._batches.judge(records, batch)
        except BaseException as failure:
            self._failure = failure
            raise
        self._judged_ms = self._clock.monotonic_ms()


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Two followers in one folder would tell everything twice."""
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as taken:
            raise FollowFailedError(
                f"another follower runs in {work}", remedy="give each its own --work"
            ) from taken
        yield


@contextmanager
def _stop_asked() -> Iterator[threading.Event]:
    """Set by SIGTERM and SIGINT, which do nothing else inside."""
    asked = threading.Event()

    def ask(_number: int, _frame: FrameType | None) -> None:
        asked.set()

    before = {each: signal.signal(each, ask) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _claim(work: Path, settings: Settings) -> None:
    """The folder is of this cluster, and of no other."""
    mine = {"cluster": settings.cluster, "buffer": settings.buffer.topic_id}
    file = work / "cluster.json"
    if file.exists() and json.loads(file.read_text()) != mine:
        raise FollowFailedError(
            f"{work} is of another cluster", remedy="give each cluster its own --work"
        )
    file.write_text(json.dumps(mine))
