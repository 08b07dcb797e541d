"""The requests in the buffer's records: the rules of requests, written a second time.

What is looked at, in this order; the first problem found is the reason of the reject:
1. the size of the record,
2. of a record with headers of the master's own: its proof, and nothing else without it,
3. delayd's headers as such (column `flaw` of the records),
4. operation, headers that do not go with it, id, target topic, due time, distance of the due time,
   target partition, redrive.

It shares nothing with `delayd/request` but the cluster's settings. Odd text never raises.
Source: docs/reference/requests.md.
"""

import re
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.judging.columns import (
    PLACE,
    as_table,
    is_ruled_at,
    is_steady_at,
    is_true,
    source_text,
)
from delayd.audit.judging.contents import (
    bytes_hash,
    headers_hash,
    headers_set_hash,
    payload_crc,
    record_hash,
    together,
)
from delayd.audit.judging.debounces import max_wait_ms
from delayd.audit.judging.header_reasons import (
    WINDOW_MS_MAX,
    asks_local,
    by_ms,
    debounce_reason,
    local_reason,
    new_due_reason,
    series_reason,
    value_reason,
    wish_reason,
)
from delayd.audit.judging.held import MOVES
from delayd.audit.judging.holds import order_reason
from delayd.audit.judging.quotas import quota_reason
from delayd.audit.judging.special_times import WRITTEN_LOCAL, of_local_time, of_series
from delayd.audit.judging.texts import (
    clock_ms_of,
    delay_ms_of,
    due_ms_of,
    is_delay,
    is_source,
    level_ms_of,
    offset_of_source,
    partition_of_source,
    whole_number,
)
from delayd.audit.tables import INTERNAL_HEADERS, REQUESTS
from replication.rules import Barrier, Rules
from replication.settings import RESCHEDULE_RULES, SERIES_RULES, WISHES_RULES, Settings

_INTERNAL_MARGIN_BYTES: Final = 8192
_REDRIVE_MARGIN_BYTES: Final = 1024
_ID_BYTES_MAX: Final = 256
_PARTITION_MAX: Final = 2**31 - 1
_PARTITION_DIGITS_MAX: Final = 10
_AHEAD_MS: Final = 14 * 60 * 60 * 1000
"""No clock is further ahead of UTC."""

_TRACING: Final = (
    *("traceparent", "tracestate", "baggage", "b3", "x-b3-*", "sentry-trace", "uber-trace-id"),
    *("x-datadog-*", "elastic-apm-traceparent"),
)
_NOT_OF_A_CANCEL: Final = (
    *("topic", "due", "delay", "level", "key", "partition", "receipt", "late"),
    *("window", "group", "cron", "zone", "until", "catchup", "by", "max_wait"),
)
_ORDERED: Final = ("control.hold", "control.quota")
_OF_MOVES: Final = {"moved_by": "moved_by", "own_ms": "moved"}
_NOT_OF_A_DEBOUNCE: Final = ("due", "level", "window", "cron", "zone", "until", "catchup", "by")
_NEW_OPS: Final = (*MOVES, "debounce")
_MARKS: Final = ("cancel", "replace", *_NEW_OPS)


