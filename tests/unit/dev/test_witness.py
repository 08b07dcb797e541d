"""The witness's verdict: every planted defect is found, and nothing else is.

Source: docs/design, "The wire contract": exactly once, never early, as it was sent.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from batch_received import BATCH, DUE_MS, WATCHED, all_right, judge, receipt

from delayd.dev.batch import COUNT_MAX
from delayd.dev.ledger import (
    CAUGHT_UP_MS,
    KILL_WINDOW_MS,
    Kill,
    Ledger,
    Receipt,
    nearest_rank,
)
from delayd.dev.verdict import Counts, Lateness, Stall, Verdict


def with_header(name: str, *contents: bytes | None) -> Receipt:
    """The watched message with other contents (none, one or more) for a header."""
    right = receipt(WATCHED)
    others = [pair for pair in right.headers if pair[0] != name]
    return right._replace(headers=[*others, *((name, content) for content in contents)])


def with_own_headers(headers: Sequence[tuple[str, bytes | None]]) -> Receipt:
    """The watched message with other headers of the user's."""
    right = receipt(WATCHED)
    delayds = [pair for pair in right.headers if pair[0].startswith("delayd-")]
    return right._replace(headers=[*headers, *delayds])


def instead(defect: Receipt) -> Verdict:
    """The verdict when the watched message arrives like this."""
    receipts = all_right()
    receipts[WATCHED] = defect
    return judge(receipts)


def test_all_messages_once_and_as_sent_is_ok() -> None:
    verdict = judge(all_right())

    assert verdict.ok
    assert verdict.counts == Counts(delivered=BATCH.count)
    assert verdict.lost == 0
    assert verdict.examples == ()


def test_a_message_that_did_not_arrive_is_lost() -> None:
    verdict = judge([each for n, each in enumerate(all_right()) if n != WATCHED])

    assert not verdict.ok
    assert verdict.lost == 1
    assert verdict.counts == Counts(delivered=BATCH.count - 1)
    assert verdict.examples == ("a1-0000017: lost",)


@pytest.mark.parametrize("copies", [2, 3, 1_000])
def test_a_message_that_arrived_more_than_once_is_one_doubled_message(copies: int) -> None:
    verdict = judge(all_right() + [receipt(WATCHED)] * (copies - 1))

    assert not verdict.ok
    assert verdict.lost == 0
    assert verdict.counts == Counts(delivered=BATCH.count, doubled=1)
    assert verdict.examples[0].startswith("a1-0000017: delivered ")


def test_a_loss_is_not_made_good_by_a_double() -> None:
    receipts = all_right()
    receipts[WATCHED] = receipt(WATCHED + 1)

    verdict = judge(receipts)

    assert not verdict.ok
    assert (verdict.lost, verdict.counts.doubled) == (1, 1)


def test_a_message_received_before_it_is_due_is_early() -> None:
    due_ms = BATCH.due_ms(WATCHED)

    assert instead(receipt(WATCHED)._replace(received_ms=due_ms - 1)).counts.early == 1
    assert instead(receipt(WATCHED)._replace(received_ms=due_ms)).ok


def test_a_message_fired_before_it_is_due_is_early_though_it_came_late() -> None:
    due_ms = BATCH.due_ms(WATCHED)
    verdict = instead(with_header("delayd-fired", b"%d" % (due_ms - 1)))

    assert not verdict.ok
    assert verdict.counts == Counts(delivered=BATCH.count, early=1)
    assert verdict.examples == ("a1-0000017: early",)


