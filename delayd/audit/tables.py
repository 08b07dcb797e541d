"""The columns of each table of an audit: names, types and units.

A *source* is the place of a request in the buffer, as two columns: `partition` and `offset` of a
request's own, `source_partition` and `source_offset` where something points to one. Times are Unix
ms. Hashes are xxhash64; `payload_crc` is defined in docs/design/audit.md, "Payload CRC".
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

CONTROL_HEADERS: Final = (
    *("topic", "due", "delay", "level", "key", "partition", "op", "id", "redrive"),
    *("receipt", "window", "planned", "group"),
    *("cron", "zone", "until", "catchup", "series", "follows", "late"),
    *("continues", "continues-due", "next-due", "digest", "turn", "settles", "proof", "rules"),
    *("hold", "quota"),
    *("fired", "source", "origin", "attempt", "occurrence"),
    *("by", "moved", "moved-by", "local", "resolved", "max-wait"),
    *("reason", "detail", "truncated"),
)
"""Headers of delayd's own, without their prefix; `-` is `_` in columns."""

INTERNAL_HEADERS: Final = ("continues", "continues-due", "next-due", "digest", "settles", "proof")
"""One of them makes a record of the buffer the master's own."""


def _table(**columns: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])  # type: ignore[arg-type]


_TEXT, _INT, _LONG, _BOOL, _BYTES = (
    *(StringType(), IntegerType(), LongType(), BooleanType(), BinaryType()),
)

HEADERS: Final = ArrayType(_table(name=_TEXT, value=_BYTES))

CONTROL: Final = _table(**{name.replace("-", "_"): _TEXT for name in CONTROL_HEADERS})

RECORDS: Final = _table(
    topic=_TEXT,
    partition=_INT,
    offset=_LONG,
    timestamp_ms=_LONG,
    is_append_time=_BOOL,
    log_ms=_LONG,  # of the buffer: the time as of which it is judged; else null
    key=_BYTES,
    value=_BYTES,
    headers=HEADERS,  # the user's: in order, with repeats
    record_headers=HEADERS,  # of buffer and dead letters: all that the record itself had, in order
    control=CONTROL,  # delayd's own that are there once, not empty, in UTF-8: see reading/kafka.py
    flaw=_TEXT,  # what is wrong with delayd's headers as such, as a slug; see reading/kafka.py
    older_flaw=_TEXT,  # of the buffer: the same by rules older than 5
    flaw_of_5=_TEXT,  # of the buffer: the same by rules 5
    flaw_of_6=_TEXT,  # of the buffer: the same by rules 6
    size_bytes=_LONG,  # decompressed, as docs/reference/requests.md counts
    key_murmur2=_INT,  # murmur2(key) & 0x7fffffff; null without a key
    is_proved=_BOOL,  # of the master's own: did it write this? null of others, or without a key
)
"""Records of any topic, as the data source hands them out."""

REQUESTS: Final = _table(
    partition=_INT,
    offset=_LONG,
    append_ms=_LONG,
    log_ms=_LONG,
    # schedule cancel replace debounce reschedule fire redrive continue reject; switch hold
    # quota gate
    op=_TEXT,
    asked_op=_TEXT,  # of a reject: what its receipt calls it; else op
    reason=_TEXT,  # of a reject
    id=_TEXT,  # of a reject: whom a receipt tells; of a redrive without id: null
    redrive=_TEXT,  # source that is redriven, "p/o"
    topic=_TEXT,  # the target
    lane=_INT,
    due_ms=_LONG,  # as asked, absolute
    rank_ms=_LONG,  # max(due asked or next due, append_ms): where it stands
    target_partition=_INT,  # as asked; null: by the key
    key_hash=_LONG,  # of the key to deliver; null without one
    key_murmur2=_INT,  # of the key to deliver; null too if that is not the record's own
    value_hash=_LONG,  # null without a value
    headers_hash=_LONG,  # the user's, in order
    headers_set_hash=_LONG,  # the same in any order
    record_hash=_LONG,  # key, value and all headers of the record itself: what a dead letter keeps
    sent_hash=_LONG,  # what makes two requests under an id the same
    payload_crc=_LONG,
    continues=_LONG,  # offset of what a continuation continues
    origin=_LONG,  # offset of the user's own request, in the same partition
    attempt=_INT,
    is_steady=_BOOL,  # is it ruled by version 4 or later?
    has_own_time=_BOOL,  # of a replace: it names its due time, and not a delay
    rules=_INT,  # of a barrier: the version of the rules that it switches to
    is_told=_BOOL,  # does it ask for all its receipts itself?
    late_ms=_LONG,  # how much later than planned it is still worth delivering; null: always
    window_ms=_LONG,  # how far its due time is spread; null: not at all
    planned_ms=_LONG,  # due_ms, or where in its window it is delivered
    occurrence=_INT,  # of a series: its number, 0 as its user sent it; null: it is none
    series=_TEXT,  # of a series: what makes it one, as one text
    goes_on=_BOOL,  # of a series: must another record of it follow?
    is_over=_BOOL,  # of a series: it has no occurrence (more); of a local time: it has no zone
    follows=_BOOL,  # of a series: what it continues has come out
    cron=_TEXT,
    zone=_TEXT,
    until_ms=_LONG,
    catches_up=_BOOL,
    by_ms=_LONG,  # of a reschedule: by how much later; its due_ms is null then
    moved_by=_LONG,  # of a continuation: offset of the reschedule or fire that it carries out
    own_ms=_LONG,  # of an occurrence that was fired: when it is due by the expression
    clock=_TEXT,  # of a local time: what the clock of `zone` is to show
    resolved=_TEXT,  # of a local time: no, expected, final, over
    is_open=_BOOL,  # of a local time: must another record of it follow?
    group=_TEXT,  # the name that it shares with others; null: none
    ordered=_TEXT,  # of an order about a target: what it says
    max_wait_ms=_LONG,  # of a debounce: how long after the first of its run at the latest
)
"""One row for each record of the buffer. Of a debounce the due times are as of itself."""

