"""The delivery audit, kept running: Structured Streaming over all topics of a cluster.

Spark keeps in `WORK/checkpoint` which records each batch has; following/ keeps what they came to.
So a follower that was killed goes on where it was: no alarm is lost or raised twice.

Not here: what is judged (following/), how topics are read (reading/stream.py).
"""

import fcntl
import json
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from delayd.audit.errors import FollowFailedError
from delayd.audit.following.stall_watch import StallWatch
from delayd.audit.reading.access import Access
from delayd.audit.reading.plan import unplanned_file
from delayd.audit.reading.session import SparkStartError
from delayd.errors import DelaydError
from delayd.runtime.atomic_file import write_atomically
from delayd.runtime.clock import SystemClock
from delayd.runtime.visible import visible
from replication.rules import Rules
from replication.settings import TOPIC_ROLES, Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from delayd.audit.following.batch import Batches

WAIT_S: Final = 0.2
RETRY_FIRST_S: Final = 2.0
RETRY_MAX_S: Final = 30.0
_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)

STOPPING_S: Final = 2.0
"""Whoever stops a whole group of processes stops Spark's too, which may be noticed first."""

DRIVER_MEMORY: Final = "1g"
BATCHES_RETAINED: Final = "2"


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """The options of a follower. `work` keeps the state that a restart needs, of one cluster;
    `interval_ms` is from the beginning of a batch to that of the next."""

    access: Access
    settings: Settings
    work: Path
    metrics: Path | None
    interval_ms: int
    master: str
    rules: Rules
    """As the last frontier had them when it was started."""


def follow(
    options: FollowOptions, tell: Callable[[Mapping[str, Any]], None], say: Callable[[str], None]
) -> int:
    """Run until SIGTERM or SIGINT; return how many alarms there were. `tell` gets each alarm, `say`
    a line when no batches come, and when they come again.

    Raises FollowFailedError, SparkMissingError, JavaMissingError, SparkStartError.
    """
    from delayd.audit.following.alarm_log import AlarmLog
    from delayd.audit.following.batch import Batches
    from delayd.audit.reading.session import FOR_BATCHES, open_session, require_spark

    require_spark()
    clock = SystemClock()
    options = replace(options, work=options.work.resolve())
    work = options.work
    work.mkdir(parents=True, exist_ok=True)
    with _locked(work), stop_asked() as stop:
        claim(work, options.settings)
        remove_left(work)
        alarm_log = AlarmLog(work, tell)
        with (
            ended_by_stop(stop),
            open_session(
                work / "spark",
                name="delayd audit --follow",
                master=options.master,
                driver_memory=DRIVER_MEMORY,
                settings={
                    **FOR_BATCHES,
                    "spark.sql.streaming.minBatchesToRetain": BATCHES_RETAINED,
                },
            ) as spark,
        ):
            stop.listen()
            batches = Batches(
                spark, options.settings, work, options.metrics, alarm_log, clock, options.rules
            )
            batches.resume()
            access = options.access.write(work / "access.json")
            try:
                stalls = StallWatch(clock.monotonic_ms())
                _Run(spark, options, access, batches, clock, say, stalls).until(stop)
            finally:
                access.unlink(missing_ok=True)
    return alarm_log.told


def line_of(alarm: Mapping[str, Any]) -> str:
    """Return an alarm for people: one line, whatever is in the texts of others."""
    topic = visible(alarm["topic"] or "")
    place = f"{topic}/{alarm['partition']}@{alarm['offset']}"
    where = topic if alarm["offset"] is None else place
    named = "" if alarm["id"] is None else f" (id {visible(repr(alarm['id']))})"
    source = visible(alarm["source"] or "")
    return f"alarm: {alarm['fault']}: {source}{named} in {where}: {visible(alarm['reason'])}"


