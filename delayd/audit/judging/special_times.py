"""What a record says of when it is due, where that is no due time: of a series, of a local time.

The rules of requests, written a second time (`requests.py`).
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from delayd.audit.judging.columns import is_true
from delayd.audit.judging.header_reasons import asks_local, until_ms
from delayd.audit.judging.texts import whole_number

WRITTEN_LOCAL: Final = r"\A([^\[]+)\[([^\]]+)\]\z"
"""`2027-03-28T09:00[Europe/Berlin]`."""


def of_series() -> dict[str, Column]:
    """Return what a record says of its series."""
    control = F.col("control")
    is_internal = F.col("op") == "continue"
    state = F.when(is_internal, control["series"])
    zone, end_ms = F.coalesce(control["zone"], F.lit("UTC")), until_ms()
    catches_up = is_true(control["catchup"] == "all")
    return {
        "occurrence": F.when(is_internal, whole_number(control["occurrence"])).otherwise(0),
        "series": F.concat_ws("|", control["cron"], zone, end_ms, catches_up),
        "goes_on": F.coalesce(state == "on", F.lit(True)),
        "is_over": F.coalesce(state == "over", F.lit(False)),
        "follows": is_true(F.when(is_internal, control["follows"].isNotNull())),
        "cron": control["cron"],
        "zone": zone,
        "until_ms": end_ms,
        "catches_up": catches_up,
    }


def of_local_time(is_message: Column) -> dict[str, Column]:
    """Return what a record says of its local time; `zone` and `is_over` of a series, too."""
    control, series = F.col("control"), of_series()
    own = F.when(asks_local(), control["due"])
    clock = F.coalesce(own, F.regexp_extract(control["local"], WRITTEN_LOCAL, 1))
    zone = F.coalesce(
        F.when(own.isNotNull(), control["zone"]),
        F.regexp_extract(control["local"], WRITTEN_LOCAL, 2),
    )
    resolved = F.coalesce(F.when(own.isNotNull(), "no"), control["resolved"])
    is_series = control["cron"].isNotNull()
    found = {
        "clock": clock,
        "resolved": resolved,
        "is_open": F.when(clock.isNotNull(), resolved.isin("no", "expected")),
        "zone": F.when(is_series, series["zone"]).otherwise(zone),
        "is_over": F.when(is_series, series["is_over"]).when(clock.isNotNull(), resolved == "over"),
    }
    return {name: F.when(is_message, each) for name, each in found.items()}
