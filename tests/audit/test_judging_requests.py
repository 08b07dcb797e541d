"""The audit's own reading of requests, in SQL, against the node's parser."""

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from struct import pack
from typing import Any

import pytest
from cluster_settings import REQUEST_LIMITS
from cluster_settings import SETTINGS as CLUSTER
from pyspark.sql import SparkSession
from random_requests import APPEND_MS, Mixture, record
from record_rows import row_of

from delayd.audit.judging.requests import barriers_of, requests_of
from delayd.audit.tables import RECORDS, REQUESTS
from delayd.bus import Headers, Record
from delayd.bus.murmur2 import partition_of
from delayd.request import Op, Reason, Reject, Request, RequestLimits, offset_of, parse
from delayd.request.headers import UNREADABLE_HEADERS
from delayd.request.holds import order_record
from delayd.request.internal import barrier, signed
from delayd.request.quotas import gate_record, quota_record
from delayd.request.request import Switch
from replication.holds import HOLD_MS_MAX, ORDER_AGE_MS_MAX, Order
from replication.quotas import MAX_PENDING_MAX, PENDING, RATE, Gate, QuotaOrder
from replication.rank import lane_of
from replication.rules import Barrier, Rules
from replication.settings import RULES_VERSION
from replication.smoothing import RATE_MAX

SEED = 5
RECORDS_MADE = 8_000
LIMITS = replace(REQUEST_LIMITS, record_bytes_max=900)
SETTINGS = replace(
    CLUSTER,
    partitions=4,
    lanes=64,
    max_delay_ms=LIMITS.max_delay_ms,
    record_bytes_max=LIMITS.record_bytes_max,
    rules_version=RULES_VERSION,
)
DUES = (
    *("999999999", "1000000000", "1700000000", "9999999999", "10000000000", "01700000000"),
    *("0", "1", "00000000000001", "253402300799999", "253402300800000", "9" * 15, "1" * 16, "+1"),
    *("-1", " 1", "1 ", "1\n", "١٢٣", "1e3", "2023-11-14T22:13:20Z", "2023-11-14t22:13:20z"),
    *("2023-11-14T22:13:20.25+01:00", "2023-11-14T22:13:20.0001-23:59", "2023-11-14T22:13:20"),
    *("2023-11-14T22:13:60Z", "2023-02-29T00:00:00Z", "2024-02-29T00:00:00Z"),
    *("1900-02-29T00:00:00Z", "2000-02-29T00:00:00.9991Z", "2023-13-01T00:00:00Z"),
    *("2023-00-01T00:00:00Z", "2023-01-00T00:00:00Z", "2023-04-31T00:00:00Z"),
    *("2023-11-14T24:00:00Z", "2023-11-14T23:60:00Z", "2023-11-14T23:59:59.9999Z"),
    *("1970-01-01T00:00:00+00:01", "1970-01-01T00:00:00-00:01", "0000-03-01T00:00:00Z"),
    *("9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.9991Z", "9999-12-31T23:59:59-00:01"),
    *("2023-11-14T22:13:20.Z", "2023-11-14T22:13:20.5", "2023-11-14 22:13:20Z"),
    *("2023-11-14T22:13:20+24:00", "2023-11-14T22:13:20+01:60", "2023-11-14T22:13:20Z\n"),
    *("2023-11-14T22:13:20.000" + "0" * 50 + "1Z", "x", "2023-11-14T22:13:20é"),
)
DELAYS = (
    *("0ms", "250ms", "10s", "5m", "2h", "30d", "1d", "1", "s", "1.5s", "-1s", "1 s", "1s\n"),
    *("9" * 15 + "ms", "9" * 15 + "d", "9" * 16 + "ms", "86400000ms", "86400001ms", "1S", "1ds"),
)
LEVELS = ("1", "18", "19", "0", "001", "1" * 15, "1" * 16, "-1", "x", "1 ", "٣")
TOPICS = ("a", "A.b_c-9", "x" * 249, "x" * 250, ".", "..", "...", "a b", "a/b", "orders\n", "é")
MORE_TOPICS = ("__consumer_offsets", "_x", "delayd-buffer", "delayd-", "delayd", "delayed")
PARTITIONS = ("0", "7", "0000000001", "2147483647", "2147483648", "99999999999", "-1", "x", "1\n")
REDRIVES = ("2/7", "1/7", "02/7", "2/07", "2/9223372036854775807", "2/9223372036854775808", "2", "")
IDS = ("k", "", "other", "x" * 256, "x" * 257, "ü", "\0")