def requests_of(records: DataFrame, settings: Settings, rules: Rules | None = None) -> DataFrame:
    """Return what each record of the buffer asks for, or why it is refused (tables.REQUESTS).

    `rules`: of a cluster that was switched, which version rules which record. Settlements ask for
    nothing: what they say of cancels is judged by the receipts, which say it too.
    """
    of_cluster = Rules(settings.rules_version) if rules is None else rules
    control = F.col("control")
    is_steady = is_steady_at("offset", of_cluster, settings.partitions)
    knows_wishes = is_ruled_at("offset", of_cluster, settings.partitions, WISHES_RULES)
    knows_series = is_ruled_at("offset", of_cluster, settings.partitions, SERIES_RULES)
    knows_moves = is_ruled_at("offset", of_cluster, settings.partitions, RESCHEDULE_RULES)
    marked = records.select(
        *(*PLACE, "log_ms", "key", "value", "headers", "record_headers", "control"),
        *("key_murmur2", "is_proved", "size_bytes"),
        knows_moves.alias("knows_moves"),
        F.when(knows_moves, F.col("flaw"))
        .when(knows_series, F.col("flaw_of_6"))
        .when(knows_wishes, F.col("flaw_of_5"))
        .otherwise(F.col("older_flaw"))
        .alias("flaw"),
        knows_wishes.alias("knows_wishes"),
        F.col("timestamp_ms").alias("append_ms"),
        _is_internal().alias("is_internal"),
    )
    read = marked.select(
        "*",
        _op_of(control["op"], control["redrive"]).alias("wanted_op"),
        _asked_due_ms(is_steady).alias("asked_due_ms"),
        F.coalesce(control["key"].cast("binary"), F.col("key")).alias("sent_key"),
        whole_number(control["partition"], _PARTITION_DIGITS_MAX).alias("asked_partition"),
        bytes_hash(F.col("value")).alias("value_hash"),
        headers_hash(F.col("headers")).alias("headers_hash"),
        *(_only(name).alias(f"only_{name}") for name in ("id", "op", "redrive", "receipt")),
    )
    planned = read.withColumn("planned_ms", _planned_ms())
    judged = planned.withColumn("reason", _reason(settings))
    is_switch = F.col("is_internal") & control["rules"].isNotNull()
    is_order = F.col("is_internal") & control["hold"].isNotNull()
    is_quota = F.col("is_internal") & control["quota"].isNotNull()
    said = F.when(control["quota"].startswith("limit/"), "quota").otherwise("gate")
    op = (
        F.when(F.col("reason").isNotNull(), "reject")
        .when(is_switch, "switch")
        .when(is_order, "hold")
        .when(is_quota, said)
        .when(F.col("is_internal"), "continue")
    )
    named = judged.withColumn("op", op.otherwise(F.col("wanted_op")))
    asked = named.where(F.col("reason").isNotNull() | control["settles"].isNull())
    return as_table(asked, REQUESTS, **_columns(settings, is_steady))


def barriers_of(requests: DataFrame) -> tuple[Barrier, ...]:
    """Return the barriers among the requests, those that switch nothing too."""
    rows = requests.where("op = 'switch'").select("partition", "offset", "rules").collect()
    return tuple(Barrier(*row) for row in rows)


def _columns(settings: Settings, is_steady: Column) -> dict[str, Column]:
    control, op = F.col("control"), F.col("op")
    is_reject, is_internal = op == "reject", op == "continue"
    is_message = op.isin("schedule", "replace", "redrive", "continue", "debounce")
    key, topic, partition = F.col("sent_key"), control["topic"], F.col("asked_partition")
    next_ms = F.when(is_internal, whole_number(control["next_due"]))
    stands_ms = F.greatest(F.coalesce(next_ms, "planned_ms"), F.col("append_ms"))
    due_name = F.when(control["due"].isNotNull(), "due").when(control["delay"].isNotNull(), "delay")
    due_text = F.coalesce(control["due"], control["delay"], control["level"], control["cron"])
    headers = F.when(is_steady, _counted_headers_hash(settings)).otherwise(F.col("headers_hash"))
    is_series, max_wait = control["cron"].isNotNull(), control["max_wait"]
    sent = together(
        *(topic, bytes_hash(key), "value_hash", headers, partition, due_name, due_text),
        *(control[name] for name in ("late", "window", "group", "zone", "until", "catchup")),
        *(is_series, max_wait),
    )
    of_message = {
        "topic": topic,
        "lane": F.pmod(F.crc32(topic.cast("binary")), F.lit(settings.lanes)),
        "due_ms": F.col("asked_due_ms"),
        "rank_ms": stands_ms,
        "target_partition": partition,
        "key_hash": bytes_hash(key),
        "key_murmur2": F.when(control["key"].isNull(), F.col("key_murmur2")),
        "value_hash": F.col("value_hash"),
        "headers_hash": F.col("headers_hash"),
        "headers_set_hash": headers_set_hash(F.col("headers")),
        "sent_hash": F.when(control["id"].isNotNull() & ~is_internal, sent),
        "payload_crc": payload_crc(topic, key, F.col("value"), F.col("headers"), partition),
    }
    attempt = F.when(is_internal, whole_number(control["attempt"]))
    origin = F.when(is_internal, offset_of_source(control["origin"]))
    readable_op = _op_of(F.col("only_op"), F.col("only_redrive"))
    return {
        "op": op,
        "asked_op": F.when(is_reject, readable_op).otherwise(op),
        "id": F.when(is_reject, _told_id()).otherwise(control["id"]),
        "redrive": F.when(op == "redrive", control["redrive"]),
        **{name: F.when(is_message, column) for name, column in of_message.items()},
        "record_hash": record_hash(F.col("key"), F.col("value"), F.col("record_headers")),
        "continues": F.when(is_internal, whole_number(control["continues"])),
        "origin": F.coalesce(origin, F.col("offset")),
        "attempt": F.coalesce(attempt, F.lit(0)),
        "is_steady": is_steady,
        "has_own_time": F.when(op == "replace", due_name.eqNullSafe(F.lit("due")) & ~asks_local()),
        "rules": F.when(op == "switch", _switch_version()),
        "is_told": F.when(is_message, control["receipt"].isNotNull()),
        **{f"{n}_ms": F.when(is_message, delay_ms_of(control[n])) for n in ("late", "window")},
        "planned_ms": F.when(is_message, F.col("planned_ms")),
        "group": F.when(is_message, control["group"]),
        **{name: F.when(is_message & is_series, each) for name, each in of_series().items()},
        **of_local_time(is_message),
        "due_ms": F.when(
            is_message | (op.isin(*MOVES) & control["by"].isNull()), F.col("asked_due_ms")
        ),
        "by_ms": F.when(op == "reschedule", by_ms()),
        **{name: F.when(is_internal, whole_number(control[of])) for name, of in _OF_MOVES.items()},
        "ordered": F.when(op.isin("hold", "quota", "gate"), F.coalesce(*_ORDERED)),
        "max_wait_ms": F.when(op == "debounce", max_wait_ms()),
    }


