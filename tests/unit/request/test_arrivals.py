"""Delivered records taken apart (docs/reference/requests.md)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayd.bus import Headers, Record
from delayd.request import Body, delivered
from delayd.request.arrivals import Arrival, arrival_of

FIRED_MS = 1_700_000_000_123
NAMES = ("trace", "delayd-id", "delayd-due", "delayd-fired", "delayd-source", "delayd-origin")
USER = st.lists(st.tuples(st.sampled_from(NAMES), st.none() | st.binary(max_size=4)), max_size=4)


def read(headers: Headers, key: bytes | None = b"k") -> Arrival | None:
    return arrival_of(Record(0, 7, 0, FIRED_MS, key, b"v", headers))


@given(USER, st.sampled_from([None, "an id"]), st.sampled_from(["", "3/1"]), st.integers(0, 3))
def test_what_was_appended_is_taken_off_and_nothing_else(
    user: Headers, id: str | None, origin: str, attempt: int
) -> None:
    # A user's header at the end that could be the id's is told apart only where there is an id.
    if id is None and user and user[-1][0] == "delayd-id":
        return
    body = ("orders", 5, b"k", b"v", user, None, id, b"", origin, attempt)
    sent = delivered(body, fired_ms=FIRED_MS, source="2/4711")
    assert read(sent.headers) == Arrival(
        "2/4711", 5, FIRED_MS, b"k", b"v", user, id, origin, attempt
    )


@pytest.mark.parametrize("missing", ["delayd-due", "delayd-fired", "delayd-source"])
def test_a_record_without_one_of_the_three_is_nobodys_delivery(missing: str) -> None:
    body: Body = ("orders", 5, b"k", b"v", [], None, None, b"", "", 0)
    headers = delivered(body, fired_ms=FIRED_MS, source="2/4711").headers
    assert read([header for header in headers if header[0] != missing]) is None


@pytest.mark.parametrize("source", [b"", b"2", b"2/", b"x/1", None])
def test_a_source_that_is_none_is_nobodys_delivery(source: bytes | None) -> None:
    headers: Headers = [
        ("delayd-due", b"5"),
        ("delayd-fired", b"6"),
        ("delayd-source", source),
    ]
    assert read(headers) is None
