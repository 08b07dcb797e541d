"""Debounces as clients ask for them: what is sent, and what is refused at once."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from delayd.client import debounce_record
from delayd.client.errors import RequestRefusedError
from delayd.testing import InMemoryDelayd

START_MS = 1_700_000_000_000


def test_the_arguments_become_headers() -> None:
    record = debounce_record(
        *("doc-7", "index", "v"),
        in_="2s",
        max_wait=timedelta(seconds=30),
        key="k",
        headers={"a": "b"},
        partition=3,
        late="1h",
        group="docs",
        receipts=True,
    )
    assert (record.topic, record.key, record.value) == ("delayd-buffer", b"doc-7", b"v")
    assert record.headers == [
        *(("a", b"b"), ("delayd-topic", b"index"), ("delayd-delay", b"2s")),
        *(("delayd-partition", b"3"), ("delayd-receipt", b"yes"), ("delayd-late", b"1h")),
        *(("delayd-max-wait", b"30000ms"), ("delayd-group", b"docs"), ("delayd-key", b"k")),
        *(("delayd-op", b"debounce"), ("delayd-id", b"doc-7")),
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"in_": "2s", "max_wait": "1s"}, "bad-max-wait"),
        ({"in_": "2s", "max_wait": "soon"}, "bad-max-wait"),
        ({"in_": "2s", "max_wait": -1}, "negative"),
        ({"in_": "soon", "max_wait": "1s"}, "bad-delay"),
        ({"max_wait": "1s"}, "exactly one of in_"),
        ({"in_": "2s"}, "missing-due"),
        ({"in_": "2s", "max_wait": "3s", "window": "1s"}, "unexpected-header"),
    ],
)
def test_what_delayd_would_reject_is_refused_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestRefusedError, match=said):
        debounce_record("doc-7", "index", b"v", **options)


def test_the_last_call_is_delivered() -> None:
    with InMemoryDelayd("index", start=START_MS) as delayd:
        client = delayd.client()
        for number in range(5):
            sent = client.debounce("doc", "index", b"%d" % number, in_="2s", max_wait="1h")
            assert sent.due_ms == sent.append_ms + 2_000
            delayd.clock.advance("1s")
        assert [each.id for each in delayd.pending()] == ["doc"]
        delayd.clock.advance("1s")
        [found] = delayd.delivered("index")
        assert (found.value, found.timestamp_ms) == (b"4", START_MS + 6_000)
        assert delayd.receipts() == []


def test_the_last_awaited_call_is_delivered() -> None:
    async def call(delayd: InMemoryDelayd) -> None:
        async with delayd.async_client() as client:
            for number in range(3):
                await client.debounce(
                    "doc", "index", b"%d" % number, in_=10, max_wait="1s", receipts=True
                )

    with InMemoryDelayd("index", start=START_MS) as delayd:
        asyncio.run(call(delayd))
        delayd.clock.advance("1s")
        assert [each.value for each in delayd.delivered("index")] == [b"2"]
        verdicts = [json.loads(each.value or b"")["verdict"] for each in delayd.receipts()]
        assert verdicts == ["scheduled", "replaced", "replaced", "delivered"]