def _switch_version() -> Column:
    """Return the version that a barrier names; null if it names none."""
    return F.regexp_extract(F.col("control.rules"), r"\A([0-9]{1,9})/", 1).try_cast("int")


def _counted_headers_hash(settings: Settings) -> Column:
    """Return the hash of the headers by which two requests are compared: since rules 4 without
    those that tracing agents write."""
    names = [
        re.escape(name).replace(r"\*", ".*") for name in (*_TRACING, *settings.tracing_headers)
    ]
    pattern = rf"(?s)\A(?:{'|'.join(names)})\z"
    others = F.filter("headers", lambda header: ~F.lower(header["name"]).rlike(pattern))
    return headers_hash(others)


def _has(*names: str) -> Column:
    """Is there a header of one of these names, readable or not?"""
    full = [f"delayd-{name}" for name in names]
    return F.exists(F.col("record_headers"), lambda header: header["name"].isin(full))


def _is_internal() -> Column:
    readable = F.coalesce(
        *(F.col("control")[_field(name)] for name in INTERNAL_HEADERS)
    ).isNotNull()
    # A header that is there and cannot be read is a flaw.
    return readable | (F.col("flaw").isNotNull() & _has(*INTERNAL_HEADERS))


def _op_of(text: Column, redrive: Column) -> Column:
    schedule = F.when(redrive.isNull(), "schedule").otherwise("redrive")
    is_known = text.isin("cancel", "replace") | (text.isin(*_NEW_OPS) & F.col("knows_moves"))
    return F.when(is_known, text).otherwise(schedule)


def _told_id() -> Column:
    """Whom a receipt tells of a reject."""
    id, redrive = F.col("only_id"), F.col("only_redrive")
    is_told = is_true(F.col("knows_wishes") & (F.col("only_receipt") == "yes"))
    return (
        F.when(F.octet_length(id) <= _ID_BYTES_MAX, id)
        .when(is_source(redrive), redrive)
        .when(is_told, source_text())
    )


def _only(name: str) -> Column:
    """Return the text of a request header that is there once, not empty, in UTF-8; also of a record
    that claims to be the master's own, where `control` has what belongs there only."""
    there = F.filter(F.col("record_headers"), lambda header: header["name"] == f"delayd-{name}")
    content = F.when(F.size(there) == 1, F.get(there, F.lit(0))["value"].cast("string"))
    text = F.when((F.octet_length(content) > 0) & F.is_valid_utf8(content), content)
    return F.when(F.col("is_internal"), text).otherwise(F.col("control")[_field(name)])


