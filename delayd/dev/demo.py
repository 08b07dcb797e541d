"""The demo's story: an order service's time-outs, delivered through the death of the master.

N orders each get a "cancel if unpaid" message, due within about a minute. In the middle the master
is killed with SIGKILL; a follower takes over; the killed node comes back. An independent witness
(witness.py) counts what arrives, and its verdict decides.

Not here: what people see of it meanwhile (stage.py, scenery.py), the cluster (cluster.py).

Invariants: whatever happens, nothing is left running; the folder is removed only after a run in
which all was right, or one that was interrupted, and never if it was chosen with --dir.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Lock
from typing import Any, Final
from uuid import uuid4

from delayd.bus.confluent import ConfluentBus
from delayd.client import Client, Scheduled
from delayd.clock import SystemClock
from delayd.dev.batch import Batch
from delayd.dev.cluster import LocalCluster
from delayd.dev.ledger import Kill
from delayd.dev.stage import Stage
from delayd.dev.startup import ClusterOptions
from delayd.dev.verdict import Verdict
from delayd.dev.witness import Witness
from delayd.errors import DelaydError

TOPIC: Final = "order-timeouts"
TOPIC_PARTITIONS: Final = 4
TOPIC_TIMEOUT_MS: Final = 30_000

LEAD_MS: Final = 4_000
ORDERS_PER_LEAD_MS: Final = 4
"""The first order is due so long after the start that all were scheduled before, on a busy machine
too: two cores, which also run everything else, scheduled 5 to 7 in a ms."""

TAKEOVER_TIMEOUT_MS: Final = 60_000
DRAIN_TIMEOUT_MS: Final = 60_000
"""How long after the last due time the last message may arrive before it counts as lost."""

SETTLE_MS: Final = 2_000
"""How long the witness waits for doubles after the last message."""

POLL_MS: Final = 100

ORDERS_MIN: Final = 100
SECONDS_MIN: Final = 10
"""Fewer would leave nothing to deliver while the master is dead."""


class DemoError(DelaydError):
    """The demo did not end as it should: the verdict, or a part of the story, is wrong."""

    code = "demo"


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """`directory` None: a new temporary folder."""

    orders: int = 20_000
    seconds: int = 60
    nodes: int = 3
    directory: Path | None = None


@dataclass(frozen=True, slots=True)
class DemoReport:
    """All figures of a demo that went to its end. Times in ms."""

    orders: int
    schedule_ms: int
    scheduled_late: int
    """Orders that the broker got after they were due: this machine was too slow for its lead."""
    killed: str
    successor: str
    rejoin_ms: int
    """From the start of the killed node's new process until it was ready."""
    masters: tuple[str, ...]
    """Who delivered, one after the other; more than two were not planned."""
    wall_ms: int
    verdict: Verdict

    @property
    def problems(self) -> list[str]:
        """What is not as it should be; empty if all is right."""
        counts = self.verdict.counts
        found = {
            "lost": self.verdict.lost,
            "doubled": counts.doubled,
            "early": counts.early,
            "altered": counts.altered,
            "unknown": counts.unknown,
        }
        problems = [f"{count} {name}" for name, count in found.items() if count]
        if not self.verdict.complete:
            problems.append("the target could not be read to its end")
        if any(failover.counts and failover.gap_ms is None for failover in self.verdict.failovers):
            problems.append("nothing was delivered after the kill")
        return problems

    def to_json(self) -> dict[str, Any]:
        """One flat object; lateness as `delayd audit` has it."""
        verdict = asdict(self.verdict)
        counts = verdict.pop("counts")
        return {
            "verdict": "failed" if self.problems else "ok",
            "problems": self.problems,
            **{name: value for name, value in asdict(self).items() if name != "verdict"},
            **counts,
            **{name: value for name, value in verdict.items() if name != "planned"},
        }

    def story(self) -> list[tuple[str, str]]:
        """What happened, for people."""
        told = [("scheduled in", f"{self.schedule_ms / 1000:.1f} s")]
        if self.scheduled_late:
            told.append(("scheduled after they were due", f"{self.scheduled_late:,}"))
        for failover in self.verdict.failovers:
            told.append((f"{self.killed} killed", f"{self.successor} took over"))
            if failover.counts and failover.gap_ms is not None:
                told.append(("  first delivery after", f"{failover.gap_ms / 1000:.2f} s"))
            if failover.counts and failover.caught_up_ms is not None:
                told.append(("  caught up after", f"{failover.caught_up_ms / 1000:.2f} s"))
        told.append((f"{self.killed} ready again in", f"{self.rejoin_ms / 1000:.1f} s"))
        told.append(("in all", f"{self.wall_ms / 1000:.0f} s"))
        return told


