"""The frontier topic: what it says of itself, and what each step claims, compared with the log.

A record may be at fault in one way only, and what follows it is forgiven as far as it fits what
came before it. The history may begin anywhere, and have gaps where Kafka has compacted it.
Source: docs/design/audit.md, "The frontier".
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds
from delayd.audit.judging.columns import findings, is_true, of_shard, source_text
from delayd.audit.judging.faults import Fault
from delayd.audit.judging.history import History, covered_by
from delayd.audit.judging.holds import judge_holds
from delayd.audit.judging.links import MISFITS, cursor_times_of
from delayd.audit.judging.quotas import judge_quotas
from delayd.audit.judging.retention import is_last_attempt
from delayd.audit.report import Failover, Lateness
from replication.features import FEATURES, RESHARDING, SHARDS
from replication.record import FORMAT, FORMAT_WITH_NEEDS

COUNTS: Final = ("delivered", "late", "killed", "retried", "dead", "answers")

_FIELDS: Final = {
    **dict.fromkeys(("format", "shard", "term", "step", "now_ms", "digest"), "bigint"),
    **dict.fromkeys(("rest_ms", "resharding"), "bigint"),
    **dict.fromkeys(("cursor", "offsets", "own_writes"), "array<bigint>"),
    "owner": "string",
    "lanes": "map<string, array<bigint>>",
    "counts": f"struct<{', '.join(f'{name}: bigint' for name in COUNTS)}>",
    "settings": "struct<partitions: bigint, lanes: bigint, shards: bigint>",
    "smoothing": "map<string, array<string>>",
    "needs": "map<string, string>",
    "barriers": "array<array<bigint>>",
    **dict.fromkeys(("holds", "quotas"), "map<string, array<bigint>>"),
}
_VALUE: Final = ", ".join(f"{name} {kind}" for name, kind in _FIELDS.items())
_SMOOTHING: Final = "smoothing"
"""Only there where a topic with a rate has given turns."""
_SMOOTHING_FIELDS: Final = 5
_NEEDS: Final = "needs"
"""Only there where a reader must know some feature."""
_BARRIERS: Final = "barriers"
"""Only there where the rules were switched."""
_HOLDS: Final = "holds"
"""Only there where a target is paused, or was."""
_HOLD_FIELDS: Final = 4
_QUOTAS: Final = "quotas"
"""Only there where a target has a quota."""
_QUOTA_FIELDS: Final = 8
"""And one more that is not 0: when its order was given."""
_RESHARDING: Final = ("rest_ms", "resharding")
"""Only there where the number of shards is about to change."""
_OTHER_SHARDS: Final = "it has other shards"
STRAY: Final = "its key is not that of its shard"
"""The flaw of a record that no reader of the topic takes for a frontier: a note, and no fault."""
_OPTIONAL: Final = {_SMOOTHING, _NEEDS, _BARRIERS, _HOLDS, _QUOTAS, *_RESHARDING}
_VALUE_KEYS: Final = sorted(_FIELDS.keys() - _OPTIONAL)


def frontiers_of(
    records: DataFrame, shards: int = 1, *, may_be_resharded: bool = False
) -> DataFrame:
    """Return RECORDS of the frontier topic as FRONTIERS; `shards`: how many the cluster has.
    `may_be_resharded`: it may have had others. Then histories begin with the first records of
    those it has."""
    text = F.col("value").cast("string")
    parsed = (
        records.withColumn("text", text)
        .withColumn("it", F.from_json("text", _VALUE))
        .withColumn("keys", F.array_sort(F.json_object_keys("text")))
        .withColumn("flaw", _flaw(shards))
    )
    if may_be_resharded:
        parsed = _since_resharded(parsed)
    return parsed.select(
        "offset",
        F.col("timestamp_ms").alias("append_ms"),
        F.coalesce(F.when(F.col("flaw").isNull(), F.col("it.shard")), F.col("partition"))
        .cast("int")
        .alias("shard"),
        *(f"it.{name}" for name in ("term", "step", "owner", "now_ms", "cursor", "lanes")),
        *("it.offsets", "it.own_writes"),
        *(f"it.counts.{name}" for name in COUNTS),
        "it.digest",
        "flaw",
        *("it.holds", "it.quotas"),
    )


def judge_frontier(
    frontiers: DataFrame,
    links: DataFrame,
    history: History,
    logged: DataFrame,
    deliveries: DataFrame,
    bounds: Bounds,
) -> DataFrame:
    """Return what is wrong with the frontier topic, as FINDINGS; each record in at most one of
    them.

    `links` is links_of(frontiers), and `history` history_of(links).
    """
    place = {"topic": F.lit(bounds.settings.frontier.name), "partition": F.col("shard")}
    broken = F.when(F.col("flaw") != STRAY, F.col("flaw"))
    of_shards = frontiers.where(F.col("shard") < bounds.shards)
    misfits = {fault: F.when(F.col("fault") == fault.slug, F.col("reason")) for fault in MISFITS}
    false = _false_claims(links, history, logged, bounds)
    if problem := bounds.barriers_problem:
        shard, why = problem
        at_cut = (F.col("shard") == shard) & (F.col("offset") == bounds.cuts[shard].offset)
        false = false.where(~at_cut).unionByName(
            links.where(at_cut).select("shard", "offset", F.lit(why).alias("reason"))
        )
    return (
        findings(of_shards, {Fault.FRONTIER_BROKEN: broken}, "offset", **place)
        .unionByName(findings(links, misfits, "offset", **place))
        .unionByName(findings(false, {Fault.FRONTIER_FALSE: F.col("reason")}, "offset", **place))
        .unionByName(judge_holds(links, history, logged, deliveries, bounds))
        .unionByName(judge_quotas(links, logged, bounds))
    )


def _false_claims(
    links: DataFrame, history: History, logged: DataFrame, bounds: Bounds
) -> DataFrame:
    """Return steps, and as `reason` what one claims that its difference does not show; or null."""
    is_come_to = F.col("continued_by").isNull() | is_true(F.col("is_followed"))
    stored = logged.where(F.col("stored") & is_come_to).select(
        *("partition", "offset", "lane", "rank_ms", "killed_by"),
        is_last_attempt(bounds).alias("is_last"),
        # What is over of a series is given up whenever a step comes to it.
        F.when(F.col("is_over"), F.lit(0).cast("bigint"))
        .otherwise(F.col("planned_ms") + F.col("late_ms"))
        .alias("worth_until_ms"),
    )
    covered = covered_by(stored, history)
    alive = covered.where(F.col("killed_by").isNull() | (F.col("killed_by") >= F.col("step_end")))
    crc = F.crc32(source_text().cast("binary"))
    held = alive.groupBy(F.col("step_at").alias("number")).agg(
        F.count("*").alias("held"),
        F.sum(crc).alias("held_digest"),
        F.count(F.when(F.col("is_last"), 1)).alias("last"),
        F.sum(F.when(F.col("is_last"), crc)).alias("last_digest"),
    )
    claims = links.where(
        F.col("is_sound")
        & ~F.col("is_base")
        & (F.col("offset") <= of_shard([cut.offset for cut in bounds.cuts]))
        & _is_whole(bounds)
    ).select("shard", "offset", "number", "step", "delivered", "dead", "digest")
    # There is none to expire as a rule: spare the join.
    timed = alive.where("worth_until_ms is not null" if bounds.is_any_timed else "false")
    expired = _expired(timed, links)
    compared = claims.join(held, "number", "left").join(expired, "number", "left").fillna(0)
    # Where some last attempts were given up and others delivered, the log does not say which.
    last = F.col("last") - F.col("expired_last")
    last_digest = F.col("last_digest") - F.col("expired_last_digest")
    left_digest = F.col("held_digest") - F.col("expired_digest")
    expected = F.when(F.col("dead") == F.col("expired"), left_digest).when(
        F.col("dead") == F.col("expired") + last, left_digest - last_digest
    )
    miscounted = F.format_string(
        "step %d says that it delivered %d and gave up %d messages; by the log it had %d",
        *("step", "delivered", "dead", "held"),
    )
    others = F.format_string(
        "step %d delivered as many as it says, but others: their digest is %d and not %d",
        *("step", expected, "digest"),
    )
    misjudged = F.format_string(
        "step %d says that it gave up %d messages; by its now %d had expired, and it had %d last"
        " attempts",
        *("step", "dead", "expired", "last"),
    )
    reason = (
        F.when(F.col("delivered") + F.col("dead") != F.col("held"), miscounted)
        .when(~F.col("dead").between(F.col("expired"), F.col("expired") + last), misjudged)
        .when(F.col("digest") != expected, others)
    )
    return compared.select("shard", "offset", reason.alias("reason"))


def _expired(timed: DataFrame, links: DataFrame) -> DataFrame:
    """Return what each step found not worth delivering any more, by its own `now`: how many, and
    their digest; of both also that of last attempts."""
    crc, is_last = F.crc32(source_text().cast("binary")), F.col("is_last")
    steps = links.select(F.col("number").alias("step_at"), "now_ms")
    over = timed.join(steps, "step_at").where("now_ms > worth_until_ms")
    return over.groupBy(F.col("step_at").alias("number")).agg(
        F.count("*").alias("expired"),
        F.sum(crc).alias("expired_digest"),
        F.count(F.when(is_last, 1)).alias("expired_last"),
        F.sum(F.when(is_last, crc)).alias("expired_last_digest"),
    )


def _is_whole(bounds: Bounds) -> Column:
    """Return whether all that the step can have delivered is still in the buffer.

    What is missing lies below the buffer's start, and was due by its longest delay: it was done
    before the step if the record before it had passed both.
    """
    starts = bounds.buffer_starts
    if not any(starts):
        return F.lit(True)
    settings, old = bounds.settings, F.col("old")
    since_ms = bounds.trimmed_before_ms(settings.buffer.name) or bounds.newest_append_ms
    is_whole = F.array_min(cursor_times_of(old)) >= since_ms + settings.max_delay_ms
    for partition, start in enumerate(starts):
        has_passed = F.get(old["offsets"], F.lit(partition)) >= start
        if bounds.shards > 1:
            has_passed |= F.col("shard") != partition % bounds.shards
        is_whole &= has_passed
    return is_whole


def reigns_of(frontiers: DataFrame) -> DataFrame:
    """Return the terms as report.Reign has them, and `first_delivery_ms`; in order."""
    return (
        frontiers.where(F.col("flaw").isNull() & (F.col("term") > 0))
        .groupBy("shard", "term", "owner")
        .agg(
            F.min("append_ms").alias("from_ms"),
            F.max("append_ms").alias("to_ms"),
            F.count("*").alias("steps"),
            F.sum("delivered").alias("delivered"),
            F.min(F.when(F.col("delivered") > 0, F.col("append_ms"))).alias("first_delivery_ms"),
        )
        .select(
            *("term", "owner", "from_ms", "to_ms", "steps", "delivered", "shard"),
            "first_delivery_ms",
        )
        .orderBy("from_ms", "term", "shard")
    )


def failovers_of(reigns: Sequence[Row]) -> list[Failover]:
    """Return the changes of master among the rows of reigns_of, without their lateness; in order.

    `gap_ms` is then from the last step of the old term to the first delivery of the new one, with
    what was idle time: `felt` takes that away.

    A master that takes over from itself, after a failed step, is none.
    """
    found, last = list[Failover](), dict[int, Row]()
    for new in reigns:
        old = last.get(new.shard)
        last[new.shard] = new
        if old is not None and new.owner != old.owner:
            first_ms = new.first_delivery_ms
            gap_ms = None if first_ms is None else first_ms - old.to_ms
            change = (new.from_ms, new.term, old.owner, new.owner, gap_ms, None, new.shard)
            found.append(Failover(*change))
    return found


def felt(failover: Failover, lateness: Lateness | None) -> Failover:
    """Return a failover with the lateness of what was due around it. Its gap is no longer than the
    latest of these messages was late: while nothing was due, nothing waited."""
    gap_ms = failover.gap_ms
    if gap_ms is not None:
        gap_ms = min(gap_ms, 0 if lateness is None else lateness.max)
    return replace(failover, gap_ms=gap_ms, lateness=lateness)


def _flaw(shards: int) -> Column:
    """Return why a record is no frontier of a cluster with so many shards; null if it is one."""
    it = F.col("it")
    numbers = [
        *(it[name] for name in ("shard", "term", "step", "now_ms", "digest")),
        *(it["counts"][name] for name in COUNTS),
        *(it["settings"][name] for name in ("partitions", "lanes")),
    ]
    parts = [it[name] for name in ("owner", "cursor", "lanes", "offsets", "own_writes")]
    is_partial = F.lit(False)
    for part in (*numbers, *parts):
        is_partial |= part.isNull()

    def is_no_lane(lane: Column) -> Column:
        number = lane.try_cast("int")
        return number.isNull() | (number < 0) | (number >= it["settings"]["lanes"])

    def is_no_row(numbers: Column) -> Column:
        return (F.size(numbers) != it["settings"]["partitions"]) | _has_gap(numbers)

    def is_unknown(feature: Column) -> Column:
        return ~feature.isin(*FEATURES)

    told = F.coalesce(it["settings"]["shards"], F.lit(1))
    changes, has_needs = _changes(it), _has_needs(it)
    wanted = F.when(has_needs, FORMAT_WITH_NEEDS).otherwise(FORMAT)
    has_no_barrier = F.exists(it[_BARRIERS], _is_no_rank)
    has_no_hold = F.exists(F.map_values(it[_HOLDS]), lambda row: _is_no_row(row, _HOLD_FIELDS))
    has_no_quota = F.exists(F.map_values(it[_QUOTAS]), _is_no_quota)
    queues = F.map_values(it[_SMOOTHING])
    are_queues = F.forall(queues, lambda fields: F.size(fields) == _SMOOTHING_FIELDS)
    has_queues = is_true(are_queues & (F.size(queues) > 0))
    cursors = F.concat(F.array(it["cursor"]), F.map_values(it["lanes"]))
    is_no_cursor = F.exists(cursors, _is_no_rank) | F.exists(F.map_keys(it["lanes"]), is_no_lane)
    key = F.concat(F.lit("shard-"), F.col("partition").cast("string"))
    known = F.array(*map(F.lit, _VALUE_KEYS))
    return (
        F.when(~F.col("key").cast("string").eqNullSafe(key), STRAY)
        .when(F.col("value").isNull(), "it has no value")
        .when(F.col("keys").isNull(), "it is no JSON object")
        .when(F.exists(F.map_keys(it[_NEEDS]), is_unknown), "it needs features that are unknown")
        .when(~it["format"].eqNullSafe(wanted), "its format is unknown, or not of what it needs")
        .when(F.size(F.array_except(known, "keys")) > 0, "fields are missing")
        .when(
            F.array_contains("keys", _SMOOTHING) & ~has_queues, "what it says of smoothing is none"
        )
        .when(it[_BARRIERS].isNotNull() & (~has_needs | has_no_barrier), "its barriers are none")
        .when(it[_HOLDS].isNotNull() & (~has_needs | has_no_hold), "its holds are none")
        .when(it[_QUOTAS].isNotNull() & (~has_needs | has_no_quota), "its quotas are none")
        .when(changes & ~has_needs, "it does not say that shards change")
        .when(is_partial, "a field is missing, or not of its type")
        .when(is_no_cursor, "a cursor is no rank, or of no lane")
        .when(
            is_no_row(it["offsets"]) | is_no_row(it["own_writes"]),
            "its offsets do not match the partitions of the buffer",
        )
        .when(~is_true(it["shard"] == F.col("partition")), "it is of another shard")
        .when(told != shards, _OTHER_SHARDS)
        .when(_is_of_others(it, shards), "it has an O, R or barrier of another shard's partition")
    )


def _changes(it: Column) -> Column:
    return it["rest_ms"].isNotNull() | it["resharding"].isNotNull()


def _has_needs(it: Column) -> Column:
    """Return whether a record names features, and those of shards that it must name."""
    is_sharded = F.coalesce(it["settings"]["shards"], F.lit(1)) > 1
    has_needs = is_true(F.size(it[_NEEDS]) > 0)
    for what, feature in ((is_sharded, SHARDS), (_changes(it), RESHARDING)):
        has_needs &= ~what | is_true(F.map_contains_key(it[_NEEDS], feature))
    return has_needs


def _since_resharded(parsed: DataFrame) -> DataFrame:
    """Return parsed records without those before the first ones of the shards there are: where a
    record of others was the last of its shard, and the next one goes on where it stood."""
    before = Window.partitionBy("partition").orderBy("offset")
    known = F.col("flaw").isNull() | (F.col("flaw") == _OTHER_SHARDS)
    last = F.last(F.when(known, F.struct("flaw", "it")), ignorenulls=True)
    linked = parsed.withColumn("old", last.over(before.rowsBetween(Window.unboundedPreceding, -1)))
    first = F.when(F.col("flaw").isNull() & _begins_anew(), F.col("offset"))
    everywhere = before.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    since = F.coalesce(F.max(first).over(everywhere), F.lit(0))
    return linked.withColumn("since", since).where("offset >= since").drop("old", "since")


def _begins_anew() -> Column:
    """Return whether a record is the first of its shard behind `old`, the last one of its partition
    when the cluster had other shards."""
    it, old = F.col("it"), F.col("old.it")
    had = F.coalesce(old["settings"]["shards"], F.lit(1))
    was_none = old["shard"] >= had
    goes_on = F.lit(True)
    for name in ("cursor", "lanes"):
        # Two maps do not compare.
        goes_on &= F.to_json(F.struct(it[name])).eqNullSafe(F.to_json(F.struct(old[name])))
    told = F.coalesce(it["settings"]["shards"], F.lit(1))

    def stands_at(offset: Column, partition: Column) -> Column:
        was_owned = F.pmod(partition, had) == old["shard"]
        is_owned = F.pmod(partition, told) == it["shard"]
        return (offset == F.get(old["offsets"], partition)) | ~(was_owned & is_owned)

    stands = F.forall(F.transform("it.offsets", stands_at), lambda stands_there: stands_there)
    return is_true(
        (F.col("old.flaw") == _OTHER_SHARDS)
        & (was_none | (old["resharding"].isNotNull() & goes_on & stands))
        & (it["term"] > old["term"])
        & (it["step"] > old["step"])
        & (it["counts"]["delivered"] + it["counts"]["dead"] == 0)
    )


def _is_of_others(it: Column, shards: int) -> Column:
    """Return whether a record says something of partitions that are not its shard's."""
    if shards == 1:
        return F.lit(False)

    def is_other(partition: Column) -> Column:
        return F.pmod(partition, F.lit(shards)) != it["shard"]

    def others(values: Column, none: int) -> Column:
        kept = F.filter(values, lambda _, at: is_other(at))
        return F.exists(kept, lambda value: value != none)

    barriers = F.coalesce(it[_BARRIERS], F.array().cast("array<array<bigint>>"))
    of_barriers = F.exists(barriers, lambda barrier: is_other(F.get(barrier, F.lit(0))))
    return others(it["offsets"], 0) | others(it["own_writes"], -1) | of_barriers


def _is_no_rank(numbers: Column) -> Column:
    return numbers.isNull() | (F.size(numbers) != 3) | _has_gap(numbers)


def _is_no_row(row: Column, fields: int) -> Column:
    return (F.size(row) != fields) | _has_gap(row)


def _is_no_quota(row: Column) -> Column:
    at_ms = F.coalesce(F.get(row, F.lit(_QUOTA_FIELDS)), F.lit(0))
    return _is_no_row(row, _QUOTA_FIELDS) & (_is_no_row(row, _QUOTA_FIELDS + 1) | (at_ms == 0))


def _has_gap(numbers: Column) -> Column:
    return F.exists(numbers, lambda number: number.isNull())