def by_hand() -> Iterator[Record]:
    """Each way of writing each header, alone and beside an id."""
    topic, delay = ("delayd-topic", b"orders"), ("delayd-delay", b"10s")
    for name, texts in (("due", DUES), ("delay", DELAYS), ("level", LEVELS)):
        for text in texts:
            yield request(topic, (f"delayd-{name}", text.encode()))
    for text in (*TOPICS, *MORE_TOPICS):
        yield request(("delayd-topic", text.encode()), delay)
    for text in PARTITIONS:
        yield request(topic, delay, ("delayd-partition", text.encode()))
    for text in REDRIVES:
        for more in ((), (("delayd-op", b"schedule"),), (("delayd-op", b"replace"),)):
            yield request(topic, delay, ("delayd-redrive", text.encode()), *more)
    for id in IDS:
        for key in (id.encode(), b"k", None):
            for partition in (partition_of(id.encode(), 4), 3):
                for op in (b"schedule", b"cancel", b"replace", b"put"):
                    asked: Headers = [("delayd-id", id.encode()), ("delayd-op", op)]
                    if op != b"cancel":
                        asked += [topic, delay]
                    yield request(*asked, key=key, partition=partition)
    yield request(topic, delay, ("delayd-due", b"1"))
    yield request(topic)
    named: Headers = [("delayd-id", b"k"), ("delayd-op", b"debounce"), topic]
    for text in DELAYS:
        for other in ("10s", "999999999999999d", text):
            for one, two in ((text, other), (other, text)):
                times = ("delayd-delay", one.encode()), ("delayd-max-wait", two.encode())
                yield request(*named, *times)
    longest = ("delayd-max-wait", b"1h")
    for left_out in range(5):
        asked = [*named, delay, longest]
        del asked[left_out]
        yield request(*asked)
    for name in ("due", "level", "by", "window", "cron", "zone", "until", "catchup", "redrive"):
        yield request(*named, delay, longest, (f"delayd-{name}", b"2/7"))
    for wish in (("receipt", b"yes"), ("late", b"1s"), ("group", b"g"), ("late", b"x")):
        yield request(*named, delay, longest, (f"delayd-{wish[0]}", wish[1]))
    for op in (b"schedule", b"replace", b"cancel", b"fire", b"reschedule"):
        yield request(("delayd-id", b"k"), ("delayd-op", op), topic, delay, longest)
        yield request(("delayd-id", b"k"), ("delayd-op", op), longest, value=None)
    yield request(
        ("u", b"\xff"), topic, ("null", None), delay, ("u", b""), ("delayd-key", b"\xc3\xa9")
    )
    for size in (660, 661, 700, 900, 1_684, 1_685, 2_000, 8_852, 8_853, 9_500):
        yield request(topic, delay, value=b"v" * size)
        for source in (b"2/7", None):
            yield request(topic, delay, ("delayd-redrive", source), value=b"v" * size)
        yield request(topic, ("delayd-continues", b"1"), value=b"v" * size)
    true = _barrier(2, 77, LIMITS)
    yield true
    yield true._replace(partition=3)
    yield true._replace(headers=true.headers[:1])
    yield true._replace(headers=[("delayd-rules", b"5/9"), true.headers[1]])
    yield from orders()
    yield from quotas()


def quotas() -> Iterator[Record]:
    """Orders about quotas and gates: true, of another partition, of another time, copied, false."""
    for max_pending in (0, 1, 5, MAX_PENDING_MAX, MAX_PENDING_MAX + 1):
        for topic in ("orders", "..", "delayd-x"):
            rate = RATE_MAX + (max_pending == 1)
            written = quota_record(QuotaOrder(topic, APPEND_MS, max_pending, rate), LIMITS)
            for partition in (written.partition, written.partition + 1):
                place = partition % LIMITS.partitions
                yield request(*written.headers, key=None, value=None, partition=place)
    for over in (0, PENDING, RATE):
        for at_ms in (APPEND_MS, APPEND_MS - ORDER_AGE_MS_MAX, APPEND_MS - ORDER_AGE_MS_MAX - 1):
            written = gate_record(1, Gate("orders", at_ms, over, 7, 5, 3, 2), LIMITS)
            for partition in (1, 2):
                yield request(*written.headers, key=None, value=None, partition=partition)


