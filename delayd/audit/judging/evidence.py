"""The output of a cluster: records of targets, receipts and dead letters, as narrow tables.

Everything here is a claim, and may be anything: what is no source, number or JSON becomes null or a
flaw. What is not of delayd in a target is left out.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.judging.columns import GIVEN_UP, NO_OCCURRENCE, as_table, is_true
from delayd.audit.judging.contents import (
    bytes_hash,
    headers_hash,
    headers_set_hash,
    record_hash,
    together,
)
from delayd.audit.judging.figures import HOUR_MS
from delayd.audit.judging.texts import offset_of_source, partition_of_source, whole_number
from delayd.audit.tables import CONTROL_HEADERS, DELIVERIES, LETTERS, RECEIPTS
from replication.rank import SLOT_MS

_OF_DELIVERIES: Final = (
    *("id", "group", "due", "planned", "fired", "source", "origin", "attempt", "occurrence"),
    "local",
)

_TOLD: Final = (
    "id string, verdict string, op string, source string, killed array<string>, due_ms bigint,"
    " at_ms bigint, detail string,"
    " forecast_messages string, forecast_span_ms string, forecast_late_ms string"
)


def deliveries_of(records: DataFrame) -> DataFrame:
    """Return records of targets that name a source (tables.DELIVERIES)."""
    control = F.col("control")
    strays = [name.replace("-", "_") for name in CONTROL_HEADERS if name not in _OF_DELIVERIES]
    stray = F.coalesce(*(F.when(control[name].isNotNull(), "unknown-header") for name in strays))
    is_ours = control["source"].isNotNull() | control["fired"].isNotNull()
    return as_table(
        records.where(is_ours),
        DELIVERIES,
        **_source(control["source"]),
        key_hash=bytes_hash(F.col("key")),
        value_hash=bytes_hash(F.col("value")),
        headers_hash=headers_hash(F.col("headers")),
        headers_set_hash=headers_set_hash(F.col("headers")),
        id=control["id"],
        due_ms=whole_number(control["due"]),
        planned_ms=whole_number(control["planned"]),
        fired_ms=whole_number(control["fired"]),
        origin=control["origin"],
        attempt=whole_number(control["attempt"]),
        occurrence=whole_number(control["occurrence"]),
        local=control["local"],
        group=control["group"],
        flaw=F.coalesce(F.col("flaw"), stray),
    )


def receipts_of(records: DataFrame) -> DataFrame:
    """Return what the receipts say (tables.RECEIPTS)."""
    read = records.withColumn("told", F.from_json(F.col("value").cast("string"), _TOLD))
    told = F.col("told")
    is_whole = F.lit(True)
    for name in ("id", "verdict", "op", "source", "killed", "at_ms"):
        is_whole &= told[name].isNotNull()
    is_of_key = told["id"].cast("binary").eqNullSafe(F.col("key"))
    of_forecast = ("forecast_messages", "forecast_span_ms", "forecast_late_ms")
    texts = [told[name] for name in of_forecast]
    messages, span_ms, late_ms = map(whole_number, texts)
    # Advice, by what one node has counted and measured: its form is judged, and no figure.
    is_late = texts[2].isNull() | (late_ms.isNotNull() & (span_ms == SLOT_MS))
    is_forecast = F.coalesce(*texts).isNull() | is_true(
        (told["verdict"] == "scheduled")
        & told["op"].isin("schedule", "redrive")
        & messages.isNotNull()
        & span_ms.isin(SLOT_MS, HOUR_MS)
        & is_late
    )
    is_of_source = told["source"].eqNullSafe(F.col("control")["source"])
    return as_table(
        read,
        RECEIPTS,
        **_source(told["source"]),
        **{name: told[name] for name in ("id", "verdict", "op", "killed", "due_ms", "at_ms")},
        flaw=F.when(~is_whole, "its value is no receipt")
        .when(~is_of_key, "its key is another id than its value has")
        .when(~is_of_source, "its header names another source than its value")
        .when(~is_forecast, "its forecast is none"),
    )


def letters_of(records: DataFrame) -> DataFrame:
    """Return what the dead letters say (tables.LETTERS). Of one that a message became after it had
    been stored, `record_hash` is of what it carried: its request headers were written anew."""
    control = F.col("control")
    is_dead = F.coalesce(control["reason"].isin(*GIVEN_UP, NO_OCCURRENCE), F.lit(False))
    is_truncated = control["truncated"].isNotNull()
    key = F.when(is_dead & _header("key").isNotNull(), _header("key")).otherwise(F.col("key"))
    user_hash = headers_hash(F.col("headers"))
    names = (
        *("topic", "due", "id", "partition", "receipt", "late", "window", "group"),
        *("cron", "zone", "until", "catchup"),
    )
    topic, due, id, partition, *wishes = (_header(name).cast("string") for name in names)
    key_hash, value_hash = bytes_hash(key), bytes_hash(F.col("value"))
    # What the message carried, and what it asked for, as texts.
    hashes = (key_hash, value_hash, user_hash)
    letter = together(topic, due, id, partition, *hashes, *wishes)
    return as_table(
        records,
        LETTERS,
        **_source(control["source"]),
        reason=control["reason"],
        origin=control["origin"],
        attempt=whole_number(control["attempt"]),
        occurrence=whole_number(control["occurrence"]),
        key_hash=key_hash,
        value_hash=value_hash,
        headers_hash=user_hash,
        record_hash=F.when(is_dead, letter).when(
            ~is_truncated, record_hash(F.col("key"), F.col("value"), F.col("record_headers"))
        ),
        is_truncated=is_truncated,
    )


def _source(text: Column) -> dict[str, Column]:
    return {
        "source": text,
        "source_partition": partition_of_source(text).try_cast("int"),
        "source_offset": offset_of_source(text),
    }


def _header(name: str) -> Column:
    """Return the first header of the record's own with this name of delayd's."""
    found = F.filter(F.col("record_headers"), lambda header: header["name"] == f"delayd-{name}")
    return F.get(found, F.lit(0))["value"]
