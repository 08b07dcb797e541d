"""Steps of one master, move by move: who has to wait for whom, and who must not."""

import json

import pytest
from manual_clock import START_MS
from one_node import Maker

from delayd.node.targets.checks import CHUNKS_MAX
from delayd.wheel import hours, id_memory, near_hours

HOUR_MS = 3_600_000


def test_a_target_that_fails_all_the_time_starves_no_verdict(make: Maker) -> None:
    """docs/design/frontier.md, Verdicts: R grows with each step, a mark waits for it as it was.

    Rules: verdict-waits-for-r
    """
    node = make("orders")
    for number in range(2_000):
        node.send("nowhere", START_MS + 10_000 + 10 * number)
    node.send("orders", START_MS + HOUR_MS, id="a")
    node.ingest()
    node.lead()
    node.clock.now_ms = START_MS + 10_000
    for _ in range(5):
        node.ingest()
        node.step()
        node.clock.now_ms += 10
    node.send("orders", id="a", op="cancel")
    node.send("orders")
    begun_ms = node.clock.now_ms
    while not node.read("orders"):
        assert node.clock.now_ms < begun_ms + 1_000, "an innocent message waits"
        seen = node.consumer.poll(10**6, 0)
        node.step()
        node.clock.now_ms += 10
        node.replica.take(seen)  # one step late, as a reader is
    [receipt] = node.read("delayd-receipts")
    assert json.loads(receipt.value or b"")["verdict"] == "cancelled"


def test_a_verdict_waits_for_a_retry_that_began_before_its_mark_was_passed(make: Maker) -> None:
    """docs/design/frontier.md, Verdicts: the mark waits for the R of the step that found it."""
    node = make(records_max=1)
    asked = node.send("nowhere", START_MS + 100, id="a")
    node.send("nowhere", more=[("delayd-tipo", b"x")])  # an answer, which fills the step
    node.send("nowhere", id="a", op="cancel")
    node.ingest()
    node.lead()
    node.clock.now_ms = START_MS + 100
    node.step()
    retry = node.consumer.poll(10**6, 0)  # one step late, as a reader is
    assert len(retry) == 1, "the mark was not below O', so the message was tried"
    node.step()
    assert node.read("delayd-receipts") == []
    node.replica.take(retry)
    node.step()
    [receipt] = node.read("delayd-receipts")
    told = json.loads(receipt.value or b"")
    assert (told["verdict"], told["killed"]) == ("cancelled", [f"0/{asked.offset}"])


def test_a_cancel_in_a_retry_names_the_users_own_request(make: Maker) -> None:
    """docs/reference/requests.md, "Receipts": nobody else knows the copies in the buffer."""
    node = make()
    asked = node.send("nowhere", id="a")
    node.ingest()
    node.lead()
    node.step()
    node.ingest()
    node.clock.now_ms += 20_000
    node.step()
    node.ingest()
    for _ in range(2):
        node.send("nowhere", id="a", op="cancel")
    node.ingest()
    node.step()
    told = [json.loads(record.value or b"") for record in node.read("delayd-receipts")]
    assert [(t["verdict"], t["killed"]) for t in told] == [
        ("cancelled", [f"{asked.partition}/{asked.offset}"])
    ] * 2
    requests = [r for r in node.read("delayd-buffer") if "delayd-settles" not in dict(r.headers)]
    assert len(requests) == 5, "it had been tried twice"


@pytest.mark.parametrize("crowd", [10, 200])
def test_a_suspect_lane_holds_up_no_late_arrival_of_others(make: Maker, crowd: int) -> None:
    """docs/design/frontier.md, Targets: the lane takes less, and O passes what it leaves."""
    node = make("orders", "bad")
    node.kafka.refuse("bad", "INVALID_RECORD")
    node.send("orders")
    node.ingest()
    node.lead()
    node.step()
    for _ in range(crowd):
        node.send("bad")
    node.send("orders")
    node.ingest()
    for _ in range(10):
        node.step()
        node.clock.now_ms += 10
        node.ingest()
    assert len(node.read("orders")) == 2
    assert sum(node.failures.values()) <= 6