def orders() -> Iterator[Record]:
    """To pause targets and to resume them, and what only looks like it."""
    day_ms, age_ms = HOLD_MS_MAX, ORDER_AGE_MS_MAX
    for order in (
        *(Order(topic, APPEND_MS, APPEND_MS + 5, 7) for topic in ("orders", "a.b_c-D", "x" * 249)),
        *(Order(topic, APPEND_MS, APPEND_MS + 5, 7) for topic in ("..", "delayd-x", "__x", "a b")),
        *(Order("orders", APPEND_MS + by, APPEND_MS + by + 9, 0) for by in (-age_ms, age_ms)),
        *(Order("orders", APPEND_MS + by, 0, 0) for by in (-age_ms - 1, age_ms + 1, 0)),
        *(Order("orders", APPEND_MS, APPEND_MS + by, 0) for by in (0, 1, day_ms, day_ms + 1)),
        *(Order("orders", APPEND_MS, 0, rate) for rate in (1, RATE_MAX, RATE_MAX + 1)),
    ):
        written = order_record(order, LIMITS)
        yield request(*written.headers, key=None, value=None, partition=written.partition)
    true = order_record(Order("orders", APPEND_MS, 0, 0), LIMITS)
    other = (true.partition + 1) % LIMITS.partitions
    yield request(*true.headers, key=None, value=None, partition=other)
    yield request(true.headers[0], key=None, value=None, partition=true.partition)
    texts = (
        "pause",
        "resume/1/2",
        f"resume/{APPEND_MS}/0/orders/",
        f"pause/{APPEND_MS}/0/0/orders",
    )
    for text in (*texts, f"resume/{APPEND_MS}/-1/orders", f"Resume/{APPEND_MS}/0/orders"):
        for partition in (true.partition, other):
            said = signed(partition, None, None, [("delayd-hold", text.encode())], LIMITS)
            yield request(*said.headers, key=None, value=None, partition=partition)


def request(
    *headers: tuple[str, bytes | None],
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    partition: int = 2,
) -> Record:
    return Record(partition, 77, -1, APPEND_MS, key, value, list(headers))


def corpus() -> list[Record]:
    random, mixture = Random(SEED), Mixture(LIMITS)
    made = [*by_hand()]
    made += [record(random, mixture) for _ in range(RECORDS_MADE)]
    return [
        each._replace(offset=offset, headers=readable(each.headers))
        for offset, each in enumerate(made)
    ]


def readable(headers: Headers) -> Headers:
    """As drivers hand them out: names that are not UTF-8 hide all headers."""
    try:
        for name, _ in headers:
            name.encode()
    except UnicodeEncodeError:
        return [(UNREADABLE_HEADERS, b"")]
    return headers


def expected(asked: Record, outcome: Request | Reject) -> dict[str, Any]:
    """What a node makes of it, in the columns of REQUESTS that can be compared."""
    if isinstance(outcome, Reject):
        told = outcome.op.name.lower()
        return {"op": "reject", "reason": outcome.reason.slug, "id": outcome.id, "asked_op": told}
    op = outcome.op.name.lower()
    same = {"op": op, "asked_op": op, "reason": None, "id": outcome.id}
    if outcome.topic is None:
        return same
    return same | {
        "topic": outcome.topic,
        "lane": lane_of(outcome.topic, SETTINGS.lanes),
        "due_ms": outcome.asked_due_ms,
        "rank_ms": max(outcome.due_ms, asked.append_ms),
        "target_partition": outcome.partition,
        "redrive": outcome.redrive,
        "attempt": outcome.attempt,
        "continues": None if outcome.continues is None else outcome.continues[1],
        "origin": offset_of(outcome.origin) if outcome.origin else asked.offset,
        "payload_crc": payload_crc(outcome),
    }


def payload_crc(outcome: Request) -> int:
    partition = None if outcome.partition is None else b"%d" % outcome.partition
    parts: list[bytes | None] = [(outcome.topic or "").encode(), outcome.key, outcome.value]
    for name, value in outcome.headers:
        parts += [name.encode(), value]
    return zlib.crc32(
        b"".join(
            pack(">i", -1) if part is None else pack(">i", len(part)) + part
            for part in (*parts, partition)
        )
    )


