"""The demo's story: an order service's time-outs, delivered through the death of the master.

N orders each get a "cancel if unpaid" message, due within about a minute. A third of them is paid
(batch.py): before, around and after the due time, and each payment cancels its time-out. In the
middle the master is killed with SIGKILL; a follower takes over; the killed node comes back. An
independent witness (witness.py) counts the messages that arrive and the verdicts that payments get.
Then `delayd audit` judges every message and every replica (demo_audit.py). Both must find nothing,
and agree.

Not here: the display (display.py, drawing.py), the cluster (cluster.py), the payments' client
(cashier.py).

Invariants: nothing is left running, whatever happens. The folder is removed only after a run in
which all was right or one that was interrupted, and never if --dir named it.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Final
from uuid import uuid4

from delayd.bus.confluent import ConfluentBus
from delayd.client import Client, Request
from delayd.dev.batch import Batch, Payments
from delayd.dev.cashier import Cashier
from delayd.dev.cluster import LocalCluster
from delayd.dev.demo_audit import audit
from delayd.dev.demo_report import DemoReport
from delayd.dev.display import Display
from delayd.dev.folder import REPORT
from delayd.dev.kafka import create_topic
from delayd.dev.ledger import Kill
from delayd.dev.startup import ClusterOptions
from delayd.dev.witness import Witness
from delayd.errors import DelaydError
from delayd.runtime.clock import SystemClock, wait_until

NODES: Final = 3
TOPIC: Final = "order-timeouts"
RECEIPTS: Final = "delayd-receipts"
TOPIC_PARTITIONS: Final = 4

LEAD_MS: Final = 4_000
ORDERS_PER_LEAD_MS: Final = 4
"""The first order is due so long after the start that all are scheduled before, even on a busy
machine: two cores, which also run everything else, scheduled 5 to 7 in a ms."""

TAKEOVER_TIMEOUT_MS: Final = 60_000
DRAIN_TIMEOUT_MS: Final = 60_000
"""How long after the last due time or payment a message or receipt may come before it is lost."""

SETTLE_MS: Final = 2_000
"""How long the witness waits for doubles after the last message."""

POLL_MS: Final = 100

ORDERS_MIN: Final = 100
SECONDS_MIN: Final = 10
"""Fewer would leave nothing to deliver while the master is dead."""


class DemoError(DelaydError):
    """The demo did not end as it should: the verdict or a part of the story is wrong."""

    code = "demo"


def run_demo(
    orders: int,
    seconds: int,
    directory: Path | None,
    display: Display,
    show: Callable[[DemoReport], None],
) -> None:
    """Play the story and show its report, if it came to its end. `directory` None: a new temporary
    folder. The audit's page stays even if that is removed.

    Raises DemoError if anything in the report is wrong, another DelaydError if the story could not
    go on."""
    page = ((directory or Path.cwd()) / REPORT).resolve()
    with _folder(directory) as folder:
        report = _Story(folder, display).play(orders, seconds, page)
        show(report)
        if report.problems:
            raise DemoError(report.told, remedy=f"see {folder / 'logs'}")


class _Story:
    """One run, on a display, in a folder."""

    def __init__(self, directory: Path, display: Display) -> None:
        self._display = display
        self._clock = SystemClock()
        options = ClusterOptions(nodes=NODES)
        self._cluster = LocalCluster(directory, options, progress=display.doing)
        self._log = directory / "logs" / "witness.log"

    def play(self, orders: int, seconds: int, page: Path) -> DemoReport:
        """Play from the start of the cluster to the verdict."""
        started_ms = self._clock.monotonic_ms()
        with self._cluster as cluster:
            status = cluster.status()
            self._display.tell(f"cluster up: Kafka, etcd, {NODES} nodes")
            bus = ConfluentBus(cluster.bootstrap, client_id="delayd-demo")
            create_topic(bus, TOPIC, TOPIC_PARTITIONS)
            lead_ms = LEAD_MS + orders // ORDERS_PER_LEAD_MS
            batch = Batch(
                run=uuid4().hex[:8],
                topics=(TOPIC,),
                count=orders,
                first_due_ms=self._clock.wall_ms() + lead_ms,
                spread_ms=seconds * 1000,
            )
            scene = self._display.scene
            scene.planned, scene.payments = batch.count, Payments(batch).count
            with (
                Witness(cluster.bootstrap, batch, log=self._log, receipts=RECEIPTS) as witness,
                self._display.watching(
                    {node["name"]: node["admin"] for node in status["nodes"]}, witness.snapshot
                ),
            ):
                schedule_ms, late = self._schedule(batch)
                killed, successor, rejoin_ms = self._play(batch, witness)
                verdict = witness.stop()
            # After the witness comes the audit, while all nodes still run.
            proof = audit(
                cluster.directory,
                page,
                log=self._log.with_name("audit.log"),
                tell=self._display.tell,
            )
            self._display.tell("ending everything")
        return DemoReport(
            orders=batch.count,
            payments=Payments(batch).count,
            masters=self._display.masters,
            wall_ms=self._clock.monotonic_ms() - started_ms,
            proof=proof,
            schedule_ms=schedule_ms,
            scheduled_late=late,
            killed=killed,
            successor=successor,
            rejoin_ms=rejoin_ms,
            verdict=verdict,
        )

    def _play(self, batch: Batch, witness: Witness) -> tuple[str, str, int]:
        """Play the payments and the failover, until nothing more is to come. Return as
        `_lose_master`."""
        payments = Payments(batch)
        with Cashier(self._cluster.bootstrap, payments, self._display.paid) as cashier:
            lost = self._lose_master(batch, witness)
            left_ms = payments.last_ms + DRAIN_TIMEOUT_MS - self._clock.wall_ms()
            if not cashier.wait(max(0, left_ms)):
                raise DemoError(f"{payments.count - cashier.sent} payments could not be sent")
        left_ms = payments.last_ms + DRAIN_TIMEOUT_MS - self._clock.wall_ms()
        witness.wait_until(batch.count, max(0, left_ms), answers=payments.count)
        counts = witness.snapshot().counts
        self._display.tell(
            f"delivered: {counts.delivered}, cancelled: {counts.cancelled}; waiting for doubles"
        )
        Event().wait(SETTLE_MS / 1000)
        return lost

    def _lose_master(self, batch: Batch, witness: Witness) -> tuple[str, str, int]:
        """Kill the master in the middle. Return its name, its successor, and after how many ms
        it was back."""
        self._sleep_until(batch.first_due_ms)
        self._display.tell("the first order is due")
        self._sleep_until(batch.first_due_ms + batch.spread_ms // 2)
        killed = self._kill_master(witness)
        successor = self._await_successor(killed, witness)
        return killed, successor, self._restart(killed)

    def _schedule(self, batch: Batch) -> tuple[int, int]:
        """Schedule all orders. Return how long that took, and how many were overdue by then."""
        begun_ms = self._clock.monotonic_ms()
        late = 0
        requests = (
            Request(
                batch.topic(number),
                batch.value(number),
                id=batch.key(number).decode(),
                at=batch.due_ms(number),
                headers=batch.headers(number),
            )
            for number in range(batch.count)
        )
        with Client(self._cluster.bootstrap) as client:
            for count, outcome in enumerate(client.schedule_many(requests), 1):
                if isinstance(outcome, DelaydError):
                    raise DemoError("an order could not be scheduled") from outcome
                late += outcome.append_ms > outcome.due_ms
                self._display.scene.scheduled = count
        took_ms = self._clock.monotonic_ms() - begun_ms
        self._display.tell(f"{batch.count} orders scheduled in {took_ms / 1000:.1f} s")
        return took_ms, late

    def _sleep_until(self, at_ms: int) -> None:
        Event().wait(max(0, at_ms - self._clock.wall_ms()) / 1000)

    def _kill_master(self, witness: Witness) -> str:
        wait_until(lambda: self._display.master() is not None, TAKEOVER_TIMEOUT_MS, POLL_MS)
        master = self._cluster.status()["master"]
        if master is None:
            raise DemoError("no node delivered when the master was to be killed")
        at_ms = self._clock.wall_ms()
        self._cluster.kill(master)
        witness.note_kill(Kill(at_ms, self._clock.wall_ms()))
        self._display.tell(f"master {master} killed (SIGKILL)")
        return master

    def _await_successor(self, killed: str, witness: Witness) -> str:
        """Wait until another node is master and, if anything is due, has delivered."""

        def delivered() -> bool:
            failovers = witness.snapshot().failovers
            return bool(failovers) and (not failovers[0].counts or failovers[0].gap_ms is not None)

        def took_over() -> bool:
            return self._display.master() not in (None, killed) and delivered()

        if not wait_until(took_over, TAKEOVER_TIMEOUT_MS, POLL_MS):
            raise DemoError(
                f"nobody took over from {killed} within {TAKEOVER_TIMEOUT_MS // 1000} s",
                remedy=f"see {self._log.parent}",
            )
        successor = self._display.masters[-1]
        gap_ms = witness.snapshot().failovers[0].gap_ms
        after = "" if gap_ms is None else f", first delivery {gap_ms / 1000:.1f} s after the kill"
        self._display.tell(f"{successor} took over{after}")
        return successor

    def _restart(self, killed: str) -> int:
        begun_ms = self._clock.monotonic_ms()
        self._cluster.start(killed)
        took_ms = self._clock.monotonic_ms() - begun_ms
        self._display.tell(f"{killed} is back and ready after {took_ms / 1000:.1f} s")
        return took_ms


@contextmanager
def _folder(chosen: Path | None) -> Iterator[Path]:
    """Yield the folder to work in. A temporary one is kept, and named, if something went wrong."""
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