@pytest.mark.parametrize(
    "defect",
    [
        receipt(WATCHED)._replace(value=BATCH.value(WATCHED) + b" "),
        receipt(WATCHED)._replace(value=BATCH.value(WATCHED).replace(b"unpaid", b"unqaid")),
        receipt(WATCHED)._replace(value=None),
        receipt(WATCHED)._replace(key=None),
        receipt(WATCHED)._replace(key=BATCH.key(WATCHED + 1)),
        receipt(WATCHED)._replace(topic=BATCH.topic(WATCHED + 1)),
        with_own_headers([]),
        with_own_headers(BATCH.headers(WATCHED)[::-1]),
        with_own_headers([*BATCH.headers(WATCHED), ("trace", None)]),
        with_header("delayd-due"),
        with_header("delayd-due", b"%d" % (BATCH.due_ms(WATCHED) + 1)),
        with_header("delayd-due", *[b"%d" % BATCH.due_ms(WATCHED)] * 2),
        with_header("delayd-fired"),
        with_header("delayd-fired", b"soon"),
    ],
)
def test_a_message_that_is_not_as_it_was_sent_is_altered(defect: Receipt) -> None:
    verdict = instead(defect)

    assert not verdict.ok
    assert verdict.lost == 0
    assert verdict.counts == Counts(delivered=BATCH.count, altered=1)


def test_a_second_copy_that_is_altered_or_early_is_found_too() -> None:
    early = receipt(WATCHED)._replace(received_ms=DUE_MS - 1)
    altered = receipt(WATCHED)._replace(value=b"x")

    verdict = judge([*all_right(), early, altered])

    assert verdict.counts == Counts(BATCH.count, doubled=1, early=1, altered=1)


@pytest.mark.parametrize(
    "stranger",
    [
        receipt(0, batch=replace(BATCH, run="b2")),
        receipt(100, batch=replace(BATCH, count=101)),
        Receipt("one", None, None, [], DUE_MS),
        Receipt("one", b"a1-1", b"a1-00000017", [], DUE_MS),
    ],
)
def test_a_record_that_is_not_of_the_batch_is_unknown(stranger: Receipt) -> None:
    verdict = judge([*all_right(), stranger])

    assert not verdict.ok
    assert verdict.counts == Counts(delivered=BATCH.count, unknown=1)


def test_a_target_that_was_not_read_to_its_end_proves_nothing() -> None:
    ledger = Ledger(BATCH)
    for each in all_right():
        ledger.write_down(each)

    assert ledger.verdict(complete=True).ok
    assert not ledger.verdict(complete=False).ok


def test_lateness_is_receipt_minus_due_by_nearest_rank() -> None:
    verdict = judge(receipt(number, late_ms=number + 1) for number in range(100))

    assert verdict.lateness_ms == Lateness(p50=50, p99=99, p999=100, max=100)
    assert verdict.steady_lateness_ms == verdict.lateness_ms
    assert judge([]).lateness_ms is None
    assert nearest_rank([7], 500) == nearest_rank([7], 990) == 7


KILLED_MS = DUE_MS + 5_000
BACK_MS = KILLED_MS + 3_000


def through_a_kill() -> list[Receipt]:
    """Nothing between the kill and BACK_MS; then what has gathered, then as usual."""
    return [
        receipt(
            number,
            late_ms=5
            if not KILLED_MS <= BATCH.due_ms(number) < BACK_MS
            else BACK_MS - BATCH.due_ms(number),
        )
        for number in range(BATCH.count)
    ]


def test_the_gap_is_from_the_kill_to_the_first_record_that_a_successor_fired() -> None:
    kill = Kill(KILLED_MS, KILLED_MS + 20)
    verdict = judge(through_a_kill(), [kill])

    [failover] = verdict.failovers
    assert failover.counts
    assert failover.gap_ms == BACK_MS - KILLED_MS
    assert failover.caught_up_ms == BACK_MS - KILLED_MS
    assert verdict.stalls[0] == Stall(from_ms=KILLED_MS - 95, for_ms=3_095)


