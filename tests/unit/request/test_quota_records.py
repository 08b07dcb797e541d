"""Orders about quotas and gates as records, and what a gate refuses.

Source: docs/design/quotas.md.
"""

from dataclasses import replace

import pytest
from continuations import LIMITS
from test_orders import HOME

from delayd.bus import Headers, Record
from delayd.bus.murmur2 import partition_of
from delayd.request import (
    Op,
    Reason,
    Reject,
    Request,
    order_of,
    parse,
    pending_reply_body,
    quota_body,
    quota_of,
    quota_record,
    reject_receipt,
    verdict_of,
)
from delayd.request.quotas import gate_record, problem_of
from replication.holds import ORDER_AGE_MS_MAX
from replication.quotas import MAX_PENDING_MAX, PENDING, RATE, RATE_MAX, Gate, QuotaOrder, Shut
from replication.rules import Rules
from replication.settings import SERIES_RULES

NOW_MS = 1_790_000_000_000
ORDER = QuotaOrder("orders", NOW_MS, 5)
GATE = Gate("orders", NOW_MS, PENDING, 7, 5, 3, 2)
FULL = Shut(PENDING, 5)
DUE: Headers = [("delayd-topic", b"orders"), ("delayd-delay", b"1h")]


def logged(headers: Headers, partition: int = HOME, append_ms: int = NOW_MS) -> Record:
    return Record(partition, 7, 0, append_ms, None, None, headers)


def reason(record: Record, limits: object = LIMITS) -> str | None:
    outcome = parse(record, limits)  # type: ignore[arg-type]
    return outcome.reason.slug if isinstance(outcome, Reject) else None


def test_an_order_and_a_gate_are_read_as_they_were_written() -> None:
    for most in (0, 1, MAX_PENDING_MAX):
        order = ORDER._replace(max_pending=most, rate=min(most, RATE_MAX))
        written = quota_record(order, LIMITS)
        assert written.partition == HOME
        request = parse(logged(written.headers), LIMITS)
        assert isinstance(request, Request) and request.op is Op.QUOTA
        assert request.quota == order and request.topic is None
        assert quota_of(quota_body(order)) == order and order_of(quota_body(order)) is None
    assert quota_of(pending_reply_body(dead=None, receipt=("x",))) is None
    for gate in (GATE, GATE._replace(over=RATE), GATE._replace(over=0, max_pending=0)):
        for partition in range(LIMITS.partitions):
            written = gate_record(partition, gate, LIMITS)
            request = parse(logged(written.headers, partition), LIMITS)
            assert isinstance(request, Request) and request.gate == gate


def test_what_nobody_can_have_written_is_refused() -> None:
    """Rules: quota-proof"""
    other = (HOME + 1) % LIMITS.partitions
    [said, (proof, true)] = quota_record(ORDER, LIMITS).headers
    assert reason(logged([said])) == "unknown-header"
    assert reason(logged([said, (proof, b"0" * 64)])) == "bad-proof"
    assert reason(logged([said, (proof, true)], other)) == "bad-proof"
    gate = gate_record(0, GATE, LIMITS).headers
    assert reason(logged(gate, 1)) == "bad-proof"
    for headers in (quota_record(ORDER, LIMITS).headers, gate_record(HOME, GATE, LIMITS).headers):
        for append_ms in (NOW_MS + ORDER_AGE_MS_MAX, NOW_MS - ORDER_AGE_MS_MAX):
            assert reason(logged(headers, HOME, append_ms)) is None
        for append_ms in (NOW_MS + ORDER_AGE_MS_MAX + 1, NOW_MS - ORDER_AGE_MS_MAX - 1):
            assert reason(logged(headers, HOME, append_ms)) == "bad-proof"
    for topic in ("delayd-dead", "__x", "..", "a b"):
        assert problem_of(ORDER._replace(topic=topic), LIMITS) is not None
        written = gate_record(0, GATE._replace(topic=topic), LIMITS)
        assert reason(logged(written.headers, 0)) == "bad-proof"
    assert problem_of(ORDER._replace(max_pending=MAX_PENDING_MAX + 1), LIMITS) is not None
    assert problem_of(ORDER._replace(rate=RATE_MAX + 1), LIMITS) is not None


def test_how_many_shards_there_are_decides_nothing_about_a_record() -> None:
    """A node that is rebuilt when there are others refuses what was over quota. Rules: resharded"""
    sharded = replace(LIMITS, shards=LIMITS.partitions)
    for shard in range(sharded.shards):
        written = quota_record(ORDER, sharded, shard)
        assert written.partition == shard, "each shard has a home"
        assert reason(logged(written.headers, shard), LIMITS) is None
    for headers in (quota_record(ORDER, LIMITS).headers, gate_record(HOME, GATE, LIMITS).headers):
        assert reason(logged(headers), LIMITS) is reason(logged(headers), sharded) is None


def test_older_rules_refuse_the_header() -> None:
    """Rules: quota-by-rules"""
    older = replace(LIMITS, rules=Rules(SERIES_RULES))
    assert reason(logged(quota_record(ORDER, LIMITS).headers), older) == "unknown-header"


@pytest.mark.parametrize(
    "more",
    [
        [],
        [("delayd-id", b"a"), ("delayd-op", b"replace")],
        [("delayd-id", b"a"), ("delayd-op", b"debounce"), ("delayd-max-wait", b"2h")],
    ],
)
def test_a_gate_refuses_what_would_add_a_message(more: Headers) -> None:
    """Rules: quota-refused"""
    partition = partition_of(b"a", LIMITS.partitions)
    full = replace(LIMITS, full={partition: {"orders": FULL}})
    key = b"a" if more else None
    record = Record(partition, 9, 0, NOW_MS, key, b"v", [*DUE, *more])
    assert reason(record) is None
    outcome = parse(record, full)
    assert isinstance(outcome, Reject) and outcome.reason is Reason.OVER_QUOTA
    assert "5 messages may be pending for orders" in outcome.detail
    told = reject_receipt(outcome, source="0/9")
    assert told is None if key is None else verdict_of(told) == "over-quota"
    assert reason(record, replace(LIMITS, full={partition: {"bills": FULL}})) is None
    assert reason(record, replace(LIMITS, full={partition + 1: {"orders": FULL}})) is None


def test_who_is_refused_is_told_by_which_limit() -> None:
    """Rules: quota-rate"""
    full = replace(LIMITS, full={HOME: {"orders": Shut(RATE, 100)}})
    outcome = parse(logged(DUE), full)
    assert isinstance(outcome, Reject) and outcome.reason is Reason.OVER_QUOTA
    assert "100 requests a second are taken for orders, and as many came in the 10 s" in (
        outcome.detail
    )


def test_what_is_wrong_in_itself_is_told_first() -> None:
    full = replace(LIMITS, full={HOME: {"orders": FULL}})
    assert reason(logged([("delayd-topic", b"orders")]), full) == "missing-due"


def test_a_gate_passes_cancels() -> None:
    """Rules: quota-refused"""
    partition = partition_of(b"a", LIMITS.partitions)
    full = replace(LIMITS, full={partition: {"orders": FULL}})
    headers: Headers = [("delayd-op", b"cancel"), ("delayd-id", b"a")]
    assert reason(Record(partition, 9, 0, NOW_MS, b"a", None, headers), full) is None
