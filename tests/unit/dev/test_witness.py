"""The witness's verdict: every planted defect is found, and nothing else is.

Source: docs/design, "The wire contract": exactly once, never early, as it was sent.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest

from delayd.dev.answers import Answer
from delayd.dev.batch import COUNT_MAX, Batch
from delayd.dev.ledger import (
    CAUGHT_UP_MS,
    KILL_WINDOW_MS,
    Kill,
    Ledger,
    Receipt,
    judge,
    nearest_rank,
)
from delayd.dev.payments import AFTER_MS, AROUND_MS, BEFORE_FIRST_MS, PAID_SHARE, Payments
from delayd.dev.verdict import (
    Counts,
    Lateness,
    Progress,
    Stall,
    Verdict,
    progress_from_json,
    verdict_from_json,
)

DUE_MS = 1_000_000
BATCH = Batch(run="a1", topics=("one", "two"), count=100, first_due_ms=DUE_MS, spread_ms=10_000)
WATCHED = 17
"""The message that the defects are planted in."""


def receipt(number: int, *, late_ms: int = 5, batch: Batch = BATCH) -> Receipt:
    """A right receipt."""
    due_ms = batch.due_ms(number)
    headers: list[tuple[str, bytes | None]] = [
        *batch.headers(number),
        ("delayd-due", b"%d" % due_ms),
        ("delayd-fired", b"%d" % (due_ms + late_ms)),
        ("delayd-source", b"0/%d" % number),
    ]
    return Receipt(
        batch.topic(number), batch.key(number), batch.value(number), headers, due_ms + late_ms
    )


def all_right() -> list[Receipt]:
    return [receipt(number) for number in range(BATCH.count)]


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
    return judge(BATCH, receipts)


def test_all_messages_once_and_as_sent_is_ok() -> None:
    verdict = judge(BATCH, all_right())

    assert verdict.ok
    assert verdict.counts == Counts(delivered=BATCH.count)
    assert verdict.lost == 0
    assert verdict.examples == ()


def test_a_message_that_did_not_arrive_is_lost() -> None:
    verdict = judge(BATCH, [each for n, each in enumerate(all_right()) if n != WATCHED])

    assert not verdict.ok
    assert verdict.lost == 1
    assert verdict.counts == Counts(delivered=BATCH.count - 1)
    assert verdict.examples == ("a1-0000017: lost",)


@pytest.mark.parametrize("copies", [2, 3, 1_000])
def test_a_message_that_arrived_more_than_once_is_one_doubled_message(copies: int) -> None:
    verdict = judge(BATCH, all_right() + [receipt(WATCHED)] * (copies - 1))

    assert not verdict.ok
    assert verdict.lost == 0
    assert verdict.counts == Counts(delivered=BATCH.count, doubled=1)
    assert verdict.examples[0].startswith("a1-0000017: delivered ")


def test_a_loss_is_not_made_good_by_a_double() -> None:
    receipts = all_right()
    receipts[WATCHED] = receipt(WATCHED + 1)

    verdict = judge(BATCH, receipts)

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

    verdict = judge(BATCH, [*all_right(), early, altered])

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
    verdict = judge(BATCH, [*all_right(), stranger])

    assert not verdict.ok
    assert verdict.counts == Counts(delivered=BATCH.count, unknown=1)


def test_a_target_that_was_not_read_to_its_end_proves_nothing() -> None:
    ledger = Ledger(BATCH)
    for each in all_right():
        ledger.write_down(each)

    assert ledger.verdict(complete=True).ok
    assert not ledger.verdict(complete=False).ok


def test_lateness_is_receipt_minus_due_by_nearest_rank() -> None:
    verdict = judge(BATCH, (receipt(number, late_ms=number + 1) for number in range(100)))

    assert verdict.lateness_ms == Lateness(p50=50, p99=99, p999=100, max=100)
    assert verdict.steady_lateness_ms == verdict.lateness_ms
    assert judge(BATCH, []).lateness_ms is None
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
    verdict = judge(BATCH, through_a_kill(), [kill])

    [failover] = verdict.failovers
    assert failover.counts
    assert failover.gap_ms == BACK_MS - KILLED_MS
    assert failover.caught_up_ms == BACK_MS - KILLED_MS
    assert verdict.stalls[0] == Stall(from_ms=KILLED_MS - 95, for_ms=3_095)


def test_what_the_dead_master_fired_does_not_end_the_gap_however_late_it_is_seen() -> None:
    receipts = through_a_kill()
    of_the_dead = next(n for n, each in enumerate(receipts) if each.received_ms == KILLED_MS - 95)
    receipts[of_the_dead] = receipts[of_the_dead]._replace(received_ms=KILLED_MS + 1_000)

    [failover] = judge(BATCH, receipts, [Kill(KILLED_MS, KILLED_MS + 20)]).failovers

    assert failover.gap_ms == BACK_MS - KILLED_MS


def test_a_record_that_claims_to_be_fired_in_the_future_does_not_end_the_gap() -> None:
    receipts = through_a_kill()
    forged = next(n for n in range(BATCH.count) if BATCH.due_ms(n) == DUE_MS + 9_000)
    receipts[forged] = receipts[forged]._replace(received_ms=DUE_MS)

    verdict = judge(BATCH, receipts, [Kill(KILLED_MS, KILLED_MS + 20)])

    assert verdict.counts.early == 1
    assert verdict.failovers[0].gap_ms == BACK_MS - KILLED_MS


def test_steady_lateness_leaves_out_what_the_failover_delayed_and_nothing_else() -> None:
    receipts = through_a_kill()
    slow = next(n for n in range(BATCH.count) if BATCH.due_ms(n) == DUE_MS + 9_000)
    receipts[slow] = receipt(slow, late_ms=70)

    verdict = judge(BATCH, receipts, [Kill(KILLED_MS, KILLED_MS + 20)])

    assert verdict.lateness_ms == Lateness(p50=5, p99=2_900, p999=3_000, max=3_000)
    assert verdict.steady_lateness_ms == Lateness(p50=5, p99=70, p999=70, max=70)


def test_a_successor_has_caught_up_with_the_first_message_that_is_on_time() -> None:
    def back_late(number: int) -> Receipt:
        due_ms = BATCH.due_ms(number)
        return receipt(number, late_ms=5 if due_ms < KILLED_MS else CAUGHT_UP_MS + 1)

    [failover] = judge(
        BATCH, map(back_late, range(BATCH.count)), [Kill(KILLED_MS, KILLED_MS + 20)]
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
    [failover] = judge(BATCH, all_right(), [Kill(killed_ms, killed_ms)]).failovers

    assert failover.counts is counts


def test_a_kill_after_which_nothing_came_has_no_gap() -> None:
    before = [each for each in all_right() if each.received_ms < KILLED_MS]

    [failover] = judge(BATCH, before, [Kill(KILLED_MS, KILLED_MS)]).failovers

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


def test_what_the_witness_says_survives_json() -> None:
    verdict = judge(BATCH, through_a_kill()[1:], [Kill(KILLED_MS, KILLED_MS)])
    progress = Progress(verdict.counts, 3, verdict.failovers)

    assert verdict_from_json(json.loads(json.dumps(asdict(verdict)))) == verdict
    assert progress_from_json(json.loads(json.dumps(asdict(progress)))) == progress


PAYMENTS = Payments(BATCH)
CANCELLED = 18
TOO_LATE = 21
"""Two orders that are paid; what the payments of all others are told follows from the number."""


def is_cancelled(number: int) -> bool:
    """By plan: half of the payments that are not of the two above."""
    return number == CANCELLED or (number != TOO_LATE and number % 6 == 0)


def answer(number: int, verdict: str, **fields: object) -> Answer:
    """A receipt as docs/reference/requests.md has it."""
    key = BATCH.key(number)
    killed = [f"0/{number}"] if verdict == "cancelled" else []
    said = {"id": key.decode(), "verdict": verdict, "op": "cancel", "killed": killed, **fields}
    return Answer(key, json.dumps(said).encode())


def true_answers() -> list[Answer]:
    return [
        answer(number, "cancelled" if is_cancelled(number) else "too-late")
        for number in range(0, BATCH.count, PAID_SHARE)
    ]


def ordered(number: int) -> Receipt:
    """A right receipt of a message that has its key as id."""
    right = receipt(number)
    return right._replace(headers=[*right.headers, ("delayd-id", BATCH.key(number))])


def what_came() -> list[Receipt]:
    """All that was not cancelled."""
    unpaid_or_late = (
        n for n in range(BATCH.count) if not (PAYMENTS.is_paid(n) and is_cancelled(n))
    )
    return [ordered(number) for number in unpaid_or_late]


def judged(receipts: list[Receipt], answers: list[Answer]) -> Verdict:
    """With payments, and in two orders, which must not matter."""
    verdict = judge(BATCH, receipts, payments=PAYMENTS, answers=answers)
    assert verdict == judge(BATCH, receipts[::-1], payments=PAYMENTS, answers=answers[::-1])
    return verdict


def told(number: int, *instead: Answer) -> list[Answer]:
    """The true answers, but with others for one payment."""
    key = BATCH.key(number)
    return [*(each for each in true_answers() if each.key != key), *instead]


def test_a_message_that_is_cancelled_and_never_comes_is_right() -> None:
    verdict = judged(what_came(), true_answers())

    assert verdict.ok
    assert verdict.counts == Counts(
        delivered=len(what_came()), cancelled=17, too_late=PAYMENTS.count - 17
    )
    assert verdict.counts.over == BATCH.count
    assert verdict.counts.answered == PAYMENTS.count


def test_a_message_that_comes_although_its_payment_was_told_cancelled_is_a_wrong_verdict() -> None:
    verdict = judged([*what_came(), ordered(CANCELLED)], true_answers())

    assert not verdict.ok
    assert {name: n for name, n in verdict.faults.items() if n} == {"wrong verdicts": 1}
    assert verdict.examples == ("a1-0000018: answered cancelled, but it came",)


def test_a_message_that_never_comes_although_its_payment_was_told_too_late_is_lost() -> None:
    came = [each for each in what_came() if each.key != BATCH.key(TOO_LATE)]
    verdict = judged(came, true_answers())

    assert {name: n for name, n in verdict.faults.items() if n} == {"lost": 1, "wrong verdicts": 1}
    assert verdict.examples == ("a1-0000021: lost, answered too-late, but it never came",)


@pytest.mark.parametrize(
    "nonsense",
    [
        Answer(BATCH.key(CANCELLED), None),
        Answer(BATCH.key(CANCELLED), b"[]"),
        Answer(BATCH.key(CANCELLED), b"no json"),
        answer(CANCELLED, "not-found"),
        answer(CANCELLED, "cancelled", killed=[]),
        answer(CANCELLED, "cancelled", killed=["0/1", "0/2"]),
        answer(CANCELLED, "cancelled", op="replace"),
        answer(CANCELLED, "cancelled", id="another"),
        answer(CANCELLED, "too-late", killed=["0/1"]),
    ],
)
def test_an_answer_that_no_payment_can_get_is_a_wrong_verdict(nonsense: Answer) -> None:
    verdict = judged(what_came(), told(CANCELLED, nonsense))

    assert verdict.wrong_verdicts == 1
    assert not verdict.ok


def test_two_answers_to_one_payment_are_one_wrong_verdict() -> None:
    twice = told(CANCELLED, answer(CANCELLED, "cancelled"), answer(CANCELLED, "cancelled"))
    both = told(CANCELLED, answer(CANCELLED, "cancelled"), answer(CANCELLED, "too-late"))

    assert judged(what_came(), twice).wrong_verdicts == 1
    assert judged(what_came(), both).wrong_verdicts == 1


def test_a_payment_without_an_answer_is_seen() -> None:
    came = [*what_came(), ordered(CANCELLED)]
    verdict = judged(came, told(CANCELLED))

    assert {name: n for name, n in verdict.faults.items() if n} == {"unanswered": 1}
    assert judged(what_came(), told(CANCELLED)).lost == 1


def test_a_receipt_that_is_of_no_payment_is_unknown() -> None:
    unpaid = answer(TOO_LATE + 1, "cancelled")
    strangers = [unpaid, Answer(None, b"{}"), Answer(b"x" + BATCH.key(CANCELLED), b"{}")]

    for stranger in strangers:
        verdict = judged(what_came(), [*true_answers(), stranger])
        assert {name: n for name, n in verdict.faults.items() if n} == {"unknown": 1}


def test_a_message_of_an_order_has_its_id() -> None:
    came = [each for each in what_came() if each.key != BATCH.key(TOO_LATE)]

    assert judged([*came, receipt(TOO_LATE)], true_answers()).counts.altered == 1
    assert judge(BATCH, [*all_right()[1:], ordered(0)]).counts.altered == 1


@pytest.mark.parametrize("count", [1, 100, 3_000, 20_000])
def test_payments_come_before_around_and_after_the_due_times(count: int) -> None:
    payments = Payments(replace(BATCH, count=count, spread_ms=60_000))
    batch, numbers = payments.batch, payments.in_order()
    times = [payments.at_ms(number) for number in numbers]

    assert len(numbers) == len(set(numbers)) == payments.count
    assert all(map(payments.is_paid, numbers))
    assert times == sorted(times)
    assert times[0] >= batch.first_due_ms - BEFORE_FIRST_MS
    assert times[-1] <= payments.last_ms
    if count < 100:
        return
    early_ms = [batch.due_ms(n) - payments.at_ms(n) for n in numbers]
    assert min(early_ms) < -AFTER_MS // 2
    assert max(early_ms) > 30_000
    around = sum(-AROUND_MS <= early <= AROUND_MS for early in early_ms)
    assert payments.count // 5 < around < payments.count // 2