def test_the_audit_reads_every_request_as_the_nodes_do(spark: SparkSession) -> None:
    made = corpus()
    rows = [
        row_of(
            "buffer",
            *("delayd-buffer", each.partition, each.offset, each.append_ms),
            *(each.key, each.value, each.headers),
            log_ms=each.append_ms,
            limits=LIMITS,
        )
        for each in made
    ]
    table = requests_of(spark.createDataFrame(rows, RECORDS, verifySchema=False), SETTINGS)
    assert table.schema.fieldNames() == REQUESTS.fieldNames()
    found = {row["offset"]: row.asDict() for row in table.collect()}
    assert len(found) == len(made)
    met: Counter[str] = Counter()
    for each in made:
        outcome = parse(each, LIMITS)
        wanted = expected(each, outcome)
        got = {name: found[each.offset][name] for name in wanted}
        assert got == wanted, each
        met[wanted["reason"] or wanted["op"]] += 1
    of_messages = {Reason.CONFLICT, Reason.DEAD, Reason.EXPIRED, Reason.NO_OCCURRENCE}
    others = (*of_messages, Reason.UNMOVABLE, Reason.UNREADABLE_BATCH, Reason.NOT_SUPPORTED)
    others += (Reason.OVER_QUOTA,)  # of no record alone
    met_elsewhere = {reason.slug for reason in others}
    reasons = {reason.slug for reason in Reason} - met_elsewhere
    assert reasons | {op.name.lower() for op in Op if op is not Op.SETTLE} <= met.keys(), met


