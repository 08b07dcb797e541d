"""Local times as clients ask for them: what is sent, and what is refused at once."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from cluster_settings import REQUEST_LIMITS

from delayd.client.asking import Ask, ask, refuse_beyond
from delayd.client.errors import RequestRefusedError
from replication.rules import Rules
from replication.settings import SERIES_RULES

NOW_MS = 1_806_000_000_000
LIMITS = replace(REQUEST_LIMITS, max_delay_ms=30 * 86_400_000, partitions=1)
NINE = datetime(2027, 3, 28, 9)


def asked(at: Any = "2027-03-28T09:00", zone: str = "Europe/Berlin", **options: Any) -> Ask:
    return ask("delayd-buffer", "reports", b"v", at=at, zone=zone, **options)


@pytest.mark.parametrize(
    ("at", "due"),
    [
        ("2027-03-28T09:00", b"2027-03-28T09:00"),
        (NINE, b"2027-03-28T09:00:00"),
        (NINE.replace(microsecond=1), b"2027-03-28T09:00:00.000001"),
    ],
)
def test_text_and_naive_datetimes_become_headers(at: Any, due: bytes) -> None:
    sent = asked(at, id="report")
    assert dict(sent.headers) == {
        "delayd-topic": b"reports",
        "delayd-due": due,
        "delayd-zone": b"Europe/Berlin",
        "delayd-id": b"report",
    }


def test_it_says_when_that_is() -> None:
    due = datetime(2027, 3, 28, 7, tzinfo=UTC)
    assert asked().due_ms(NOW_MS) == int(due.timestamp()) * 1_000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"at": NINE.replace(tzinfo=UTC)}, "delayd-zone has no meaning with delayd-due"),
        ({"at": NOW_MS}, "delayd-zone has no meaning with delayd-due"),
        ({"at": "2027-03-28T09:00Z"}, "bad-due"),
        ({"at": "2027-02-29T09:00"}, "no calendar"),
        ({"at": None, "in_": "5m"}, "delayd-zone has no meaning with delayd-delay"),
        ({"zone": "Europe/Bielefeld"}, "no-occurrence: the time zone 'Europe/Bielefeld'"),
        ({"zone": "Europe Berlin"}, "bad-zone"),
        ({"cron": "@daily"}, "exactly one of in_, at and cron"),
    ],
)
def test_what_the_master_would_refuse_is_refused_at_once(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(RequestRefusedError, match=said):
        asked(**options)


def test_a_naive_datetime_needs_a_zone() -> None:
    with pytest.raises(RequestRefusedError, match="no time zone") as error:
        ask("delayd-buffer", "reports", b"v", at=NINE)
    assert "zone" in (error.value.remedy or "")


def test_what_this_cluster_would_refuse_is_refused_by_who_knows_it() -> None:
    refuse_beyond(asked(), LIMITS, NOW_MS)
    with pytest.raises(RequestRefusedError, match="too-far"):
        refuse_beyond(asked("2027-06-28T09:00"), LIMITS, NOW_MS)
    older = replace(LIMITS, rules=Rules(SERIES_RULES))
    with pytest.raises(RequestRefusedError, match="unexpected-header"):
        refuse_beyond(asked(), older, NOW_MS)