def _asked_due_ms(is_steady: Column) -> Column:
    """Return the due time as asked; null too if it is beyond 63 bits."""
    control, append_ms = F.col("control"), F.col("append_ms")
    due, delay, level = control["due"], control["delay"], control["level"]
    return (
        F.when(asks_local(), append_ms)
        .when(due.isNotNull(), due_ms_of(due, refuses_seconds=is_steady))
        .when(delay.isNotNull(), F.try_add(append_ms, delay_ms_of(delay)))
        .when(level.isNotNull(), F.try_add(append_ms, level_ms_of(level)))
        # Of a series, until a step has found its first occurrence.
        .when(control["cron"].isNotNull() | is_true(control["op"] == "fire"), append_ms)
    )


def _reason(settings: Settings) -> Column:
    """Return why a record is refused; null if it may be done."""
    size, most = F.col("size_bytes"), settings.record_bytes_max
    margin = (
        F.when(F.col("is_internal"), _INTERNAL_MARGIN_BYTES)
        .when(_has("redrive"), _REDRIVE_MARGIN_BYTES)
        .otherwise(0)
    )
    # Reasons nest, so that what comes later is not even computed for what is refused before.
    return (
        F.when((size > most) & (size > margin + most), "too-large")
        .when(F.col("is_internal"), F.nullif(_internal_reason(settings), F.lit("")))
        .when(F.col("flaw").isNotNull(), F.col("flaw"))
        .otherwise(F.coalesce(_op_reason(), _id_reason(settings), _message_reason(settings)))
    )


def _internal_reason(settings: Settings) -> Column:
    control = F.col("control")
    numbers = ("due", "next_due", "attempt", "continues_due", "continues")
    digest = control["digest"]
    is_as_written = is_source(control["origin"]) & (digest.isNull() == control["id"].isNull())
    for name in numbers:
        is_as_written &= whole_number(control[name]).isNotNull()
    is_digest = digest.isNull() | digest.rlike(r"\A[0-9a-fA-F]{32}\z")
    is_proved = F.coalesce("is_proved", control["proof"].isNotNull())
    is_switch = F.when(control["rules"].isNotNull(), F.col("flaw").isNull())
    settles = control["settles"].isNotNull()
    return F.coalesce(
        F.when(~is_proved, "bad-proof"),
        F.when(settles, ""),
        F.when(is_switch, F.when(_switch_version().isNull(), "bad-proof").otherwise("")),
        order_reason(settings),
        quota_reason(settings),
        F.col("flaw"),
        _id_reason(settings),
        _topic_reason(settings),
        _partition_reason(),
        F.when(~is_true(is_as_written & is_digest & _is_series_as_written()), "bad-proof"),
    )


def _is_series_as_written() -> Column:
    """Return whether a continuation says of a series what a master does."""
    control = F.col("control")
    is_whole = whole_number(control["occurrence"]).isNotNull() & control["series"].isin(
        "on", "last", "over"
    )
    is_local = control["local"].rlike(WRITTEN_LOCAL) & control["resolved"].isin(
        "no", "expected", "final", "over"
    )
    is_series = control["cron"].isNull() | is_true(is_whole)
    return is_series & (control["local"].isNull() | is_true(is_local))


def _op_reason() -> Column:
    control = F.col("control")
    op = control["op"]
    others = F.coalesce(*(control[name] for name in _NOT_OF_A_CANCEL)).isNotNull()
    takes = ("due", "delay", "by")
    not_a_time = [control[name] for name in _NOT_OF_A_CANCEL if name not in takes]
    is_mark = op.isin("cancel", "replace") | (op.isin(*_NEW_OPS) & F.col("knows_moves"))
    not_debounced = F.coalesce(*(control[name] for name in _NOT_OF_A_DEBOUNCE)).isNotNull()
    is_too_much = is_mark & (
        control["redrive"].isNotNull()
        | (op.isin("cancel", "fire") & others)
        | ((op == "reschedule") & F.coalesce(*not_a_time).isNotNull())
        | ((op == "debounce") & not_debounced)
    )
    return F.when(~is_mark & (op != "schedule"), "bad-op").when(is_too_much, "unexpected-header")


def _id_reason(settings: Settings) -> Column:
    id, op = F.col("control")["id"], F.col("control")["op"]
    is_key = id.cast("binary").eqNullSafe(F.col("key"))
    partition = F.pmod(F.col("key_murmur2"), F.lit(settings.partitions))
    return (
        F.when(id.isNull(), F.when(op.isin(*_MARKS), "missing-id"))
        .when((F.octet_length(id) > _ID_BYTES_MAX) | ~is_key, "bad-id")
        .when(partition != F.col("partition"), "wrong-partition")
    )


