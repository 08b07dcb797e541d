"""Any bytes at all: each record has exactly one outcome (docs/design, wire contract).

100,000 header sets from one seed; half of them begin as a good request or as a record that the
master wrote, and are then spoilt, because pure noise never gets past the first check.
"""

from collections import Counter
from random import Random
from typing import Any, Final

import msgpack

from delayd.bus import Headers, Record
from delayd.bus.murmur2 import partition_of
from delayd.request import (
    Op,
    Reason,
    Reject,
    Request,
    RequestLimits,
    answer_body,
    continuation,
    dead_letter,
    delivered,
    message_body,
    parse,
    receipt_record,
    reject_body,
    reject_receipt,
)
from delayd.request.headers import (
    INTERNAL_HEADERS,
    PLANNED_HEADERS,
    SUPPORTED_HEADERS,
    UNREADABLE_HEADERS,
    WRITTEN_HEADERS,
)
from delayd.request.reasons import DETAIL_CHARS_MAX

SEED: Final = 4
RECORDS: Final = 100_000
APPEND_MS: Final = 1_700_000_000_000
LIMITS = RequestLimits(
    max_delay_ms=86_400_000,
    record_bytes_max=900,
    partitions=4,
    cluster="c",
    proof_key=b"the key of the cluster",
)
NAMES: Final = (
    *(*SUPPORTED_HEADERS, *PLANNED_HEADERS, *INTERNAL_HEADERS, *WRITTEN_HEADERS),
    *(UNREADABLE_HEADERS, "delayd-", "delayd-\udc80", "delayd-ü", "", "trace", "\ud800"),
)
CONTENTS: Final = (
    *(None, b"", b"\xff", b"orders", b"10s", b"3", b"1700000010000", b"2023-11-14T22:13:20.5Z"),
    *(b"cancel", b"replace", b"schedule", b"0/7", b"1/7", b"2/7", b"3/7", b"i", b"__x", b"0" * 64),
    *(b"-1", b"99d", b"9" * 30, b"x" * 300, b"a b", b"delayd-buffer"),
)
IDS: Final = (b"i", b"order-4711", "ü".encode(), b"x" * 256)


def record(random: Random) -> Record:
    """A record: noise, or something good that is spoilt in up to two places."""
    key: bytes | None = random.choice(IDS)
    partition = partition_of(key or b"", LIMITS.partitions)
    kind = random.randrange(6)
    if kind < 3:
        headers = [noise(random) for _ in range(random.randrange(7))]
    elif kind < 5:
        headers = request(random, key)
    else:
        headers = retry(random, key, partition)
    for _ in range(random.randrange(3)):
        at = random.randrange(len(headers) + 1)
        match random.randrange(5):
            case 0:
                headers.insert(at, noise(random))
            case 1 if at < len(headers):
                headers[at] = (headers[at][0], noise(random)[1])
            case 2 if at < len(headers):
                del headers[at]
            case 3:
                key = random.choice([None, b"", b"another", key])
            case 4:
                random.shuffle(headers)
            case _:
                partition = random.randrange(LIMITS.partitions)
    value = random.choice([None, b"", b"v", b"v" * 700])
    if kind == 5:
        value = b"v"
    return Record(partition, random.randrange(2**40), -1, APPEND_MS, key, value, headers)


def noise(random: Random) -> tuple[str, bytes | None]:
    content = random.choice(CONTENTS)
    if random.random() < 0.2:
        content = random.randbytes(random.randrange(20))
    return random.choice(NAMES), content


def request(random: Random, key: bytes | None) -> Headers:
    when: tuple[str, bytes | None] = random.choice(
        [("delayd-delay", b"10s"), ("delayd-due", b"1"), ("delayd-level", b"18")]
    )
    headers: Headers = [("u", random.choice(CONTENTS)), ("delayd-topic", b"orders"), when]
    with_id: tuple[str, bytes | None] = ("delayd-id", key)
    match random.randrange(5):
        case 0:
            headers.append(with_id)
        case 1:
            headers += [with_id, ("delayd-op", b"replace")]
        case 2:
            headers = [with_id, ("delayd-op", b"cancel")]
        case 3:
            partition = partition_of(key or b"", LIMITS.partitions)
            headers.append(("delayd-redrive", b"%d/7" % partition))
        case _:
            headers += [("delayd-key", b"k"), ("delayd-partition", b"3")]
    return headers


def retry(random: Random, key: bytes | None, partition: int) -> Headers:
    id = None if key is None or random.random() < 0.5 else key.decode()
    digest = b"d" * 16 if id else b""
    body = ("orders", APPEND_MS, key, b"v", [("u", None)], None, id, digest, "", 0)
    written = continuation(
        body,
        partition=partition,
        offset=7,
        rank_due_ms=APPEND_MS,
        next_due_ms=APPEND_MS + 10_000,
        limits=LIMITS,
    )
    return list(written.headers)


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
    body = answer_body(
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


def test_100_000_records_of_any_kind_have_one_outcome_each() -> None:
    random = Random(SEED)
    outcomes: Counter[str] = Counter()
    for _ in range(RECORDS):
        asked = record(random)
        outcome = parse(asked, LIMITS)
        outcomes[check(asked, outcome)] += 1
    assert outcomes.total() == RECORDS
    # That this could have found anything: every operation and every way to be refused was met.
    met_by_ingest_and_steps = {Reason.CONFLICT.slug, Reason.DEAD.slug}
    wanted = {op.name for op in Op} | {reason.slug for reason in Reason} - met_by_ingest_and_steps
    assert wanted - set(outcomes) == set(), f"seed {SEED}: {outcomes}"