def test_what_the_dead_master_fired_does_not_end_the_gap_however_late_it_is_seen() -> None:
    receipts = through_a_kill()
    of_the_dead = next(n for n, each in enumerate(receipts) if each.received_ms == KILLED_MS - 95)
    receipts[of_the_dead] = receipts[of_the_dead]._replace(received_ms=KILLED_MS + 1_000)

    [failover] = judge(receipts, [Kill(KILLED_MS, KILLED_MS + 20)]).failovers

    assert failover.gap_ms == BACK_MS - KILLED_MS


def test_a_record_that_claims_to_be_fired_in_the_future_does_not_end_the_gap() -> None:
    receipts = through_a_kill()
    forged = next(n for n in range(BATCH.count) if BATCH.due_ms(n) == DUE_MS + 9_000)
    receipts[forged] = receipts[forged]._replace(received_ms=DUE_MS)

    verdict = judge(receipts, [Kill(KILLED_MS, KILLED_MS + 20)])

    assert verdict.counts.early == 1
    assert verdict.failovers[0].gap_ms == BACK_MS - KILLED_MS


def test_steady_lateness_leaves_out_what_the_failover_delayed_and_nothing_else() -> None:
    receipts = through_a_kill()
    slow = next(n for n in range(BATCH.count) if BATCH.due_ms(n) == DUE_MS + 9_000)
    receipts[slow] = receipt(slow, late_ms=70)

    verdict = judge(receipts, [Kill(KILLED_MS, KILLED_MS + 20)])

    assert verdict.lateness_ms == Lateness(p50=5, p99=2_900, p999=3_000, max=3_000)
    assert verdict.steady_lateness_ms == Lateness(p50=5, p99=70, p999=70, max=70)


def test_a_successor_has_caught_up_with_the_first_message_that_is_on_time() -> None:
    def back_late(number: int) -> Receipt:
        due_ms = BATCH.due_ms(number)
        return receipt(number, late_ms=5 if due_ms < KILLED_MS else CAUGHT_UP_MS + 1)

    [failover] = judge(
        map(back_late, range(BATCH.count)), [Kill(KILLED_MS, KILLED_MS + 20)]
    ).failovers

    assert failover.gap_ms is not None
    assert failover.caught_up_ms is None


@pytest.mark.parametrize(
    ("killed_ms", "counts"),
    [
        (DUE_MS - KILL_WINDOW_MS - 1, False),
        (DUE_MS - KILL_WINDOW_MS, True),
        (DUE_MS + 9_900, True),
        (DUE_MS + 9_901, False),
    ],
)
def test_only_a_kill_while_messages_are_due_counts(killed_ms: int, counts: bool) -> None:
    [failover] = judge(all_right(), [Kill(killed_ms, killed_ms)]).failovers

    assert failover.counts is counts


def test_a_kill_after_which_nothing_came_has_no_gap() -> None:
    before = [each for each in all_right() if each.received_ms < KILLED_MS]

    [failover] = judge(before, [Kill(KILLED_MS, KILLED_MS)]).failovers

    assert (failover.counts, failover.gap_ms, failover.caught_up_ms) == (True, None, None)


@pytest.mark.parametrize("count", [1, 2, 3_000, 20_000])
def test_a_batch_has_as_many_due_times_evenly_spread_and_shuffled(count: int) -> None:
    batch = replace(BATCH, count=count, spread_ms=60_000)
    due_ms = [batch.due_ms(number) for number in range(count)]

    assert sorted(due_ms) == [DUE_MS + place * 60_000 // count for place in range(count)]
    assert count < 3 or due_ms != sorted(due_ms)
    assert [batch.number_of(None, batch.value(n)) for n in range(count)] == list(range(count))
    assert [batch.number_of(batch.key(n), None) for n in range(count)] == list(range(count))


def test_a_batch_has_its_limits() -> None:
    with pytest.raises(AssertionError, match="a batch of"):
        replace(BATCH, count=COUNT_MAX + 1)
    with pytest.raises(AssertionError, match="a run called"):
        replace(BATCH, run="A-1")
