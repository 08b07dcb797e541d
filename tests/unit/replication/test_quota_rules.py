"""Quotas of target topics, as pure data. Source: docs/design/quotas.md."""

import pytest

from replication.quotas import (
    AGAIN_MS,
    NO_FULL,
    PENDING,
    QUOTAS_MAX,
    RATE,
    RATE_WINDOW_S,
    Gate,
    Quota,
    QuotaOrder,
    Quotas,
    Shut,
    full_after,
    full_lines,
    full_of,
    obey,
    opens_at,
    rate_seconds,
)

NOW_MS = 1_700_000_000_000


def order(max_pending: int, topic: str = "orders") -> QuotaOrder:
    return QuotaOrder(topic, NOW_MS, max_pending)


def quotas(max_pending: int = 10, *, repeats: bool = False) -> Quotas:
    return Quotas({"orders": Quota(max_pending, 0, 7, 0, 0)}, repeats=repeats)


def counted(of: Quotas, pending: int, now_ms: int = NOW_MS) -> list[tuple[bool, int]]:
    return [(gate.is_full, gate.pending) for gate in of.count({"orders": pending}, {}, now_ms)]


def taken(of: Quotas, count: int, pending: int = 0, now_ms: int = NOW_MS) -> list[Shut | None]:
    """What a step says behind which requests were taken."""
    return [gate.shut for gate in of.count({"orders": pending}, {"orders": count}, now_ms)]


def test_a_topic_is_full_with_as_many_as_the_quota_says_and_open_with_a_tenth_free() -> None:
    """Rules: quota-full, quota-opened"""
    of = quotas(20)
    assert counted(of, 19) == []
    assert counted(of, 20) == [(True, 20)]
    assert counted(of, 25) == counted(of, 19) == []
    assert of.after()["orders"] == Quota(20, 19, 7, NOW_MS, NOW_MS, over=PENDING)
    assert counted(of, 18) == [(False, 18)]
    assert of.after()["orders"] == Quota(20, 18, 7, 0, 0)


@pytest.mark.parametrize(("most", "opens"), [(1, 0), (2, 1), (9, 8), (20, 18), (1_000, 900)])
def test_at_least_one_is_free_when_it_opens(most: int, opens: int) -> None:
    """Rules: quota-opened"""
    assert opens_at(most) == opens


def test_what_is_full_is_said_again() -> None:
    """Rules: quota-again"""
    of = quotas()
    assert counted(of, 10) == [(True, 10)]
    assert counted(of, 10, NOW_MS + AGAIN_MS - 1) == []
    assert counted(of, 11, NOW_MS + AGAIN_MS) == [(True, 11)]
    assert of.after()["orders"] == Quota(10, 11, 7, NOW_MS, NOW_MS + AGAIN_MS, over=PENDING)


def test_a_master_whose_predecessor_may_have_written_in_vain_says_all_once() -> None:
    """Rules: quota-again"""
    of = quotas(repeats=True)
    assert counted(of, 3) == [(False, 3)]
    assert counted(of, 3) == []


def test_orders_set_change_and_end_a_quota() -> None:
    """Rules: quota-cleared, quota-in-frontier"""
    assert obey({}, order(5), 3, 1) == {"orders": Quota(5, 0, 3, 0, 0)}
    full = {"orders": Quota(5, 6, 3, NOW_MS, NOW_MS)}
    assert obey(full, order(9), 4, 1)["orders"] == Quota(9, 6, 4, NOW_MS, NOW_MS)
    assert obey(full, order(0), 5, 1) == obey({}, order(0), 5, 1) == {}
    many = {f"topic-{n}": Quota(5, 0, 0, 0, 0) for n in range(QUOTAS_MAX)}
    assert obey(many, order(5), 9, 1) == many
    assert len(obey(many, order(6, "topic-1"), 9, 1)) == QUOTAS_MAX


def test_shards_keep_the_time_of_an_order_to_compare_it() -> None:
    """Rules: quota-shards"""
    begun = obey({}, order(5), 3, 2)
    assert begun == {"orders": Quota(5, 0, 3, 0, 0, at_ms=NOW_MS)}
    later = QuotaOrder("orders", NOW_MS + 1, 6)
    assert obey(begun, later, 4, 2)["orders"].at_ms == NOW_MS + 1
    assert obey(begun, later, 4, 1)["orders"].at_ms == 0
    of = Quotas({}, shards=2)
    of.obey(order(5), 3, NOW_MS)
    assert of.after() == begun


