"""Series as clients ask for them: what is sent, and what is refused at once."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from cluster_settings import REQUEST_LIMITS

from delayd.client import Request
from delayd.client.asking import Ask, ask, refuse_beyond, replace_record, schedule_record
from delayd.client.errors import RequestRefusedError

NOW_MS = 1_700_000_000_000
LIMITS = replace(REQUEST_LIMITS, max_delay_ms=30 * 86_400_000, partitions=1)


def asked(cron: str = "0 9 * * MON-FRI", **options: Any) -> Ask:
    return ask("delayd-buffer", "reports", b"v", cron=cron, **options)


def test_its_options_become_headers() -> None:
    until = datetime(2027, 1, 1, tzinfo=UTC)
    sent = asked(zone="Europe/Berlin", until=until, catchup="all", late="5m", id="report")
    assert dict(sent.headers) == {
        "delayd-topic": b"reports",
        "delayd-cron": b"0 9 * * MON-FRI",
        "delayd-zone": b"Europe/Berlin",
        "delayd-until": b"%d" % (int(until.timestamp()) * 1000),
        "delayd-catchup": b"all",
        "delayd-late": b"5m",
        "delayd-id": b"report",
    }


def test_it_says_when_the_first_occurrence_is_due() -> None:
    due = datetime(2023, 11, 15, 8, tzinfo=UTC)  # 09:00 in Berlin, the day after NOW_MS
    assert asked(zone="Europe/Berlin").due_ms(NOW_MS) == int(due.timestamp()) * 1000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cron": "0 0 30 2 *"}, "no-occurrence: the cron expression '0 0 30 2 \\*'"),
        ({"cron": "* * *"}, "bad-cron"),
        ({"zone": "Europe/Bielefeld"}, "no-occurrence: the time zone 'Europe/Bielefeld'"),
        ({"catchup": "none"}, "bad-catchup"),
        ({"window": "5m"}, "delayd-window and delayd-cron"),
        ({"in_": "5m"}, "exactly one of in_, at and cron"),
        ({"at": NOW_MS}, "exactly one of in_, at and cron"),
        ({"until": "soon"}, "bad-until"),
    ],
)
def test_what_the_master_would_refuse_is_refused_at_once(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(RequestRefusedError, match=said):
        asked(**options)


def test_options_of_a_series_need_an_expression() -> None:
    with pytest.raises(RequestRefusedError, match="delayd-zone has no meaning with delayd-delay"):
        ask("delayd-buffer", "reports", b"v", in_="5m", zone="UTC")


def test_an_end_that_is_over_is_refused_by_who_knows_the_time() -> None:
    sent = asked("@daily", until=NOW_MS - 1)
    with pytest.raises(RequestRefusedError, match="after the end of the series"):
        refuse_beyond(sent, LIMITS, NOW_MS)
    refuse_beyond(asked("@yearly", until=NOW_MS + 400 * 86_400_000), LIMITS, NOW_MS)


def test_plain_records_and_requests_take_the_same_options() -> None:
    options: dict[str, Any] = {"cron": "@daily", "zone": "Asia/Kolkata"}
    plain = schedule_record("reports", b"v", **options)
    again = replace_record("report", "reports", b"v", **options)
    of_request = Request("reports", b"v", **options).ask("delayd-buffer")
    assert plain.headers == of_request.headers
    assert ("delayd-op", b"replace") in again.headers and (
        "delayd-cron",
        b"@daily",
    ) in again.headers