def test_each_record_is_read_by_the_rules_of_its_place(spark: SparkSession) -> None:
    """docs/design/frontier.md, Rules switch: as nodes read it.

    Rules: rules-by-place
    """
    limits = replace(LIMITS, rules=Rules(3).with_barriers([Barrier(2, 5, 4), Barrier(1, 7, 4)]))
    settings = replace(SETTINGS, rules_version=3)
    topic = ("delayd-topic", b"orders")
    seconds: Headers = [topic, ("delayd-due", b"%d" % (APPEND_MS // 1000))]
    traced: Headers = [topic, ("delayd-delay", b"9s"), ("delayd-id", b"k"), ("traceparent", b"1")]
    made = [
        Record(partition, offset, -1, APPEND_MS, b"k", b"v", headers)
        for headers in (seconds, traced)
        for partition in range(4)
        for offset in (4, 6, 8)
    ]
    for partition, offset in ((2, 5), (1, 7)):
        made.append(_barrier(partition, offset, limits))
    rows = [
        row_of(
            *("buffer", "delayd-buffer", *each[:2], each.append_ms, each.key, each.value),
            each.headers,
            log_ms=APPEND_MS,
            limits=limits,
        )
        for each in made
    ]
    records = spark.createDataFrame(rows, RECORDS, verifySchema=False)
    found = [
        (row["op"], row["reason"]) for row in requests_of(records, settings, limits.rules).collect()
    ]
    wanted = [expected(each, parse(each, limits)) for each in made]
    assert found == [(each["op"], each["reason"]) for each in wanted]
    assert Counter(op for op, _ in found) == {"switch": 2, "reject": 3 + 9, "schedule": 9 + 3}
    barriers = barriers_of(requests_of(records, settings, limits.rules))
    assert set(barriers) == set(limits.rules.barriers)


def test_wishes_are_read_by_the_rules_of_their_place(spark: SparkSession) -> None:
    """docs/design/wishes.md: before them their headers are refused, each as it was.

    Rules: wishes-by-rules
    """
    limits = replace(LIMITS, rules=Rules(4).with_barriers([Barrier(2, 5, 5)]))
    settings = replace(SETTINGS, rules_version=4)
    asked: Headers = [("delayd-topic", b"orders"), ("delayd-delay", b"10s")]
    told, late = ("delayd-receipt", b"yes"), ("delayd-late", b"1h")
    made = [
        Record(2, offset, -1, APPEND_MS, None, b"v", [*some])
        for offset in (4, 6)
        for some in (
            *([*asked, told], [*asked, late], [told, late, *asked], [late, told, *asked]),
            *([told, *asked[1:]], [*asked, told, told], [*asked, ("delayd-late", b"0s"), told]),
        )
    ]
    rows = [
        row_of(
            *("buffer", "delayd-buffer", 2, each.offset, APPEND_MS, None, each.value),
            each.headers,
            log_ms=APPEND_MS,
            limits=limits,
        )
        for each in made
    ]
    records = spark.createDataFrame(rows, RECORDS, verifySchema=False)
    for each, row in zip(made, requests_of(records, settings, limits.rules).collect(), strict=True):
        outcome = parse(each, limits)
        wanted = expected(each, outcome)
        if isinstance(outcome, Request) and outcome.wishes is not None:
            wanted |= {"is_told": outcome.is_told, "late_ms": outcome.wishes.late_ms}
        assert {name: row[name] for name in wanted} == wanted, each
    outcomes = [parse(each, limits) for each in made]
    reasons = [each.reason.slug for each in outcomes if isinstance(each, Reject)]
    assert Counter(reasons) == {
        "unknown-header": 4,
        "not-supported": 3,
        "missing-topic": 1,
        "repeated-header": 1,
        "bad-late": 1,
    }


def test_groups_are_read_by_the_rules_of_their_place(spark: SparkSession) -> None:
    """Rules: group-by-rules, group-needs-id"""
    place = partition_of(b"k", 4)
    limits = replace(LIMITS, rules=Rules(6).with_barriers([Barrier(place, 5, 7)]))
    settings = replace(SETTINGS, rules_version=6)
    asked: Headers = [("delayd-topic", b"orders"), ("delayd-delay", b"10s")]
    id, group = ("delayd-id", b"k"), ("delayd-group", b"g")
    variants: list[Headers] = [
        *([*asked, id, group], [group, id, *asked], [*asked, group], [id, group, asked[0]]),
        *([*asked, id, group, group], [*asked, id, ("delayd-group", b"")]),
        [*asked, id, ("delayd-group", b"g" * 256)],
        [*asked, id, ("delayd-group", b"g" * 257)],
        *[[id, _header("op", op), group] for op in (b"cancel", b"fire", b"replace")],
    ]
    made = [
        Record(place, offset, -1, APPEND_MS, b"k", b"v", headers)
        for offset in (4, 6)
        for headers in variants
    ]
    rows = [
        row_of(
            *("buffer", "delayd-buffer", place, each.offset, APPEND_MS, each.key, each.value),
            each.headers,
            log_ms=APPEND_MS,
            limits=limits,
        )
        for each in made
    ]
    records = spark.createDataFrame(rows, RECORDS, verifySchema=False)
    reasons = Counter[str]()
    for each, row in zip(made, requests_of(records, settings, limits.rules).collect(), strict=True):
        outcome = parse(each, limits)
        wanted = expected(each, outcome)
        if isinstance(outcome, Request) and outcome.wishes is not None:
            wanted |= {"group": outcome.wishes.group}
        elif isinstance(outcome, Reject):
            reasons[outcome.reason.slug] += 1
        assert {name: row[name] for name in wanted} == wanted, each
    assert reasons == {
        "unknown-header": 11,
        "missing-id": 1,
        "missing-due": 1,
        "repeated-header": 1,
        "empty-header": 1,
        "bad-group": 1,
        "unexpected-header": 2,
        "missing-topic": 1,
    }


def _header(name: str, content: bytes) -> tuple[str, bytes | None]:
    return f"delayd-{name}", content


def _barrier(partition: int, offset: int, limits: RequestLimits) -> Record:
    made = barrier(partition, Switch(4, "0.2.0"), limits)
    return Record(partition, offset, -1, APPEND_MS, made.key, made.value, made.headers)


@pytest.mark.parametrize(("version", "kinds"), [(3, 5), (4, 3)])
def test_tracing_headers_do_not_tell_requests_apart_since_version_4(
    spark: SparkSession, version: int, kinds: int
) -> None:
    """docs/reference/requests.md, Ids: by the hash that takes the place of the digest."""
    users: list[Headers] = [
        [],
        [("traceparent", b"1")],
        [("X-B3-TraceId", b"2"), ("x-own-9", None)],
    ]
    users += [[("traceparents", b"1")], [("a", b"1")]]
    asked: Headers = [
        ("delayd-topic", b"orders"),
        ("delayd-delay", b"10s"),
        ("delayd-id", b"k"),
    ]
    rows = [
        row_of(
            "buffer",
            "delayd-buffer",
            partition_of(b"k", 4),
            offset,
            APPEND_MS,
            b"k",
            b"v",
            [*asked, *user],
            log_ms=APPEND_MS,
        )
        for offset, user in enumerate(users)
    ]
    settings = replace(SETTINGS, rules_version=version, tracing_headers=("x-own-*",))
    table = requests_of(spark.createDataFrame(rows, RECORDS, verifySchema=False), settings)
    hashes = [row["sent_hash"] for row in table.collect()]
    assert None not in hashes and len({*hashes}) == kinds