LOGGED: Final = StructType(
    [
        *REQUESTS.fields,
        *_table(
            stored=_BOOL,  # did the rules put it into the wheels? false for rejects and cancels
            answer=_TEXT,  # of what is not stored: duplicate or conflict, by the rules
            is_refused=_BOOL,  # a continuation of what had been killed
            killed_by=_LONG,  # offset of the cancel marker of its partition that killed it
            killed_ms=_LONG,  # append time of that cancel marker
            killed_op=_TEXT,  # of the last one that did: cancel replace debounce reschedule fire
            killed=ArrayType(_LONG),  # of a cancel marker: its killed set, offsets of all live
            killed_before=ArrayType(_LONG),  # of a cancel marker: the set before
            repeats=_LONG,  # of a replace that was sent before: offset of that; `killed` is that's
            repeats_ms=_LONG,  # the time as of which that one is judged
            continued_by=_LONG,  # offset of the record that continues it, refused or not
            is_followed=_BOOL,  # that record is the next occurrence of its series
            is_held=_BOOL,  # a continuation of what a reschedule had killed, which that moves
            new_dues_ms=ArrayType(_LONG),  # of a reschedule: for each of `killed`, when it is due
            is_taken=_BOOL,  # of a reschedule: a later marker took over what it had killed
            is_quiet=_BOOL,  # of a debounce: it kills nothing but debounces
        ).fields,
    ]
)
"""Requests without barriers and orders, and what the ingest rules say of each from the log alone.
Of a debounce the due times are as of its run."""

MESSAGES: Final = _table(
    partition=_INT,
    offset=_LONG,
    id=_TEXT,
    topic=_TEXT,
    append_ms=_LONG,
    due_ms=_LONG,
    planned_ms=_LONG,  # due_ms, or where in its window it is delivered
    rank_ms=_LONG,  # of the newest record of its family: when it is due now
    fate=_TEXT,  # a field of report.Fates
    killed_ms=_LONG,  # append time of the cancel marker that killed it, in time or not
    delivered_ms=_LONG,  # null unless delivered; see judging/messages.py
    dead_ms=_LONG,  # when its dead letter was written
    lane=_INT,
    is_done=_BOOL,  # of the newest record of its family, at the cut; false of what is refused
    killed_by=_LONG,  # offset of the cancel marker that killed it, whatever came out of it
    is_told=_BOOL,  # does it ask for all its receipts itself?
    fired_ms=_LONG,  # of its first delivery
    deliveries=_LONG,  # how many there are
    letters=_LONG,  # how many dead letters say that it could not be delivered
    newest=_LONG,  # offset of the newest stored record of its family
    is_changed=_BOOL,  # does a record of its family carry something else?
    origin=_LONG,  # offset of the user's own request
    occurrence=_INT,  # of a series; its requests and each of its occurrences are rows
    is_cut=_BOOL,  # of a series: a cancel or replace came before its next occurrence
    is_last=_BOOL,  # of a series: it ends with this
)
"""One row for each request of a user that is no valid cancel, and for each occurrence of a series:
exactly one fate."""

DELIVERIES: Final = _table(
    topic=_TEXT,
    partition=_INT,
    offset=_LONG,
    timestamp_ms=_LONG,
    is_append_time=_BOOL,
    source=_TEXT,  # as written
    source_partition=_INT,  # null if the source is no source
    source_offset=_LONG,
    key_hash=_LONG,
    key_murmur2=_INT,
    value_hash=_LONG,
    headers_hash=_LONG,
    headers_set_hash=_LONG,
    id=_TEXT,
    due_ms=_LONG,
    planned_ms=_LONG,  # of one with a window
    fired_ms=_LONG,
    origin=_TEXT,
    attempt=_INT,
    occurrence=_INT,
    local=_TEXT,  # of a local time: that and its zone
    group=_TEXT,
    flaw=_TEXT,  # headers of delayd's that do not belong there
)
"""One row for each record of a target that has a `delayd-source`."""

