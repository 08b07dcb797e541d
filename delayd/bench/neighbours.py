"""`delayd bench neighbours`: the cost of a failing target to its neighbours, in lateness.

Windows in turn, on one local cluster: in the first of a pair all targets exist; in the second a
tenth of the messages goes to a target that does not. The lateness is that of the others only,
measured by the witness (delayd/dev/witness.py), another driver in another process. Then the missing
target is created, and a second witness counts the messages that were being retried: each once.

Invariants: both windows of a pair send the same to topics of the same shape; everything was
scheduled before the first message of a window is due.
"""

from threading import Event
from typing import Final
from uuid import uuid4

from confluent_kafka import KafkaError, Message, Producer

from delayd.bench.brokers import PARTITIONS
from delayd.bench.errors import BenchError
from delayd.bench.figures import Figure, Measured
from delayd.bench.sending import produce
from delayd.cluster.connect import open_bus
from delayd.dev.batch import Batch
from delayd.dev.cluster import LocalCluster
from delayd.dev.kafka import create_topic
from delayd.dev.verdict import Verdict
from delayd.dev.witness import Witness
from delayd.runtime.clock import SystemClock

RATE: Final = 2_000
"""Messages a second, of which one in FAILING_SHARE goes to the target that may be missing."""

FAILING_SHARE: Final = 10
HEALTHY_TARGETS: Final = 3

LEAD_MS: Final = 10_000
"""Time to schedule a window: ten times what two idle cores need."""

BUFFER: Final = "delayd-buffer"
PRODUCER: Final[dict[str, str | int]] = {
    "acks": "all",
    "linger.ms": 20,
    "queue.buffering.max.messages": 1_000_000,
}

WARM_UP_MESSAGES: Final = 10_000
"""A broker that has just started is slower than later."""

DRAIN_MS: Final = 60_000
RETRIES_MS: Final = 180_000
"""A message that has failed for a short while is retried within a minute (10 s, then 30 s)."""

SETTLE_MS: Final = 2_000
"""How long a witness waits for doubles after the last message."""


def bench_neighbours(cluster: LocalCluster, messages: int, runs: int) -> list[Figure]:
    """Return the lateness of the neighbours, and the faults of all messages; needs running
    nodes."""
    clock = SystemClock()
    window = _Window(cluster, clock)
    window.play(WARM_UP_MESSAGES, is_missing=False)
    measured = Measured()
    for _ in range(runs):
        whole, failing = (window.play(messages, is_missing=each) for each in (False, True))
        took_ms, retried = window.heal()
        assert whole.lateness_ms and failing.lateness_ms, "something arrived"
        for name in ("p50", "p99", "p999", "max"):
            other, own = (float(getattr(each.lateness_ms, name)) for each in (whole, failing))
            measured.add(f"whole-{name}", "ms late", other)
            measured.add(f"neighbours-{name}", "ms late", own, f"whole-{name}", other)
        kinds = {"whole": whole, "neighbours": failing, "retried": retried}
        for kind, verdict in kinds.items():
            measured.add(f"{kind}-wrong", "messages", _wrong(verdict))
        measured.add("retried-all-arrived", "s after creation", took_ms / 1000)
    return measured.figures()


class _Window:
    """Plays one window after the other."""

    def __init__(self, cluster: LocalCluster, clock: SystemClock) -> None:
        self._cluster = cluster
        self._bus = open_bus(cluster.bootstrap)
        self._clock = clock
        self._log = cluster.directory / "logs" / "witness.log"
        self._failing: Batch | None = None

    def play(self, messages: int, *, is_missing: bool) -> Verdict:
        """Play one window. Return when all neighbours have arrived, or are long overdue."""
        run = uuid4().hex[:8]
        targets = tuple(f"bench.{run}.{number}" for number in range(HEALTHY_TARGETS))
        tenth = f"bench.{run}.failing"
        for target in targets if is_missing else (*targets, tenth):
            create_topic(self._bus, target, PARTITIONS)
        failing_count = messages // FAILING_SHARE
        due_ms = self._clock.wall_ms() + LEAD_MS
        spread_ms = messages * 1000 // RATE
        healthy = Batch(run, targets, messages - failing_count, due_ms, spread_ms)
        failing = Batch(f"{run}f", (tenth,), failing_count, due_ms, spread_ms)
        self._failing = failing
        with Witness(self._cluster.bootstrap, healthy, log=self._log) as witness:
            self._schedule(failing, healthy)
            left_ms = due_ms + spread_ms + DRAIN_MS - self._clock.wall_ms()
            return self._verdict_of(witness, healthy, left_ms)

    def heal(self) -> tuple[int, Verdict]:
        """Create the missing target. Return the ms until all retried messages had arrived, and
        the verdict."""
        assert self._failing is not None, "a window was played"
        [missing] = self._failing.topics
        create_topic(self._bus, missing, PARTITIONS)
        begun_ms = self._clock.monotonic_ms()
        with Witness(self._cluster.bootstrap, self._failing, log=self._log) as witness:
            witness.wait_until(self._failing.count, RETRIES_MS)
            took_ms = self._clock.monotonic_ms() - begun_ms
            return took_ms, self._verdict_of(witness, self._failing, 0)

    def _verdict_of(self, witness: Witness, batch: Batch, timeout_ms: int) -> Verdict:
        witness.wait_until(batch.count, max(0, timeout_ms))
        Event().wait(SETTLE_MS / 1000)
        return witness.stop()

    def _schedule(self, *batches: Batch) -> None:
        """Schedule all at once, as plain requests; the last append time says whether it was in
        time."""
        last_ms = 0

        def note(error: KafkaError | None, message: Message) -> None:
            nonlocal last_ms
            if error is not None:
                raise BenchError(f"a request was refused: {error}")
            last_ms = max(last_ms, message.timestamp()[1])

        brokers = {"bootstrap.servers": self._cluster.bootstrap}
        producer = Producer({**brokers, **PRODUCER, "on_delivery": note})
        for batch in batches:
            for number in range(batch.count):
                due = ("delayd-due", b"%d" % batch.due_ms(number))
                topic = ("delayd-topic", batch.topic(number).encode())
                headers = [*batch.headers(number), topic, due]
                produce(producer, BUFFER, batch.value(number), batch.key(number), headers)
        left = producer.flush(LEAD_MS / 1000)
        if left or last_ms >= batches[0].first_due_ms:
            raise BenchError(
                "this machine was too slow to schedule everything before it was due",
                remedy="measure when it does nothing else, or fewer --messages",
            )


def _wrong(verdict: Verdict) -> float:
    """Return how many messages were lost, doubled, early or altered; 1 if not all could be read."""
    return float(max(sum(verdict.faults.values()), not verdict.complete))