def test_the_end_of_a_quota_opens_its_topic_full_or_not() -> None:
    """Rules: quota-cleared"""
    of = quotas()
    assert of.obey(order(0), 9, NOW_MS) == [Gate("orders", NOW_MS, False, 0, 0)]
    assert of.obey(order(0), 9, NOW_MS) == [], "it has none any more"
    of = quotas()
    counted(of, 12)
    assert of.obey(order(0), 9, NOW_MS) == [Gate("orders", NOW_MS, False, 12, 0)]
    assert of.after() == {}


def test_a_gate_holds_in_its_partition_until_the_next_one() -> None:
    """Rules: quota-refused"""
    full = full_after(NO_FULL, 1, Gate("orders", NOW_MS, True, 5, 5))
    full = full_after(full, 2, Gate("orders", NOW_MS, True, 5, 5))
    full = full_after(full, 2, Gate("bills", NOW_MS, RATE, 3, 0, 30, 3))
    orders, bills = Shut(PENDING, 5), Shut(RATE, 3)
    assert full == {1: {"orders": orders}, 2: {"orders": orders, "bills": bills}}
    assert full_of(full_lines(full)) == full
    full = full_after(full, 2, Gate("orders", NOW_MS, False, 3, 5))
    full = full_after(full, 1, Gate("orders", NOW_MS, False, 3, 5))
    assert full == {2: {"bills": bills}}
    assert full_after(full, 0, Gate("orders", NOW_MS, False, 3, 5)) == full


def test_a_topic_is_full_with_as_many_requests_as_its_rate_allows_in_ten_seconds() -> None:
    """Rules: quota-rate"""
    of = Quotas({"orders": Quota(0, 0, 7, 0, 0, 4)})
    assert taken(of, 4 * RATE_WINDOW_S - 1) == []
    assert taken(of, 4 * RATE_WINDOW_S) == [Shut(RATE, 4)]
    assert taken(of, 37) == [] and of.after()["orders"].is_full
    assert taken(of, 36) == [None], "a tenth is free"
    assert of.after()["orders"] == Quota(0, 0, 7, 0, 0, 4, 36)


def test_of_two_limits_it_is_said_which_one_refuses() -> None:
    """Rules: quota-rate, quota-full"""
    of = Quotas({"orders": Quota(10, 0, 7, 0, 0, 1)})
    assert taken(of, 10) == [Shut(RATE, 1)]
    assert taken(of, 10, pending=10) == [Shut(PENDING, 10)]
    assert of.after()["orders"].over == PENDING | RATE
    assert taken(of, 0, pending=10) == [], "it stays full, by the same limit"
    assert taken(of, 10, pending=0) == [Shut(RATE, 1)]
    assert taken(of, 0, pending=0) == [None]


def test_an_order_that_ends_one_limit_opens_what_that_has_shut() -> None:
    """Rules: quota-rate, quota-cleared"""
    of = Quotas({"orders": Quota(10, 0, 7, 0, 0, 1)})
    taken(of, 10)
    assert of.obey(order(10), 8, NOW_MS) == [], "the next step looks"
    assert of.rated == [] and taken(of, 0) == [None]
    begun = Quota(0, 0, 9, 0, 0, 3)
    assert obey({}, QuotaOrder("orders", NOW_MS, 0, 3), 9, 1) == {"orders": begun}


@pytest.mark.parametrize("now_ms", [20_000, 20_999])
def test_a_step_counts_ten_seconds_of_which_its_own_is_the_last_and_the_next_one(
    now_ms: int,
) -> None:
    """Rules: quota-rate"""
    assert list(rate_seconds(now_ms)) == [*range(11, 21), 21]


@pytest.mark.parametrize(("over", "shut"), [(RATE, Shut(RATE, 2)), (PENDING, Shut(PENDING, 3))])
def test_a_full_topic_gets_new_gates_when_an_order_changes_what_they_say(
    over: int, shut: Shut
) -> None:
    """Rules: quota-again"""
    of = Quotas({"orders": Quota(4, 9, 7, NOW_MS, NOW_MS, 1, 90, over)})
    assert of.obey(QuotaOrder("orders", NOW_MS, 3, 2), 8, NOW_MS) == []
    [gate] = of.count(
        {"orders": 9 if over == PENDING else 0}, {"orders": 90 if over == RATE else 0}, NOW_MS + 1
    )
    assert gate.shut == shut
    assert of.count({"orders": gate.pending}, {"orders": gate.taken}, NOW_MS + 2) == []