def test_a_burst_to_a_target_that_takes_small_batches_is_spread_over_steps(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/frontier.md, Targets: each batch is flushed by itself, while all others wait.

    Rules: target-chunks
    """
    from delayd.bus.memory.producer import MemoryProducer

    node = make("orders")
    node.kafka.create_topic(
        "small", 1, {"max.message.bytes": "1500", "message.timestamp.type": "LogAppendTime"}
    )
    sources = [node.send("small", START_MS + 100, value=b"x" * 300).offset for _ in range(500)]
    node.ingest()
    node.lead()
    flushes = [0]
    flush = MemoryProducer.flush

    def counted(self: MemoryProducer, timeout_ms: int) -> None:
        flushes[0] += 1
        flush(self, timeout_ms)

    monkeypatch.setattr(MemoryProducer, "flush", counted)
    while len(node.read("small")) < len(sources):
        assert node.clock.now_ms < START_MS + HOUR_MS
        before = flushes[0]
        node.step()
        assert flushes[0] - before <= CHUNKS_MAX + 3
        node.clock.now_ms += 50
        node.ingest()
    for _ in range(100):
        node.step()
        node.clock.now_ms += 50
        node.ingest()
    assert not node.failures
    delivered = [dict(record.headers) for record in node.read("small")]
    deferred = [headers for headers in delivered if "delayd-origin" in headers]
    assert deferred and all("delayd-attempt" not in headers for headers in delivered), "not tried"
    told = [
        headers.get("delayd-origin") or headers["delayd-source"] or b"" for headers in delivered
    ]
    assert sorted(told) == sorted(b"0/%d" % offset for offset in sources), "each once"


def test_a_silent_topic_does_not_make_the_brokers_silent(make: Maker) -> None:
    """docs/design/frontier.md, Targets: it is asked for alone when all others are fresh."""
    node = make("orders", "odd")
    node.kafka.silent.add("odd")
    node.lead()
    for _ in range(60):
        node.send("odd")
        node.send("orders")
        node.ingest()
        node.clock.now_ms += 500
        node.step()
    assert not node.failures and len(node.read("orders")) == 60


def test_a_partition_without_records_keeps_no_other_from_forgetting(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/design/frontier.md, Forgetting: each by its own log time.

    Rules: forget-ids-by-log-time
    """
    monkeypatch.setattr(id_memory, "FORGET_MAX", 100)
    node = make("orders", partitions=2)
    names = [f"id{number}" for number in range(2_000)]
    sent = [(name, node.send("orders", START_MS + 100, id=name).partition) for name in names]
    node.ingest()
    node.lead()
    for _ in range(5):
        node.step()
        node.clock.now_ms += 1_000
    for gap in (25, 2):  # The second proves the leap of the first.
        node.clock.now_ms += gap * HOUR_MS
        node.send("orders", partition=1)
    node.ingest()
    for _ in range(60):
        node.step()
        node.replica.checkpoint()
        node.clock.now_ms += 1_000
    known = [partition for name, partition in sent if node.replica.know(partition, name)]
    assert known == [partition for _, partition in sent if partition == 0]


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("is_new_master", [False, True])
def test_what_is_due_in_an_hour_that_nobody_has_split_is_split_first(
    make: Maker, monkeypatch: pytest.MonkeyPatch, *, is_new_master: bool, is_sparse: bool
) -> None:
    """docs/design/storage.md, Hour files: the node stood still, or was just started.

    Rules: split-first
    """
    monkeypatch.setattr(near_hours, "SPLIT_BYTES", 300)
    if not is_sparse:
        monkeypatch.setattr(hours, "SPARSE_BYTES_MAX", 0)
    node = make("orders")
    day_ms = START_MS + 24 * HOUR_MS
    for number in range(60):
        node.send("orders", day_ms + 37 * number % 1_500, value=b"%d" % number)
    node.ingest()
    assert node.replica.wheel.stats().hours == 1
    if not is_new_master:
        node.lead()
    node.clock.now_ms = day_ms + 700
    # Something comes to the slots of that hour before it is split.
    node.send("orders", day_ms + 650, value=b"direct")
    for _ in range(60):
        node.ingest()
        node.step()
        node.clock.now_ms += 20
    rows = [(dict(r.headers)["delayd-due"], r.value) for r in node.read("orders")]
    assert len(rows) == len({value for _, value in rows}) == 61
    order = [int(due or b"") for due, value in rows if value != b"direct"]
    assert order == sorted(order)
    assert node.replica.wheel.stats().hours == is_sparse, "a sparse hour is indexed"
    assert node.failures == {}


def test_what_is_pending_is_counted_by_hour_and_topic_whatever_becomes_of_it(make: Maker) -> None:
    """docs/reference/http.md, Pending.

    Rules: pending-counts
    """
    node = make("a", "b")
    far_ms = START_MS + 48 * HOUR_MS
    for number in range(6):
        node.send("a", START_MS + 1_500 * number)
        node.send("b", far_ms, id=f"far-{number}")
    node.send("a", START_MS + HOUR_MS, id="moved")
    node.send("b", far_ms + HOUR_MS, id="moved", op="replace")
    node.send("b", id="far-0", op="cancel")
    node.send("b", id="far-0", op="cancel")
    node.send("b", far_ms, id="far-1")  # the same once more: not stored
    node.ingest()
    near, far = START_MS // HOUR_MS, far_ms // HOUR_MS
    pending = node.replica.pending()
    assert pending.hours == {near: 6, far: 5, far + 1: 1}
    assert pending.topics == {"a": 6, "b": 6}
    assert pending.total == 12
    for now_ms, left in ((START_MS + 2_000, 4), (START_MS + 12_000, 0)):
        node.clock.now_ms = now_ms
        for _ in range(3):
            node.ingest()
            node.step()
        assert node.replica.pending().topics == {"b": 6, **({"a": left} if left else {})}
    node.clock.now_ms = far_ms + 2 * HOUR_MS
    for _ in range(80):
        node.ingest()
        node.step()
        node.clock.now_ms += 10
    assert node.replica.pending() == (0, {}, {})
    assert len(node.read("a")) == 6 and len(node.read("b")) == 6


def test_a_clock_that_is_years_ahead_does_not_have_all_hours_split(make: Maker) -> None:
    """docs/design/storage.md, Hour files."""
    node = make("a")
    for day in range(1, 4):
        node.send("a", START_MS + day * 24 * HOUR_MS)
    node.ingest()
    assert not node.replica.split_some(START_MS + 10**12)
    assert node.replica.wheel.stats().hours == 3
    near_ms = START_MS + 3 * HOUR_MS
    node.send("a", near_ms)
    node.ingest()
    while node.replica.split_some(near_ms):
        pass
    assert (node.replica.wheel.stats().hours, node.replica.wheel.stats().slots) == (3, 1)
