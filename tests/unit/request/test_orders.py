"""Orders to pause a target and to resume it: which records are some, and which are refused.

Source: docs/design/pauses.md.
"""

from dataclasses import replace
from random import Random

import pytest
from continuations import LIMITS

from delayd.bus import Headers, Record
from delayd.request import Op, Reason, Reject, Request, order_body, order_of, order_record, parse
from delayd.request.bodies import pending_reply_body
from delayd.request.internal import signed
from replication.holds import HOLD_MS_MAX, ORDER_AGE_MS_MAX, Order, home_of
from replication.rules import Barrier, Rules
from replication.settings import PAUSE_RULES, SERIES_RULES
from replication.shards import home_in
from replication.smoothing import RATE_MAX

NOW_MS = 1_700_000_000_000
PAUSE = Order("orders", NOW_MS, NOW_MS + 3_600_000, 50)
RESUME = Order("orders", NOW_MS, 0, 0)
HOME = home_of("orders", LIMITS.partitions)


def logged(headers: Headers, append_ms: int = NOW_MS, partition: int = HOME) -> Record:
    return Record(partition, 7, 0, append_ms, None, None, headers)


def read(order: Order, append_ms: int = NOW_MS, partition: int | None = None) -> Request | Reject:
    written = order_record(order, LIMITS)
    at = written.partition if partition is None else partition
    return parse(logged(written.headers, append_ms, at), LIMITS)


def refused(order: Order, append_ms: int = NOW_MS) -> str:
    reject = read(order, append_ms)
    assert isinstance(reject, Reject) and reject.reason is Reason.BAD_PROOF, reject
    return reject.detail


@pytest.mark.parametrize(
    "order",
    [
        PAUSE,
        RESUME,
        PAUSE._replace(until_ms=NOW_MS + HOLD_MS_MAX, rate=RATE_MAX),
        RESUME._replace(rate=1),
        PAUSE._replace(topic="a.b_c-D9"),
    ],
)
def test_an_order_is_read_as_it_was_written(order: Order) -> None:
    request = read(order)
    assert isinstance(request, Request) and request.op is Op.HOLD
    assert request.order == order and request.topic is None and request.id is None
    assert order_of(order_body(order)) == order
    assert order_of(pending_reply_body(dead=None, receipt=("x",))) is None


@pytest.mark.parametrize("off_ms", [-ORDER_AGE_MS_MAX, 0, ORDER_AGE_MS_MAX])
def test_clocks_may_differ_by_five_minutes(off_ms: int) -> None:
    assert isinstance(read(PAUSE, NOW_MS + off_ms), Request)


@pytest.mark.parametrize("order", [PAUSE, RESUME])
@pytest.mark.parametrize("off_ms", [-ORDER_AGE_MS_MAX - 1, ORDER_AGE_MS_MAX + 1])
def test_a_copy_that_comes_later_is_refused(order: Order, off_ms: int) -> None:
    """Rules: pause-proof"""
    assert "it is a copy, or a clock is wrong" in refused(order, NOW_MS + off_ms)


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (PAUSE._replace(until_ms=NOW_MS), "at most 24 h"),
        (PAUSE._replace(until_ms=NOW_MS + HOLD_MS_MAX + 1), "at most 24 h"),
        (PAUSE._replace(rate=RATE_MAX + 1), "a rate is"),
        (PAUSE._replace(topic="delayd-dead"), "never a target"),
        (PAUSE._replace(topic="__consumer_offsets"), "never a target"),
        (PAUSE._replace(topic=".."), "no legal topic name"),
        (PAUSE._replace(topic="a b"), "no legal topic name"),
    ],
)
def test_what_no_operator_may_order_is_refused(order: Order, said: str) -> None:
    """Rules: pause-proof"""
    assert said in refused(order)


def test_an_order_is_proved_for_its_partition() -> None:
    """Rules: pause-proof"""
    other, headers = (HOME + 1) % LIMITS.partitions, order_record(PAUSE, LIMITS).headers
    moved = parse(logged(headers, partition=other), LIMITS)
    assert isinstance(moved, Reject) and moved.reason is Reason.BAD_PROOF


def test_with_shards_each_has_a_home_and_how_many_there_are_decides_nothing() -> None:
    """docs/design/shards.md, More or fewer. Rules: resharded"""
    limits = replace(LIMITS, partitions=6, shards=3)
    orders = [order_record(PAUSE, limits, shard) for shard in range(3)]
    homes = [each.partition for each in orders]
    assert homes == [home_in("orders", shard, 3, 6) for shard in range(3)]
    for order in orders:
        for shards in (1, 2, 3, 6):
            record = logged(order.headers, partition=order.partition)
            assert isinstance(parse(record, replace(limits, shards=shards)), Request)


def test_without_the_proof_of_these_words_it_is_refused() -> None:
    """Rules: pause-proof"""
    [said, proof] = order_record(PAUSE, LIMITS).headers
    other = (said[0], (said[1] or b"").replace(b"orders", b"mails0"))
    for headers in ([other, proof], [said, (proof[0], b"0" * 64)]):
        reject = parse(logged(headers), LIMITS)
        assert isinstance(reject, Reject) and reject.reason is Reason.BAD_PROOF
    alone = parse(logged([said]), LIMITS)
    assert isinstance(alone, Reject) and alone.reason is Reason.UNKNOWN_HEADER


def test_older_rules_do_not_know_orders() -> None:
    """Rules: pause-by-rules"""
    record = logged(order_record(PAUSE, LIMITS).headers)
    older = replace(LIMITS, rules=Rules(SERIES_RULES))
    reject = parse(record, older)
    assert isinstance(reject, Reject) and reject.reason is Reason.UNKNOWN_HEADER
    switched = replace(LIMITS, rules=Rules(SERIES_RULES, (Barrier(HOME, 6, PAUSE_RULES),)))
    assert isinstance(parse(record, switched), Request)


def test_whatever_stands_in_an_order_has_one_outcome() -> None:
    random = Random(1)
    texts = [b"pause", b"resume", b"orders", b"1", b"", b"\xff", b"9" * 16, str(NOW_MS).encode()]
    for _ in range(3_000):
        text = b"/".join(random.choices(texts, k=random.randrange(7)))
        again = signed(HOME, None, None, [("delayd-hold", text)], LIMITS)
        outcome = parse(logged(again.headers), LIMITS)
        assert isinstance(outcome, Reject) or outcome.order is not None
