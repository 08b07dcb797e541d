"""The truth of a receipt, of a row of what is owed and reported (verdicts.py).

Source: docs/design/audit.md, "Verdicts".
"""

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import is_true
from delayd.audit.judging.moves import is_true_move


def is_true_receipt(receipt: Column, bounds: Bounds) -> Column:
    """Return whether a receipt is true."""
    is_of_it = (receipt["id"] == F.col("told_id")) & (receipt["op"] == F.col("told_op"))
    is_plain = (
        (receipt["verdict"] == F.col("expected"))
        & (F.size(receipt["killed"]) == 0)
        & receipt["due_ms"].eqNullSafe(F.col("due_ms"))
    )
    of_mark = F.when(F.col("is_mark"), _is_true_mark(receipt, bounds))
    is_right = of_mark.when(is_true(F.col("is_move")), is_true_move(receipt)).otherwise(is_plain)
    return is_true(is_of_it & is_right)


def counts_as_killed(member: Column, bounds: Bounds) -> Column:
    """Return whether a message counts: what came out and was due longer ago than ids are remembered
    does not, because nodes may have dropped it."""
    return member["rank_ms"] + bounds.settings.id_memory_ms >= F.col("log_ms")


def _is_true_mark(receipt: Column, bounds: Bounds) -> Column:
    """Return whether a cancel marker's receipt says what became of its killed set. A `too-late`
    that came too early is found elsewhere (verdicts.py)."""
    victims, before, named = F.col("victims"), F.col("before"), receipt["killed"]
    verdict, at_ms = receipt["verdict"], receipt["at_ms"]
    is_replace = receipt["op"].isin("replace", "debounce")

    def counts(member: Column) -> Column:
        return counts_as_killed(member, bounds)

    def is_named(member: Column) -> Column:
        return F.array_contains(named, member["source"])

    def was_out(member: Column) -> Column:
        return member["is_out"] & (member["out_ms"] < at_ms)

    def are_of(members: Column) -> Column:
        """Return whether everything named is one of these, once."""
        sources = F.transform(members, lambda member: member["source"])
        is_once = F.size(F.array_distinct(named)) == F.size(named)
        return is_once & (F.size(F.array_except(named, sources)) == 0) & (F.size(named) > 0)

    def due_of(members: Column, is_meant: Callable[[Column], Column]) -> Column:
        meant = F.filter(members, is_meant)
        latest_ms = F.array_max(F.transform(meant, lambda member: member["rank_ms"]))
        asked_ms = F.when(is_replace, F.col("due_ms")).otherwise(latest_ms)
        return receipt["due_ms"].eqNullSafe(asked_ms)

    all_out = F.forall(victims, lambda member: member["is_out"])
    all_told = F.forall(
        victims,
        lambda member: F.when(is_named(member), ~was_out(member)).otherwise(member["is_out"]),
    )
    killed = are_of(victims) & all_told & due_of(victims, is_named)
    is_empty = F.size(named) == 0
    too_late = is_empty & all_out & F.exists(victims, counts) & due_of(victims, counts)
    none_counts = F.forall(victims, lambda member: member["is_out"] & ~counts(member))
    # A message that an earlier cancel marker killed, and that is not due yet, proves it: it must
    # be named.
    proves = F.filter(before, lambda member: ~member["is_out"] & (member["rank_ms"] > at_ms))
    was_right = F.forall(before, lambda member: ~(is_named(member) & was_out(member)))
    # What a marker came to that is itself ruled by version 4 or later stands in the log, and is
    # told again while it is remembered.
    is_settled = F.exists(before, lambda member: member["is_settled"] & counts(member))
    remembered = F.exists(before, counts)
    was_out_before = remembered & F.forall(before, lambda member: member["is_out"])
    late_again = ~is_replace & none_counts & is_empty & was_out_before & due_of(before, counts)
    again = none_counts & are_of(before) & was_right & F.forall(proves, is_named)
    nothing = none_counts & is_empty
    return (
        F.when(verdict == "replaced", is_replace & killed)
        .when(verdict == "cancelled", ~is_replace & (killed | again))
        .when(verdict == "too-late", too_late | late_again)
        .when(verdict == "scheduled", is_replace & nothing & due_of(victims, is_named))
        .when(
            verdict == "not-found",
            ~is_replace & nothing & (F.size(proves) == 0) & ~is_settled,
        )
        .otherwise(F.lit(False))
    )
