"""The witness's child process: consumes the targets of a batch and writes a ledger (ledger.py).

It says READY, then its Progress four times a second and at last its Verdict. Its orders are Kills
and STOP. `receipts` is the topic of the receipts of the batch's payments, if it has any.

Invariants: a receipt's time is taken when the poll that brought it returns; only committed records
are seen; the process ends when its input does.
"""

import queue
import threading
import warnings
from typing import Any, Final

from delayd.dev.answers import Answer
from delayd.dev.batch import Batch, Payments
from delayd.dev.job import heard, say
from delayd.dev.ledger import Kill, Ledger, Receipt, nearest_rank
from delayd.dev.verdict import Failover, Progress, Verdict
from delayd.runtime.clock import SystemClock

READY: Final = "ready"
STOP: Final = "stop"
READ_TO_END_MS: Final = 15_000
"""How long the child reads on after it was told to stop. Longer than Kafka lets a dead master's
transaction hide what is behind it (10 s)."""

POLL_MS: Final = 20
POLL_RECORDS_MAX: Final = 500
"""So few that one time for all of them is off by a few ms at most."""

PROGRESS_INTERVAL_MS: Final = 250

_CONSUMER: Final[dict[str, Any]] = {
    "group_id": None,
    "isolation_level": "read_committed",
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "allow_auto_create_topics": False,
    "fetch_max_wait_ms": POLL_MS,
    "max_poll_records": POLL_RECORDS_MAX,
    # Retry a killed broker soon, and do not wait for lost answers.
    "request_timeout_ms": 10_000,
    "reconnect_backoff_max_ms": 500,
    "metadata_max_age_ms": 5_000,
}


def watch(bootstrap: str, batch: Batch, receipts: str | None) -> Verdict | None:
    """Do what the process does. Return None if nobody is there any more to order it."""
    return _Watch(bootstrap, batch, receipts).run()


class _Watch:
    def __init__(self, bootstrap: str, batch: Batch, receipts: str | None) -> None:
        self._clock = SystemClock(offset_ms=0)
        self._ledger = Ledger(batch, None if receipts is None else Payments(batch))
        self._receipts = receipts
        self._recent_ms: list[int] = []
        topics = batch.topics if receipts is None else (*batch.topics, receipts)
        self._consumer, self._partitions = open_consumer(bootstrap, topics)
        self._failovers: tuple[Failover, ...] = ()
        self._kills = 0

    def run(self) -> Verdict | None:
        inbox: queue.SimpleQueue[Kill | str | None] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(inbox,), name="listen", daemon=True).start()
        say(READY)
        told_ms = self._clock.monotonic_ms()
        while True:
            self._poll()
            while not inbox.empty():
                order = inbox.get()
                if order is None:
                    return None
                if order == STOP:
                    return self._ledger.verdict(complete=self._read_to_end())
                assert isinstance(order, Kill), order
                self._ledger.note_kill(order)
                self._kills += 1
            if self._clock.monotonic_ms() - told_ms >= PROGRESS_INTERVAL_MS:
                told_ms = self._clock.monotonic_ms()
                say(self._progress())

    def _poll(self) -> None:
        polled = self._consumer.poll(timeout_ms=POLL_MS)
        received_ms = self._clock.wall_ms()
        for records in polled.values():
            for record in records:
                if record.topic == self._receipts:
                    self._ledger.note_answer(Answer(record.key, record.value))
                    continue
                lateness_ms = self._ledger.write_down(
                    Receipt(record.topic, record.key, record.value, record.headers, received_ms)
                )
                if lateness_ms is not None:
                    self._recent_ms.append(lateness_ms)

    def _progress(self) -> Progress:
        recent = sorted(self._recent_ms)
        self._recent_ms.clear()
        if self._kills > sum(failover.gap_ms is not None for failover in self._failovers):
            self._failovers = self._ledger.failovers()
        return Progress(
            counts=self._ledger.counts(),
            recent_p50_ms=nearest_rank(recent, 500) if recent else None,
            failovers=self._failovers,
        )

    def _read_to_end(self) -> bool:
        """Read all that is committed by now; False if that does not succeed in time."""
        ends = self._consumer.end_offsets(self._partitions)  # read_committed: the stable ends
        deadline_ms = self._clock.monotonic_ms() + READ_TO_END_MS
        while any(self._consumer.position(each) < end for each, end in ends.items()):
            if self._clock.monotonic_ms() > deadline_ms:
                return False
            self._poll()
        return True


def open_consumer(bootstrap: str, topics: tuple[str, ...]) -> tuple[Any, list[Any]]:
    """Return a consumer of all partitions of the topics, from their beginnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kafka-python's own code; not ours to mend
        from kafka import KafkaConsumer, TopicPartition
    consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","), **_CONSUMER)
    partitions = []
    for topic in topics:
        numbers = consumer.partitions_for_topic(topic)
        if not numbers:
            raise SystemExit(f"there is no topic {topic}: create it first")
        partitions += [TopicPartition(topic, number) for number in sorted(numbers)]
    consumer.assign(partitions)
    return consumer, partitions


def _listen(inbox: "queue.SimpleQueue[Kill | str | None]") -> None:
    while (order := heard()) is not None:
        inbox.put(order)
    inbox.put(None)
