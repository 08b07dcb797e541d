"""Any bytes at all: each record has exactly one outcome (docs/design, wire contract).

100,000 header sets from one seed. On a real cluster: tests/integration/test_random_requests.py.
"""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any, Final

import msgpack
import pytest
from cluster_settings import REQUEST_LIMITS
from random_requests import APPEND_MS, Mixture, record

from delayd.bus import Record
from delayd.request import (
    Op,
    Reason,
    Reject,
    Request,
    dead_letter,
    delivered,
    message_body,
    parse,
    pending_reply_body,
    receipt_record,
    reject_body,
    reject_receipt,
)
from delayd.request.reasons import DETAIL_CHARS_MAX

SEED: Final = 4
RECORDS: Final = 100_000
LIMITS = replace(REQUEST_LIMITS, record_bytes_max=900)
MIXTURE = Mixture(LIMITS)


def stored(body: Any) -> Any:
    """What the wheel gives back for a body."""
    return msgpack.unpackb(msgpack.packb(body, use_bin_type=True))


def check(asked: Record, outcome: Request | Reject) -> str:
    """That the outcome can be stored, read back and produced; what kind it is."""
    if isinstance(outcome, Request):
        assert (len(outcome.digest) == 16) == (outcome.id is not None and outcome.topic is not None)
        assert (outcome.continues is not None) == (outcome.op is Op.CONTINUE)
        assert (outcome.redrive is not None) == (outcome.op is Op.REDRIVE)
        if outcome.topic is not None:
            delivery = delivered(stored(message_body(outcome)), fired_ms=APPEND_MS, source="0/1")
            assert delivery.value == asked.value
        return outcome.op.name
    detail = outcome.detail
    assert 0 < len(detail) <= DETAIL_CHARS_MAX and detail.isascii() and detail.isprintable()
    body = pending_reply_body(
        dead=reject_body(asked, outcome), receipt=reject_receipt(outcome, source="0/1")
    )
    dead, told = stored(body)
    letter = dead_letter(dead, source="0/1")
    assert letter.value == (None if outcome.truncated else asked.value)
    for name, _ in letter.headers:
        name.encode()
    if told is not None:
        assert receipt_record(told, at_ms=APPEND_MS).key == (outcome.id or "").encode()
    return outcome.reason.slug


@pytest.mark.long
@pytest.mark.long
def test_100_000_records_of_any_kind_have_one_outcome_each() -> None:
    random = Random(SEED)
    outcomes: Counter[str] = Counter()
    for _ in range(RECORDS):
        asked = record(random, MIXTURE)
        outcome = parse(asked, LIMITS)
        outcomes[check(asked, outcome)] += 1
    assert outcomes.total() == RECORDS
    # That this could have found anything: every operation and every way to be refused was met.
    of_messages = {Reason.CONFLICT, Reason.DEAD, Reason.EXPIRED, Reason.NO_OCCURRENCE}
    of_messages.add(Reason.UNMOVABLE)
    of_older_rules = {Reason.NOT_SUPPORTED}
    others = (*of_messages, *of_older_rules, Reason.UNREADABLE_BATCH, Reason.OVER_QUOTA)
    met_elsewhere = {reason.slug for reason in others}
    with_proof = {"SWITCH", "SETTLE", "HOLD", "QUOTA", "GATE"}  # of their own
    ops = {op.name for op in Op} - with_proof
    wanted = ops | {reason.slug for reason in Reason} - met_elsewhere
    assert wanted - set(outcomes) == set(), f"seed {SEED}: {outcomes}"
