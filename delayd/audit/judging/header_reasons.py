"""Why headers of a request are refused, one kind after the other: the rules of requests, written a
second time (`requests.py`).

It shares nothing with `delayd/request`. Odd text never raises.
Source: docs/reference/requests.md.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from delayd.audit.judging.columns import is_true
from delayd.audit.judging.texts import (
    DUE_MS_MAX,
    clock_ms_of,
    delay_ms_of,
    due_ms_of,
    exact_ms_of,
    is_delay,
    is_local,
)

_CRON_CHARS_MAX: Final = 128
_ZONE_CHARS_MAX: Final = 64
_CRON: Final = r"\A[0-9A-Za-z*,/#-]+( +[0-9A-Za-z*,/#-]+){4,5}\z"
_CRON_NAMES: Final = (
    *("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"),
)
_ZONE: Final = r"\A[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,3}\z"
_LATE_MS_MAX: Final = 365 * 24 * 60 * 60 * 1000
_GROUP_BYTES_MAX: Final = 256
WINDOW_MS_MAX: Final = 24 * 60 * 60 * 1000


def until_ms() -> Column:
    return due_ms_of(F.col("control")["until"], refuses_seconds=F.lit(True))


def series_reason() -> Column:
    """Return why no series can be read from the headers; null of what asks for none."""
    control = F.col("control")
    cron, zone, until, catchup = (control[name] for name in ("cron", "zone", "until", "catchup"))
    alone = F.coalesce(F.when(~F.col("knows_moves"), zone), until, catchup)
    is_alone = cron.isNull() & alone.isNotNull()
    dues = F.coalesce(control["due"], control["delay"], control["level"])
    is_cron = cron.isin(*_CRON_NAMES) | (cron.rlike(_CRON) & (F.length(cron) <= _CRON_CHARS_MAX))
    is_zone = zone.isNull() | _is_zone(zone)
    has_cron = cron.isNotNull()
    return (
        F.when(is_alone, "unexpected-header")
        .when(has_cron & dues.isNotNull(), "several-dues")
        .when(has_cron & control["window"].isNotNull(), "unexpected-header")
        .when(has_cron & ~is_cron, "bad-cron")
        .when(has_cron & ~F.coalesce(catchup.isin("once", "all"), F.lit(True)), "bad-catchup")
        .when(
            has_cron & until.isNotNull() & until_ms().isNull(),
            "bad-until",
        )
        .when(has_cron & ~is_zone, "bad-zone")
    )


def _is_zone(zone: Column) -> Column:
    return zone.rlike(_ZONE) & (F.length(zone) <= _ZONE_CHARS_MAX)


def asks_local() -> Column:
    """Return whether a user's request has a local time, right or wrong."""
    control = F.col("control")
    return (
        F.col("knows_moves")
        & ~F.col("is_internal")
        & control["zone"].isNotNull()
        & control["cron"].isNull()
        & is_true(is_local(control["due"]))
    )


def local_reason() -> Column:
    """Return why no local time can be read from the headers; null of what asks for none."""
    control = F.col("control")
    due, zone = control["due"], control["zone"]
    is_other = ~is_true(is_local(due))
    is_moment = due_ms_of(due, refuses_seconds=F.lit(True)).isNotNull()
    reason = (
        F.when(
            due.isNotNull() & F.coalesce(control["delay"], control["level"]).isNotNull(),
            "several-dues",
        )
        .when(due.isNull(), "unexpected-header")
        .when(~_is_zone(zone), "bad-zone")
        .when(is_other & is_moment, "unexpected-header")
        .when(is_other | clock_ms_of(due).isNull(), "bad-due")
    )
    return F.when(zone.isNotNull() & control["cron"].isNull(), reason)


def wish_reason() -> Column:
    control = F.col("control")
    receipt, late, window = control["receipt"], control["late"], control["window"]
    group = control["group"]

    def is_span(text: Column, most_ms: int) -> Column:
        return is_true(delay_ms_of(text).between(1, most_ms)) & is_delay(text)

    return (
        F.when(receipt.isNotNull() & (receipt != "yes"), "bad-receipt")
        .when(late.isNotNull() & ~is_span(late, _LATE_MS_MAX), "bad-late")
        .when(window.isNotNull() & ~is_span(window, WINDOW_MS_MAX), "bad-window")
        .when(group.isNotNull() & control["id"].isNull(), "missing-id")
        .when(F.octet_length(group) > _GROUP_BYTES_MAX, "bad-group")
    )


def debounce_reason() -> Column:
    """Return why a debounce says no delay, or no longest wait."""
    control = F.col("control")
    delay, max_wait = control["delay"], control["max_wait"]
    return (
        F.when(delay.isNull() | max_wait.isNull(), "missing-due")
        .when(~is_delay(delay), "bad-delay")
        .when(~is_delay(max_wait) | (exact_ms_of(max_wait) < exact_ms_of(delay)), "bad-max-wait")
    )


def value_reason() -> Column:
    return F.when(F.octet_length("value") > 0, "unexpected-value")


def new_due_reason() -> Column:
    """Return why a reschedule says no time; a fire says none."""
    control = F.col("control")
    due, delay, by = control["due"], control["delay"], control["by"]
    given = sum((each.isNotNull().cast("int") for each in (due, delay, by)), F.lit(0))
    reason = (
        F.when(given == 0, "missing-due")
        .when(given > 1, "several-dues")
        .when(by.isNotNull() & by_ms().isNull(), "bad-by")
        .when(due.isNotNull() & F.col("asked_due_ms").isNull(), "bad-due")
        .when(delay.isNotNull() & ~is_delay(delay), "bad-delay")
    )
    return F.when(control["op"] == "reschedule", reason)


def by_ms() -> Column:
    """Return by how much a reschedule moves; null without `delayd-by`, and of one that is bad."""
    by = F.col("control.by")
    span = F.substring(by, 2, 64)
    span_ms = F.when(by.rlike(r"\A[+-]") & is_delay(span), delay_ms_of(span))
    is_good = is_true(span_ms <= DUE_MS_MAX)
    return F.when(is_good, F.when(by.startswith("-"), -span_ms).otherwise(span_ms))