RECEIPTS: Final = _table(
    partition=_INT,
    offset=_LONG,
    timestamp_ms=_LONG,
    source=_TEXT,
    source_partition=_INT,
    source_offset=_LONG,
    id=_TEXT,
    verdict=_TEXT,
    op=_TEXT,
    killed=ArrayType(_TEXT),  # sources, "p/o"
    due_ms=_LONG,
    at_ms=_LONG,
    flaw=_TEXT,  # why it is no receipt: no JSON, key or header contradicts the value
)

LETTERS: Final = _table(
    partition=_INT,
    offset=_LONG,
    timestamp_ms=_LONG,
    source=_TEXT,
    source_partition=_INT,
    source_offset=_LONG,
    reason=_TEXT,
    origin=_TEXT,
    attempt=_INT,
    occurrence=_INT,
    key_hash=_LONG,
    value_hash=_LONG,
    headers_hash=_LONG,  # the user's
    record_hash=_LONG,  # without what delayd appended; see judging/evidence.py; null if truncated
    is_truncated=_BOOL,
)

RANK: Final = ArrayType(_LONG)
"""[due_ms, partition, offset]"""

FRONTIERS: Final = _table(
    offset=_LONG,
    append_ms=_LONG,
    shard=_INT,
    term=_LONG,
    step=_LONG,
    owner=_TEXT,
    now_ms=_LONG,
    cursor=RANK,
    lanes=MapType(_TEXT, RANK),
    offsets=ArrayType(_LONG),
    own_writes=ArrayType(_LONG),
    delivered=_LONG,
    late=_LONG,
    killed=_LONG,
    retried=_LONG,
    dead=_LONG,
    answers=_LONG,
    digest=_LONG,
    flaw=_TEXT,  # why it is no frontier record
    holds=MapType(_TEXT, ArrayType(_LONG)),  # by target: [since_ms, until_ms, rate, offset]
    # by target: [max_pending, pending, offset, full_ms, written_ms, rate, taken, over]
    quotas=MapType(_TEXT, ArrayType(_LONG)),
)

PENDING: Final = _table(
    node=_TEXT,
    slot=_LONG,
    due_ms=_LONG,  # of the rank
    partition=_INT,
    offset=_LONG,
    lane=_INT,
    topic=_TEXT,
    append_ms=_LONG,
    id=_TEXT,
    digest=_BYTES,  # 16 bytes, as sent; null without an id
    payload_crc=_LONG,
)
"""What a node holds at the cut: its export with its name."""

TARGET_PARTITIONS: Final = _table(topic=_TEXT, partitions=_INT)
"""How many partitions each target has."""

ORDERS: Final = _table(home=_INT, at=_LONG, about=_TEXT, ends_ms=_LONG, wanted_rate=_LONG)
"""Orders about targets: their place in the buffer, the target, the end of the pause (0 of one to
resume), and the rate, 0 if it stays as it is."""

SAID: Final = _table(
    home=_INT, at=_LONG, kind=_TEXT, about=_TEXT, at_ms=_LONG, counted=_LONG, most=_LONG, pace=_LONG
)
"""Orders about quotas, and gates: their place in the buffer, limit, full, fast or open, the target,
their own time, what the step has counted, the quota, and the rate."""

GATES: Final = _table(
    of_shard=_INT,
    about=_TEXT,
    kind=_TEXT,
    at_ms=_LONG,
    counted=_LONG,
    taken=_LONG,
    is_end=_BOOL,
    places=_INT,
)
"""What one step of a shard says of a target: messages pending, requests taken, whether its quota
has ended, and in how many partitions."""

REFUSALS: Final = _table(full_in=_INT, full_of=_TEXT, full_from=_LONG, full_to=_LONG)
"""Where a target is full: the offsets of the gates between which, of a partition; the last one null
if it is not open again."""

NODE_PROBLEMS: Final = _table(node=_TEXT, problem=_TEXT)
"""Nodes that gave no export that counts."""

FAILOVERS: Final = _table(shard=_INT, term=_LONG, at_ms=_LONG)
"""Changes of master."""

FINDINGS: Final = _table(
    job=_TEXT,
    fault=_TEXT,
    source=_TEXT,  # of the request concerned, "p/o"
    id=_TEXT,
    topic=_TEXT,  # where the finding is: a target, a topic of delayd's
    partition=_INT,
    offset=_LONG,
    node=_TEXT,
    due_ms=_LONG,
    reason=_TEXT,  # one sentence for people
)
"""One row for each thing that is wrong. `job` and `fault` are in `judging/faults.py`."""
