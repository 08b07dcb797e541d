"""What the audit takes for a forecast in a receipt: its form, and no figure.

Source: docs/design/audit.md, "Verdicts".
"""

import json
from typing import Any

from pyspark.sql import Row, SparkSession

from delayd.audit.judging.evidence import receipts_of

GOOD: tuple[dict[str, Any], ...] = (
    {},
    {"forecast_messages": 0, "forecast_span_ms": 3_600_000},
    {"forecast_messages": 7, "forecast_span_ms": 1_000, "forecast_late_ms": 12},
)
BAD: tuple[dict[str, Any], ...] = (
    {"forecast_messages": 7},
    {"forecast_messages": -1, "forecast_span_ms": 1_000},
    {"forecast_messages": 7, "forecast_span_ms": 60_000},
    {"forecast_messages": 7, "forecast_span_ms": 1_000, "forecast_late_ms": -1},
    {"forecast_messages": 7, "forecast_span_ms": 1_000, "verdict": "cancelled"},
    {"forecast_messages": "many"},
    {"forecast_messages": "many", "forecast_span_ms": {}, "forecast_late_ms": [1]},
    {"forecast_messages": 7, "forecast_span_ms": 1_000, "forecast_late_ms": "soon"},
    {"forecast_messages": 7, "forecast_span_ms": 1_000, "forecast_late_ms": 12.5},
    {"forecast_messages": 10**30, "forecast_span_ms": 1_000},
)


def row(offset: int, more: dict[str, Any]) -> Row:
    """Return the record of a receipt."""
    told = {"id": "a", "verdict": "scheduled", "op": "schedule", "source": "0/1", "killed": []}
    value = json.dumps({**told, "due_ms": 5, "at_ms": 4, "detail": "", **more}).encode()
    return Row(
        partition=0,
        offset=offset,
        timestamp_ms=4,
        key=b"a",
        value=value,
        control=Row(source="0/1"),
    )


def test_a_receipt_has_a_forecast_of_the_right_form_or_none(spark: SparkSession) -> None:
    """Rules: forecast-advice"""
    records = spark.createDataFrame([row(at, more) for at, more in enumerate((*GOOD, *BAD))])
    flaws = {each["offset"]: each["flaw"] for each in receipts_of(records).collect()}
    assert [flaws[at] for at in range(len(GOOD))] == [None] * len(GOOD)
    assert {flaws[len(GOOD) + at] for at in range(len(BAD))} == {"its forecast is none"}
