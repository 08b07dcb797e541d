"""Receipts as their readers see them (docs/design, wire contract)."""

import json
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayd.request import (
    Op,
    Reason,
    ReceiptRecord,
    Reject,
    Verdict,
    receipt,
    receipt_record,
    reject_receipt,
)
from delayd.request.reasons import DETAIL_CHARS_MAX

AT_MS = 1_700_000_000_000


def stored(form: Any, *, use_list: bool = True) -> Any:
    """A receipt as it comes back from the wheel."""
    return msgpack.unpackb(msgpack.packb(form, use_bin_type=True), use_list=use_list)


@pytest.mark.parametrize("use_list", [True, False])
def test_a_receipt_is_exactly_this_json_under_its_id(use_list: bool) -> None:
    form = receipt(
        id="order-4711",
        verdict=Verdict.CANCELLED,
        op=Op.CANCEL,
        source="3/99",
        killed=["3/70", "3/71"],
        due_ms=AT_MS + 1,
        detail="as asked",
    )
    assert receipt_record(stored(form, use_list=use_list), at_ms=AT_MS) == ReceiptRecord(
        key=b"order-4711",
        value=b'{"id":"order-4711","verdict":"cancelled","op":"cancel","source":"3/99",'
        b'"killed":["3/70","3/71"],"due_ms":1700000000001,"at_ms":1700000000000,'
        b'"detail":"as asked"}',
        headers=[("delayd-source", b"3/99")],
    )


def test_what_a_receipt_has_nothing_to_say_of_is_null_or_empty() -> None:
    form = receipt(id="i", verdict=Verdict.NOT_FOUND, op=Op.CANCEL, source="0/0")
    assert receipt_record(form, at_ms=5).value == (
        b'{"id":"i","verdict":"not-found","op":"cancel","source":"0/0",'
        b'"killed":[],"due_ms":null,"at_ms":5,"detail":""}'
    )


def test_the_verdicts_have_these_slugs_and_a_meaning() -> None:
    assert [verdict.slug for verdict in Verdict] == [
        *("cancelled", "too-late", "not-found", "rescheduled", "replaced", "duplicate", "conflict"),
        *("over-quota", "rejected", "expired", "dead", "ended", "scheduled", "delivered"),
    ]
    assert all(verdict.meaning.endswith(".") for verdict in Verdict)
    assert Verdict("too-late") is Verdict.TOO_LATE


def test_a_reject_is_answered_with_its_reason() -> None:
    reject = Reject(Reason.MISSING_TOPIC, "no topic", id="i", op=Op.REPLACE)
    form = reject_receipt(reject, source="1/2")
    assert form is not None
    assert json.loads(receipt_record(stored(form), at_ms=5).value) == {
        "id": "i",
        "verdict": "rejected",
        "op": "replace",
        "source": "1/2",
        "killed": [],
        "due_ms": None,
        "at_ms": 5,
        "detail": "missing-topic: no topic",
    }


def test_a_reject_without_an_id_is_answered_to_nobody() -> None:
    assert reject_receipt(Reject(Reason.MISSING_TOPIC, "no topic"), source="1/2") is None


@given(
    st.text(min_size=1, max_size=64),
    st.sampled_from(Verdict),
    st.sampled_from(Op),
    st.lists(st.from_regex(r"[0-9]{1,3}/[0-9]{1,9}", fullmatch=True), max_size=4),
    st.none() | st.integers(0, 2**62),
    st.text(max_size=700),
)
def test_any_receipt_is_one_object_with_these_fields(
    id: str, verdict: Verdict, op: Op, killed: list[str], due_ms: int | None, detail: str
) -> None:
    form = receipt(
        id=id, verdict=verdict, op=op, source="1/2", killed=killed, due_ms=due_ms, detail=detail
    )
    record = receipt_record(stored(form), at_ms=AT_MS)
    fields = json.loads(record.value)
    shown = fields.pop("detail")
    assert len(shown) <= DETAIL_CHARS_MAX
    assert shown.isascii()
    assert (shown or " ").isprintable()
    assert list(fields.items()) == [
        ("id", id),
        ("verdict", verdict.slug),
        ("op", op.slug),
        ("source", "1/2"),
        ("killed", killed),
        ("due_ms", due_ms),
        ("at_ms", AT_MS),
    ]
    assert record.key == id.encode()
    assert record.value.isascii()