def _message_reason(settings: Settings) -> Column:
    op = F.col("control.op")
    is_cancel, is_move = is_true(op == "cancel"), is_true(op.isin(*MOVES))
    is_debounce = is_true(op == "debounce")
    others = F.coalesce(F.col("control.by"), F.when(~is_debounce, F.col("control.max_wait")))
    times = F.coalesce(series_reason(), local_reason(), _due_reason())
    reasons = (
        F.when(others.isNotNull(), "unexpected-header"),
        *(_topic_reason(settings), F.when(is_debounce, debounce_reason()).otherwise(times)),
        *(wish_reason(), _far_reason(settings)),
        *(_partition_reason(), _redrive_reason()),
    )
    of_move = F.coalesce(value_reason(), new_due_reason(), _far_reason(settings))
    return F.when(is_move, of_move).when(~is_cancel, F.coalesce(*reasons))


def _topic_reason(settings: Settings) -> Column:
    topic = F.col("control")["topic"]
    is_legal = topic.rlike(r"\A[a-zA-Z0-9._-]{1,249}\z") & ~topic.isin(".", "..")
    is_forbidden = topic.startswith(settings.prefix) | topic.startswith("__")
    return (
        F.when(topic.isNull(), "missing-topic")
        .when(~is_legal, "bad-topic")
        .when(is_forbidden, "forbidden-topic")
    )


def _far_reason(settings: Settings) -> Column:
    # A local time is taken as if the clock were that of the zone that is furthest ahead.
    earliest_ms = clock_ms_of(F.col("control.due")) - _AHEAD_MS
    due_ms = F.when(asks_local(), earliest_ms).otherwise(F.col("asked_due_ms"))
    farthest_ms = F.try_add(due_ms, F.coalesce(_window_ms(), F.lit(0)))
    distance_ms = F.try_subtract(farthest_ms, F.col("append_ms"))
    # A delay that is beyond 63 bits is too far as well. Of `delayd-by` ids.py says it.
    is_far = farthest_ms.isNull() | (distance_ms > settings.max_delay_ms)
    return F.when(F.col("control.by").isNull() & is_far, "too-far")


def _due_reason() -> Column:
    control = F.col("control")
    due, delay, level = control["due"], control["delay"], control["level"]
    asked_ms = F.col("asked_due_ms")
    dues = (due, delay, level, control["cron"])
    given = sum((each.isNotNull().cast("int") for each in dues), F.lit(0))
    return (
        F.when(given == 0, "missing-due")
        .when(given > 1, "several-dues")
        .when(due.isNotNull() & asked_ms.isNull(), "bad-due")
        .when(delay.isNotNull() & ~is_delay(delay), "bad-delay")
        .when(level.isNotNull() & asked_ms.isNull(), "bad-level")
    )


def _partition_reason() -> Column:
    is_one = is_true(F.col("asked_partition") <= _PARTITION_MAX)
    return F.when(F.col("control.partition").isNotNull() & ~is_one, "bad-partition")


def _window_ms() -> Column:
    """Return the window; null without one, or one that is refused."""
    asked_ms = delay_ms_of(F.col("control")["window"])
    return F.when(is_true(asked_ms <= WINDOW_MS_MAX), asked_ms)


def _planned_ms() -> Column:
    """Return the due time, spread over the window by the first 32 bits of the SHA-256 of the id,
    else of the origin."""
    control = F.col("control")
    own = F.when(F.col("is_internal"), control["origin"])
    name = F.coalesce(control["id"], own, source_text())
    number = F.conv(F.substring(F.sha2(name.cast("binary"), 256), 1, 8), 16, 10).cast("bigint")
    spread_ms = F.shiftright(_window_ms() * number, 32)
    # A local time is planned once it is resolved.
    spread_ms = F.when(~asks_local(), spread_ms)
    return F.try_add(F.col("asked_due_ms"), F.coalesce(spread_ms, F.lit(0)))


def _redrive_reason() -> Column:
    redrive = F.col("control")["redrive"]
    is_here = is_true(partition_of_source(redrive) == F.col("partition"))
    return F.when(redrive.isNotNull() & ~is_here, "bad-redrive")


def _field(name: str) -> str:
    return name.replace("-", "_")
