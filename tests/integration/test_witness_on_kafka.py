"""The witness on a real Kafka, without delayd: it goes red for what is wrong there, and only then.

The records are made by hand with delayd's headers: what is red here is the witness's own eyes.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from delayd.bus.confluent import ConfluentBus
from delayd.dev.batch import Batch, Payments
from delayd.dev.cluster import LocalCluster
from delayd.dev.kafka import create_topic
from delayd.dev.verdict import Counts, Verdict
from delayd.dev.witness import Witness, WitnessError
from delayd.runtime.clock import SystemClock

pytestmark = pytest.mark.real

COUNT = 200
TIMEOUT_MS = 30_000
TIMEOUT_S = TIMEOUT_MS / 1000


@pytest.fixture
def bootstrap(kafka_and_etcd: LocalCluster) -> str:
    """Where the session's Kafka is."""
    return kafka_and_etcd.bootstrap


def new_batch(bootstrap: str, *, due_in_ms: int = -60_000) -> Batch:
    """A batch, all due about now, and its target topic."""
    topic = create_topic(ConfluentBus(bootstrap), f"witness-{uuid4().hex}", partitions=3)
    return Batch(
        run=uuid4().hex[:8],
        topics=(topic,),
        count=COUNT,
        first_due_ms=SystemClock().wall_ms() + due_in_ms,
        spread_ms=1_000,
    )


def deliver(
    bootstrap: str,
    batch: Batch,
    numbers: Iterable[int],
    *,
    commit: bool = True,
    value: bytes = b"",
    with_ids: bool = False,
) -> None:
    """As a master would: in one transaction, with the headers of the contract."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid4().hex})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for number in numbers:
        due = str(batch.due_ms(number)).encode()
        ours = [("delayd-due", due), ("delayd-fired", due)]
        if with_ids:
            ours.append(("delayd-id", batch.key(number)))
        producer.produce(
            batch.topic(number),
            batch.value(number) + value,
            batch.key(number),
            headers=[*batch.headers(number), *ours],
        )
    producer.flush(TIMEOUT_S)
    if commit:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.abort_transaction(TIMEOUT_S)


def watch(bootstrap: str, batch: Batch, tmp_path: Path, *, until: int = COUNT) -> Verdict:
    with Witness(bootstrap, batch, log=tmp_path / "witness.log") as witness:
        assert witness.wait_until(until, TIMEOUT_MS)
        return witness.stop()


def test_committed_copies_count_once_and_aborted_ones_not_at_all(
    bootstrap: str, tmp_path: Path
) -> None:
    batch = new_batch(bootstrap)
    deliver(bootstrap, batch, range(COUNT), commit=False)
    deliver(bootstrap, batch, range(COUNT))
    deliver(bootstrap, batch, range(COUNT), commit=False)

    verdict = watch(bootstrap, batch, tmp_path)

    assert verdict.ok
    assert verdict.counts == Counts(delivered=COUNT)


def test_a_dropped_a_doubled_and_an_altered_record_are_seen(bootstrap: str, tmp_path: Path) -> None:
    batch = new_batch(bootstrap)
    deliver(bootstrap, batch, range(1, COUNT - 1))
    deliver(bootstrap, batch, [7])
    deliver(bootstrap, batch, [COUNT - 1], value=b"!")
    deliver(bootstrap, replace(batch, run="stranger"), [0])

    verdict = watch(bootstrap, batch, tmp_path, until=COUNT - 1)

    assert not verdict.ok
    assert verdict.complete
    assert verdict.lost == 1
    assert verdict.counts == Counts(COUNT - 1, doubled=1, altered=1, unknown=1)


def test_records_delivered_before_they_are_due_are_early(bootstrap: str, tmp_path: Path) -> None:
    batch = new_batch(bootstrap, due_in_ms=600_000)
    deliver(bootstrap, batch, range(COUNT))

    verdict = watch(bootstrap, batch, tmp_path)

    assert verdict.counts == Counts(delivered=COUNT, early=COUNT)


def test_what_payments_are_told_is_read_from_the_receipts(bootstrap: str, tmp_path: Path) -> None:
    batch, receipts = new_batch(bootstrap), new_batch(bootstrap).topics[0]
    payments = Payments(batch)
    cancelled = [number for number in range(COUNT) if payments.is_paid(number)]
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in cancelled:
        key = batch.key(number)
        said = {"id": key.decode(), "verdict": "cancelled", "op": "cancel", "killed": ["0/1"]}
        producer.produce(receipts, json.dumps(said).encode(), key)
    assert producer.flush(TIMEOUT_S) == 0
    arrived = [number for number in range(COUNT) if number not in cancelled]
    deliver(bootstrap, batch, arrived, with_ids=True)
    deliver(bootstrap, batch, [cancelled[0]], with_ids=True)

    log = tmp_path / "witness.log"
    with Witness(bootstrap, batch, log=log, receipts=receipts) as witness:
        assert witness.wait_until(COUNT + 1, TIMEOUT_MS, answers=payments.count)
        verdict = witness.stop()

    assert {name: n for name, n in verdict.faults.items() if n} == {"wrong verdicts": 1}
    assert verdict.counts == Counts(delivered=len(arrived) + 1, cancelled=payments.count)


def test_a_topic_that_does_not_exist_is_said_at_once(bootstrap: str, tmp_path: Path) -> None:
    batch = replace(new_batch(bootstrap), topics=(f"witness-{uuid4().hex}",))

    with (
        pytest.raises(WitnessError, match="there is no topic"),
        Witness(bootstrap, batch, log=tmp_path / "witness.log"),
    ):
        pass
