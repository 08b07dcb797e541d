"""What an event says, by each kind of place; and that nothing in it raises."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from delayd.bus import Headers, Record
from delayd.config.cancel_on import CancelOn
from delayd.node.cancel_on.event import Event, cancelled_by

EVENT = {
    "order": {"id": "7", "a/b": "s", "m~n": "t"},
    "n": 42,
    "yes": True,
    "list": ["x", {"y": 1}],
}
KIND: Headers = [("kind", b"order")]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
)


def event(value: Any = None, key: bytes | None = None, headers: Headers | None = None) -> Record:
    content = value if isinstance(value, bytes | None) else json.dumps(value).encode()
    return Record(0, 0, 0, 0, key, content, headers or [])


@pytest.mark.parametrize(
    ("place", "id"),
    [
        ("key", b"k"),
        ("header:h", b"first"),
        ("/order/id", b"7"),
        ("/order/a~1b", b"s"),
        ("/order/m~0n", b"t"),
        ("/n", b"42"),
        ("/yes", b"true"),
        ("/list/0", b"x"),
        ("/list/1/y", b"1"),
    ],
)
def test_each_place_names_its_id(place: str, id: bytes) -> None:
    headers: Headers = [("other", b"o"), ("h", b"first"), ("h", b"second")]
    rule = CancelOn(topic="t", id=place)
    assert cancelled_by(rule, event(EVENT, b"k", headers)) == id


@pytest.mark.parametrize(
    "place",
    [
        "key",
        "header:none",
        "/none",
        "/order",
        "/order/id/x",
        "/list/2",
        "/list/01x",
        "/list/00",
        "/",
    ],
)
def test_an_event_without_it_is_unusable(place: str) -> None:
    assert cancelled_by(CancelOn(topic="t", id=place), event(EVENT)) is Event.UNUSABLE


@pytest.mark.parametrize(
    "value",
    [
        *(None, b"", b"{", b"\xff", b"[" * 100_000, b"1" * 10_000, {"id": ""}, {"id": "x" * 257}),
        *({"id": None}, {"id": 1.5}, {"id": []}, b'{"id": "\\ud800"}', {"id": 10**50}, [1], "text"),
    ],
)
def test_what_has_no_id_that_a_message_can_have_is_unusable(value: Any) -> None:
    assert cancelled_by(CancelOn(topic="t", id="/id"), event(value)) is Event.UNUSABLE


def test_only_events_whose_conditions_all_hold_are_meant() -> None:
    rule = CancelOn(topic="t", id="key", where={"/status": "paid", "header:kind": "order"})
    assert cancelled_by(rule, event({"status": "paid"}, b"7", KIND)) == b"7"
    assert cancelled_by(rule, event({"status": "paid"}, None, KIND)) is Event.UNUSABLE
    assert cancelled_by(rule, event({"status": "paid"}, b"7", [])) is Event.OTHER
    for value in ({"status": "open"}, {}, b"{"):
        assert cancelled_by(rule, event(value, b"7", KIND)) is Event.OTHER


@given(
    st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()),
    st.sampled_from(["/", "/a", "/0/1", "/a/b", "/~0"]),
)
def test_nothing_in_an_event_raises(value: bytes, place: str) -> None:
    found = cancelled_by(CancelOn(topic="t", id=place), event(value))
    assert found is Event.UNUSABLE or (isinstance(found, bytes) and 0 < len(found) <= 256)


@pytest.mark.parametrize("place", ["", "keys", "header:", "order/id", "/~2", "/~", "header:a\0b"])
def test_a_place_that_is_none_is_refused(place: str) -> None:
    with pytest.raises(ValidationError, match="JSON pointer"):
        CancelOn(topic="t", id=place)