def run_demo(options: DemoOptions, stage: Stage, show: Callable[[DemoReport], None]) -> None:
    """Plays the story and shows its report, if it came to its end. Raises DemoError if anything
    in the report is wrong, another DelaydError if the story could not go on."""
    with _folder(options.directory) as directory:
        report = _Story(options, directory, stage).play()
        show(report)
        if report.problems:
            raise DemoError(_told(report), remedy=f"see {directory / 'logs'}")


class _Story:
    """One run, on a stage, in a folder."""

    def __init__(self, options: DemoOptions, directory: Path, stage: Stage) -> None:
        self._options = options
        self._stage = stage
        self._clock = SystemClock()
        self._cluster = LocalCluster(
            directory, ClusterOptions(nodes=options.nodes), progress=stage.doing
        )
        self._log = directory / "logs" / "witness.log"

    def play(self) -> DemoReport:
        """From nothing to the verdict."""
        started_ms = self._clock.monotonic_ms()
        with self._cluster as cluster:
            status = cluster.status()
            self._stage.tell(f"cluster up: Kafka, etcd, {self._options.nodes} nodes")
            self._create_target()
            batch = self._batch()
            with (
                Witness(cluster.bootstrap, batch, log=self._log) as witness,
                self._stage.watching(
                    {node["name"]: node["admin"] for node in status["nodes"]},
                    batch.count,
                    witness.snapshot,
                ),
            ):
                parts = self._play(batch, witness)
                self._stage.tell("ending everything")
        killed, successor, rejoin_ms, schedule_ms, scheduled_late, verdict = parts
        return DemoReport(
            orders=batch.count,
            schedule_ms=schedule_ms,
            scheduled_late=scheduled_late,
            killed=killed,
            successor=successor,
            rejoin_ms=rejoin_ms,
            masters=self._stage.masters(),
            wall_ms=self._clock.monotonic_ms() - started_ms,
            verdict=verdict,
        )

    def _play(self, batch: Batch, witness: Witness) -> tuple[str, str, int, int, int, Verdict]:
        schedule_ms, scheduled_late = self._schedule(batch)
        self._wait(lambda: self._clock.wall_ms() >= batch.first_due_ms)
        self._stage.tell("the first order is due")
        self._wait(lambda: self._clock.wall_ms() >= batch.first_due_ms + batch.spread_ms // 2)
        killed = self._kill_master(witness)
        successor = self._await_successor(killed, witness)
        rejoin_ms = self._restart(killed)
        last_due_ms = batch.first_due_ms + batch.spread_ms
        left_ms = last_due_ms + DRAIN_TIMEOUT_MS - self._clock.wall_ms()
        witness.wait_until(batch.count, max(0, left_ms))
        self._stage.tell(f"delivered: {witness.snapshot().counts.delivered}; waiting for doubles")
        settled_ms = self._clock.monotonic_ms() + SETTLE_MS
        self._wait(lambda: self._clock.monotonic_ms() >= settled_ms)
        return killed, successor, rejoin_ms, schedule_ms, scheduled_late, witness.stop()

    def _create_target(self) -> None:
        kafka = ConfluentBus(self._cluster.bootstrap, client_id="delayd-demo").cluster()
        try:
            kafka.create_topic(
                TOPIC,
                partitions=TOPIC_PARTITIONS,
                replication_factor=1,
                config={},
                timeout_ms=TOPIC_TIMEOUT_MS,
            )
        finally:
            kafka.close()

    def _batch(self) -> Batch:
        lead_ms = LEAD_MS + self._options.orders // ORDERS_PER_LEAD_MS
        return Batch(
            run=uuid4().hex[:8],
            topics=(TOPIC,),
            count=self._options.orders,
            first_due_ms=self._clock.wall_ms() + lead_ms,
            spread_ms=self._options.seconds * 1000,
        )

    def _schedule(self, batch: Batch) -> tuple[int, int]:
        """Schedules all orders; returns how long it took and how many were late already."""
        begun_ms = self._clock.monotonic_ms()
        tally = _Tally(self._stage.scheduled)
        with Client(self._cluster.bootstrap) as client:
            for number in range(batch.count):
                client.schedule_async(
                    batch.topic(number),
                    batch.value(number),
                    key=batch.key(number),
                    at=batch.due_ms(number),
                    headers=batch.headers(number),
                ).add_done_callback(tally.note)
            client.flush()
        if tally.error is not None:
            raise DemoError("an order could not be scheduled") from tally.error
        took_ms = self._clock.monotonic_ms() - begun_ms
        self._stage.tell(f"{batch.count} orders scheduled in {took_ms / 1000:.1f} s")
        return took_ms, tally.late

    def _kill_master(self, witness: Witness) -> str:
        self._wait(lambda: self._stage.master() is not None, timeout_ms=TAKEOVER_TIMEOUT_MS)
        master = self._cluster.status()["master"]
        if master is None:
            raise DemoError("no node delivered when the master was to be killed")
        at_ms = self._clock.wall_ms()
        self._cluster.kill(master)
        witness.note_kill(Kill(at_ms, self._clock.wall_ms()))
        self._stage.tell(f"master {master} killed (SIGKILL)")
        return master

    def _await_successor(self, killed: str, witness: Witness) -> str:
        """Waits until another node is master and, if anything is due, something was delivered."""

        def delivered() -> bool:
            failovers = witness.snapshot().failovers
            return bool(failovers) and (not failovers[0].counts or failovers[0].gap_ms is not None)

        def took_over() -> bool:
            return self._stage.master() not in (None, killed) and delivered()

        if not self._wait(took_over, timeout_ms=TAKEOVER_TIMEOUT_MS):
            raise DemoError(
                f"nobody took over from {killed} within {TAKEOVER_TIMEOUT_MS // 1000} s",
                remedy=f"see {self._log.parent}",
            )
        successor = self._stage.masters()[-1]
        gap_ms = witness.snapshot().failovers[0].gap_ms
        after = "" if gap_ms is None else f", first delivery {gap_ms / 1000:.1f} s after the kill"
        self._stage.tell(f"{successor} took over{after}")
        return successor

    def _restart(self, killed: str) -> int:
        begun_ms = self._clock.monotonic_ms()
        self._cluster.start(killed)
        took_ms = self._clock.monotonic_ms() - begun_ms
        self._stage.tell(f"{killed} is back and ready after {took_ms / 1000:.1f} s")
        return took_ms

    def _wait(self, condition: Callable[[], bool], *, timeout_ms: int | None = None) -> bool:
        """Waits; False if the time is up first. Without `timeout_ms` the condition is a time."""
        begun_ms = self._clock.monotonic_ms()
        while not condition():
            if timeout_ms is not None and self._clock.monotonic_ms() - begun_ms > timeout_ms:
                return False
            Event().wait(POLL_MS / 1000)
        return True


class _Tally:
    """Counts outcomes of requests; called by the client's thread."""

    def __init__(self, show: Callable[[int], None]) -> None:
        self._show = show
        self._lock = Lock()
        self.done = 0
        self.late = 0
        self.error: BaseException | None = None

    def note(self, future: Future[Scheduled]) -> None:
        """One request has ended."""
        with self._lock:
            self.error = self.error or future.exception()
            if future.exception() is None:
                scheduled = future.result()
                self.done += 1
                self.late += scheduled.append_ms > scheduled.due_ms
                self._show(self.done)


@contextmanager
def _folder(chosen: Path | None) -> Iterator[Path]:
    """The folder to work in. A temporary one is kept, and named, if something went wrong in it."""
    if chosen is not None:
        yield chosen
        return
    directory = Path(tempfile.mkdtemp(prefix="delayd-demo-"))
    keep = True
    try:
        yield directory
        keep = False
    except SystemExit:  # Ctrl-C and the like
        keep = False
        raise
    except DelaydError as error:
        logs = directory / "logs"
        keep = logs.is_dir()  # without them nothing was started
        if keep and str(directory) not in str(error):
            error.remedy = f"{error.remedy}; all logs are in {logs}".lstrip("; ")
        raise
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


def _told(report: DemoReport) -> str:
    examples = "; ".join(report.verdict.examples)
    return f"{', '.join(report.problems)}{f' ({examples})' if examples else ''}"