@dataclass(slots=True)
class _Run:
    """The loop that keeps a streaming query alive."""

    _spark: "SparkSession"
    _options: FollowOptions
    _access: Path
    _batches: "Batches"
    _clock: SystemClock
    _say: Callable[[str], None]
    _stalls: StallWatch
    _judged: int = 0
    _failure: BaseException | None = None

    def until(self, stop: threading.Event) -> None:
        """Start queries, one after the other, until asked to stop."""
        retry_s = RETRY_FIRST_S
        while not stop.is_set():
            judged = self._judged
            failure = self._run_one(stop)
            if failure is None:
                return
            if self._judged > judged:
                retry_s = RETRY_FIRST_S
            if isinstance(self._failure, DelaydError):
                raise self._failure
            self._stalls.failed(self._clock.monotonic_ms(), failure)
            self._look()
            stop.wait(retry_s)
            retry_s = min(RETRY_MAX_S, retry_s * 2)

    def _run_one(self, stop: threading.Event) -> str | None:
        """Run one query; return why it ended, or None if it was asked to."""
        query = self._start()
        try:
            while not stop.wait(WAIT_S):
                if not query.isActive:
                    return str(query.exception() or "the query ended")
                self._look()
            return None
        finally:
            query.stop()

    def _look(self) -> None:
        """Tell a person if no batches come; FollowFailedError if that is so for too long."""
        now_ms = self._clock.monotonic_ms()
        with suppress(FileNotFoundError):
            why = unplanned_file(self._options.work / "targets").read_text(errors="replace")
            self._stalls.failed(now_ms, f"it could not be planned: {why}")
        for line in self._stalls.lines(now_ms):
            self._say(line)

    def _start(self) -> "StreamingQuery":
        from delayd.audit.reading.stream import DelaydFollow

        options = self._options
        self._spark.dataSource.register(DelaydFollow)
        topics = {role: getattr(options.settings, role).name for role in TOPIC_ROLES}
        records = (
            self._spark.readStream.format(DelaydFollow.name())
            .option("access", str(self._access))
            .option("topics", json.dumps(topics))
            .option("targets", str(options.work / "targets"))
            .option("shards", str(options.settings.shards))
            .load()
        )
        return (
            records.writeStream.foreachBatch(self._judge)
            .option("checkpointLocation", str(options.work / "checkpoint"))
            .trigger(processingTime=f"{options.interval_ms} milliseconds")
            .start()
        )

    def _judge(self, records: Any, batch: int) -> None:
        try:
            self._batches.judge(records, batch)
        except BaseException as failure:
            self._failure = failure
            raise
        self._judged += 1
        self._stalls.judged(self._clock.monotonic_ms())


@contextmanager
def ended_by_stop(stop: threading.Event) -> Iterator[None]:
    """Let Spark's process end inside: quietly if a stop was asked for, else raise
    FollowFailedError."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except SparkStartError:
        if not stop.wait(STOPPING_S):
            raise
    except (Py4JError, PySparkException, ConnectionError) as failure:
        if not stop.wait(STOPPING_S):
            raise FollowFailedError(
                f"Spark does not answer any more: {failure}",
                remedy="did it lack memory? spark/spark.log in --work; then start it again",
            ) from failure


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Lock the folder: two followers in it would report everything twice."""
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as taken:
            raise FollowFailedError(
                f"another follower runs in {work}", remedy="give each its own --work"
            ) from taken
        yield


class StopAsked(threading.Event):
    """An event that SIGTERM and SIGINT set."""

    def listen(self) -> None:
        """Take the signals, again if somebody else took them since."""
        for each in _STOPPING:
            signal.signal(each, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.set()


@contextmanager
def stop_asked() -> Iterator[StopAsked]:
    """Listen for SIGTERM and SIGINT inside."""
    before = {each: signal.getsignal(each) for each in _STOPPING}
    asked = StopAsked()
    asked.listen()
    try:
        yield asked
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def claim(work: Path, settings: Settings) -> None:
    """Take the folder for this cluster; raise FollowFailedError if it is of another one."""
    mine = {"cluster": settings.cluster, "buffer": settings.buffer.topic_id}
    file = work / "cluster.json"
    if not file.exists():
        write_atomically(file, json.dumps(mine))
    elif json.loads(file.read_text()) != mine:
        raise FollowFailedError(
            f"{work} is of another cluster", remedy="give each cluster its own --work"
        )


def remove_left(work: Path) -> None:
    """Remove what a killed follower left there: how to reach Kafka, and Spark's own files."""
    (work / "access.json").unlink(missing_ok=True)
    unplanned_file(work / "targets").unlink(missing_ok=True)
    shutil.rmtree(work / "spark" / "tmp", ignore_errors=True)
