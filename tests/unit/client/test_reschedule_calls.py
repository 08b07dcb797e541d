"""Reschedules as clients ask for them: what is sent, and what is refused at once."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from delayd.bus import Record
from delayd.client import fire_record, reschedule_record
from delayd.client.asking import ask_fire, ask_reschedule
from delayd.client.errors import RequestRefusedError
from delayd.client.outcomes import verdict_of
from delayd.request import Op
from delayd.request.receipts import Verdict, receipt, receipt_record


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({"by": "+10m"}, ("delayd-by", b"+10m")),
        ({"by": timedelta(minutes=-10)}, ("delayd-by", b"-600000ms")),
        ({"by": 5}, ("delayd-by", b"+5ms")),
        ({"in_": "2h"}, ("delayd-delay", b"2h")),
        ({"in_": timedelta(seconds=3)}, ("delayd-delay", b"3000ms")),
        ({"at": 1_700_000_000_000}, ("delayd-due", b"1700000000000")),
        ({"at": datetime(2027, 1, 1, tzinfo=UTC)}, ("delayd-due", b"1798761600000")),
    ],
)
def test_its_time_becomes_a_header(
    options: dict[str, Any], header: tuple[str, bytes | None]
) -> None:
    record = reschedule_record("order-7", **options)
    assert (record.key, record.value) == (b"order-7", None)
    assert record.headers == [("delayd-op", b"reschedule"), ("delayd-id", b"order-7"), header]


def test_a_fire_needs_the_id_and_nothing_else() -> None:
    record = fire_record("order-7")
    assert record.headers == [("delayd-op", b"fire"), ("delayd-id", b"order-7")]
    assert ask_fire("order-7").op is Op.FIRE


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "exactly one of in_, at and by"),
        ({"in_": "1m", "by": "+1m"}, "exactly one of in_, at and by"),
        ({"by": "1m"}, "bad-by"),
        ({"at": "soon"}, "bad-due"),
        ({"in_": -1}, "negative"),
    ],
)
def test_what_delayd_would_reject_is_refused_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestRefusedError, match=said):
        ask_reschedule("order-7", **options)


def test_the_verdict_has_both_times() -> None:
    told = receipt(
        id="a", verdict=Verdict.RESCHEDULED, op=Op.FIRE, source="0/7", due_ms=5, old_due_ms=9
    )
    record = receipt_record(told, at_ms=6)
    verdict = verdict_of(record.value)
    assert verdict is not None
    assert (verdict.verdict, verdict.due_ms, verdict.old_due_ms) == ("rescheduled", 5, 9)
    assert Record(0, 0, -1, 0, record.key, record.value, record.headers).key == b"a"
