"""The witness's verdict on payments: each has one receipt, and what the receipt says is true.

Source: docs/reference/requests.md, "Receipts".
"""

import json
from dataclasses import replace

import pytest
from batch_received import BATCH, all_right, judge, receipt

from delayd.dev.answers import Answer
from delayd.dev.batch import AFTER_MS, AROUND_MS, BEFORE_FIRST_MS, PAID_SHARE, Payments
from delayd.dev.ledger import Receipt
from delayd.dev.verdict import Counts, Verdict

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
    verdict = judge(receipts, payments=PAYMENTS, answers=answers)
    assert verdict == judge(receipts[::-1], payments=PAYMENTS, answers=answers[::-1])
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
    assert judge([*all_right()[1:], ordered(0)]).counts.altered == 1


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
