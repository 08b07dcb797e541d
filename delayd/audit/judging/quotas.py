"""Quotas of targets: what orders and gates say, which requests they refuse, and whether the steps
that wrote them had to.

A gate in a partition of the buffer says that a target is full, or open, behind it. So the log alone
tells which requests are refused. Why a target is full only its master knows, which has counted what
was pending in its wheel. That count is bounded by the log: what the step had passed and what no
later marker killed was pending at least, what stands before the gate and was not killed below the
frontier was at most. Source: docs/design/audit.md, "Quotas".
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from delayd.audit.bounds import Bounds, LoggedQuota
from delayd.audit.judging.columns import (
    PLACE,
    findings,
    home_in,
    is_true,
    of_partition,
    quota_field,
    shard_of,
    source_text,
    table_of,
)
from delayd.audit.judging.faults import Fault
from delayd.audit.judging.gates import gates_of, whole_gates
from delayd.audit.judging.links import cursor_in
from delayd.audit.judging.quota_rates import wrong_rates
from delayd.audit.tables import FINDINGS, GATES, REFUSALS, REQUESTS, SAID
from replication.holds import ORDER_AGE_MS_MAX
from replication.quotas import (
    MAX_PENDING_MAX,
    PENDING,
    QUOTAS_MAX,
    RATE,
    RATE_MAX,
    RATE_WINDOW_S,
    opens_at,
)
from replication.record import FrontierRecord
from replication.resharding import rest_end_ms
from replication.settings import Settings

_NUMBER: Final = "([0-9]{1,15})"
_SAID: Final = (
    rf"\A(limit{3 * f'/{_NUMBER}'}|(full|fast|open){5 * f'/{_NUMBER}'})"
    r"/([a-zA-Z0-9._-]{1,249})\z"
)
_ORDER_AT, _ORDER_MOST, _ORDER_RATE, _GATE_AT, _TOPIC = 2, 3, 4, 6, 11
"""Groups of it."""
_ALL_NUMBERS: Final = (_ORDER_AT, _ORDER_MOST, _ORDER_RATE, *range(_GATE_AT, _TOPIC))
_SHUT: Final = ("full", "fast")
_ADDING: Final = ("schedule", "replace", "debounce", "redrive")
"""Requests that would add a message."""
_KEPT: Final = frozenset(
    {*PLACE, "append_ms", "log_ms", "op", "asked_op", "reason", "id", "record_hash", "is_steady"}
)
"""What REQUESTS have of a reject."""
AHEAD_MS: Final = 20_000
"""How much later than a step's `now` what it has counted may have been appended in partitions of
other shards, beside the time for which a master stands still at rest."""
GATES_MAX: Final = 500
"""Gates whose count is judged, of all targets: those of the last steps."""

Full = Mapping[tuple[int, str], int]
"""Quotas of targets that are full, by partition and target."""


def _part(group: int) -> Column:
    return F.regexp_extract(F.col("control.quota"), _SAID, group)


def quota_reason(settings: Settings) -> Column:
    """Return why an order or a gate is refused, empty if it is not; null of what is none."""
    numbers = {group: _part(group).try_cast("bigint") for group in _ALL_NUMBERS}
    at_ms, topic = F.coalesce(numbers[_ORDER_AT], numbers[_GATE_AT]), _part(_TOPIC)
    is_within = (numbers[_ORDER_MOST] <= MAX_PENDING_MAX) & (numbers[_ORDER_RATE] <= RATE_MAX)
    is_order = F.col("control.quota").startswith("limit/")
    is_good = (
        F.col("control.quota").rlike(_SAID)
        & ~(topic.startswith(settings.prefix) | topic.startswith("__") | topic.isin(".", ".."))
        & (F.abs(F.col("append_ms") - at_ms) <= ORDER_AGE_MS_MAX)
        & (~is_order | is_within)
    )
    reason = F.when(~F.col("knows_moves"), "unknown-header").when(~is_true(is_good), "bad-proof")
    return F.when(F.col("control.quota").isNotNull(), F.coalesce(reason, F.lit("")))


def quotas_of(requests: DataFrame) -> tuple[LoggedQuota, ...]:
    """Return the orders and gates among the requests."""
    found = []
    for row in requests.where("op in ('quota', 'gate')").select(*PLACE, "ordered").collect():
        kind, at_ms, *numbers, topic = row.ordered.split("/")
        counts = [*map(int, numbers)]
        if kind == "limit":
            max_pending, rate = counts
            counts = [0, max_pending, 0, rate]
        place = row.partition, row.offset
        found.append(LoggedQuota(*place, kind, topic, int(at_ms), *counts))
    return tuple(sorted(found))


def full_after(said: Iterable[LoggedQuota], full: Full) -> dict[tuple[int, str], int]:
    """Return the targets that are full behind all of these, which come after `full`."""
    after = dict(full)
    for each in said:
        if each.kind in _SHUT:
            after[each.partition, each.topic] = each.max_pending
        elif each.kind == "open":
            after.pop((each.partition, each.topic), None)
    return after


def full_at(records: Iterable[FrontierRecord]) -> dict[tuple[int, str], int]:
    """Return the targets that are full by the frontier of each shard, of which nothing more is
    known."""
    return {
        (partition, topic): quota.max_pending
        for record in records
        for topic, quota in record.quotas.items()
        for partition in range(len(record.frontier.offsets))
        if quota.is_full and record.frontier.owns(partition)
    }


def full_of(lines: Iterable[tuple[int, str, int]]) -> dict[tuple[int, str], int]:
    """Return the targets that are full, as lines of partition, target and quota say."""
    return {(partition, topic): most for partition, topic, most in lines}


def refused_by(
    requests: DataFrame, said: Iterable[LoggedQuota], full: Full | None = None
) -> DataFrame:
    """Return REQUESTS, in which those for a full target are rejects. `said`: the gates among them;
    `full`: what is full before."""
    since = dict.fromkeys(full or {}, -1)
    rows: list[tuple[int, str, int, int | None]] = []
    for each in said:
        place = each.partition, each.topic
        if each.kind in _SHUT:
            since.setdefault(place, each.offset)
        elif each.kind == "open" and place in since:
            rows.append((*place, since.pop(place), each.offset))
    rows += [(*place, offset, None) for place, offset in since.items()]
    if not rows:
        return requests
    refusals = F.broadcast(table_of(requests.sparkSession, REFUSALS, rows))
    is_there = (
        (F.col("partition") == F.col("full_in"))
        & (F.col("topic") == F.col("full_of"))
        & (F.col("offset") > F.col("full_from"))
        & (F.col("full_to").isNull() | (F.col("offset") < F.col("full_to")))
        & F.col("op").isin(*_ADDING)
    )
    joined = requests.join(refusals, is_there, "left")
    is_over = F.col("full_in").isNotNull()
    told = F.when(is_true(F.col("is_told")), source_text())
    of_reject = {
        "op": F.lit("reject"),
        "asked_op": F.col("op"),
        "reason": F.lit("over-quota"),
        "id": F.coalesce("id", "redrive", told),
        "attempt": F.lit(0),
        "origin": F.col("offset"),
    }
    columns = []
    for field in REQUESTS.fields:
        kept = F.col(field.name) if field.name in _KEPT else F.lit(None)
        changed = of_reject.get(field.name, kept).cast(field.dataType)
        columns.append(F.when(is_over, changed).otherwise(F.col(field.name)).alias(field.name))
    return joined.select(*columns)


def judge_quotas(links: DataFrame, logged: DataFrame, bounds: Bounds) -> DataFrame:
    """Return what is wrong with quotas, as FINDINGS. `links` is links_of the frontiers."""
    spark = links.sparkSession
    steps = links.where("is_sound").select(
        *("shard", "offset", "step", "term", "now_ms", "offsets", "cursor", "lanes", "quotas"),
        "old",
        _may_gate().alias("may_gate"),
    )
    named = steps.select("*", F.explode("quotas").alias("topic", "quota"))
    if not bounds.quotas and named.isEmpty():  # as a rule
        return table_of(spark, FINDINGS)
    rows = [
        (q.partition, q.offset, q.kind, q.topic, q.at_ms, q.pending, q.max_pending, q.rate)
        for q in bounds.quotas
    ]
    said = table_of(spark, SAID, rows).withColumn("of_shard", shard_of(bounds.shards, "home"))
    wrong = (
        _of_orders(named, said, bounds)
        .unionByName(_of_missing(steps, said, bounds))
        .unionByName(_of_states(named))
        .unionByName(_of_gates(steps, bounds))
        .unionByName(_of_counts(steps, logged, bounds))
        .unionByName(wrong_rates(steps, logged, _ADDING, bounds))
    )
    place = {"topic": F.lit(bounds.settings.frontier.name)}
    return findings(
        wrong.groupBy("shard", "topic", "why")
        .agg(F.min_by("reason", "offset").alias("reason"), F.min("offset").alias("offset"))
        .drop("topic"),
        {Fault.FRONTIER_QUOTA: F.col("reason")},
        "offset",
        **place,
        partition=F.col("shard"),
    )


def _may_gate() -> Column:
    """Return whether gates of its time may be those of a step. The first record of a shard has the
    time of those before it, which may have written some, and so have steps that stand still behind
    it."""
    first_ms = F.max(F.when(F.col("old").isNull(), F.col("now_ms"))).over(
        Window.partitionBy("shard")
    )
    return F.col("now_ms") > first_ms


def _found(rows: DataFrame, why: Column, text: Column) -> DataFrame:
    kept = rows.where(why.isNotNull())
    return kept.select("shard", "offset", "topic", why.alias("why"), text.alias("reason"))


def _of_orders(named: DataFrame, said: DataFrame, bounds: Bounds) -> DataFrame:
    """Return quotas that the order which they name does not set."""
    orders = F.broadcast(said.where("kind = 'limit'"))
    max_pending, at, rate = map(quota_field, ("max_pending", "offset", "rate"))
    is_of_it = (
        (F.col("about") == F.col("topic"))
        & (F.col("of_shard") == F.col("shard"))
        # Of one shard it is not said.
        & (F.lit(bounds.shards == 1) | (F.col("at_ms") == quota_field("at_ms")))
    )
    joined = named.join(orders, is_of_it & (F.col("at") == at), "left")
    home = home_in(F.col("topic"), F.col("shard"), bounds.settings)
    # One that was passed when there were other shards is -1.
    is_trimmed = at < of_partition(bounds.buffer_starts, home)
    why = (
        F.when(F.col("at").isNull(), F.when(~is_trimmed, "no order is there in the buffer"))
        .when(F.col("at") >= F.get("offsets", F.col("home")), "its order was not passed yet")
        .when(max_pending != F.col("most"), "its order says another number")
        .when(rate != F.col("pace"), "its order says another rate")
    )
    text = F.format_string(
        "step %d has a quota of %s by an order at %d: %s", "step", "topic", at, why
    )
    return _found(joined, why, text)


def _of_missing(steps: DataFrame, said: DataFrame, bounds: Bounds) -> DataFrame:
    """Return orders that a step has passed and not obeyed, or a step before it had obeyed. Where
    orders about a topic stand in several partitions of a shard, because there were other shards,
    nobody knows which came last."""
    homes: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for each in bounds.quotas:
        if each.kind == "limit":
            homes[each.topic, each.partition % bounds.shards].add(each.partition)
    several = [
        f"{home}/{topic}" for (topic, _), found in homes.items() if len(found) > 1 for home in found
    ]
    following = Window.partitionBy("home", "about").orderBy("at")
    nexts = (
        said.where("kind = 'limit'")
        .withColumn("next", F.lead("at").over(following))
        .where(~F.concat_ws("/", "home", "about").isin(several))
    )
    reached, before = (F.get(offsets, F.col("home")) for offsets in ("offsets", "old.offsets"))
    is_last = (
        (F.col("of_shard") == F.col("shard"))
        & (F.col("at") < reached)
        & (F.col("next").isNull() | (F.col("next") >= reached))
    )
    none = F.create_map().cast("map<string, array<bigint>>")
    quotas, quotas_before = (F.coalesce(each, none) for each in ("quotas", "old.quotas"))
    has, had = (F.map_contains_key(each, F.col("about")) for each in (quotas, quotas_before))
    # A shard need not have obeyed what was passed when there were others.
    is_new = is_true(F.col("at") >= before)
    is_end = (F.col("most") == 0) & (F.col("pace") == 0)
    is_missing = ~is_end & ~has & (F.size(quotas) < QUOTAS_MAX) & (is_new | had)
    why = F.when(is_missing, "which has none there").when(
        is_end & has & (is_new | ~had), "which has one there all the same"
    )
    text = F.format_string(
        "step %d has passed the order at %d about the quota of %s, %s", "step", "at", "about", why
    )
    return _found(
        steps.where("old is not null")
        .join(F.broadcast(nexts), is_last)
        .withColumn("topic", F.col("about")),
        why,
        text,
    )


def _of_states(named: DataFrame) -> DataFrame:
    """Return steps by whose own count a target is full that is not, or the reverse."""
    most, pending, full_ms = map(quota_field, ("max_pending", "pending", "full_ms"))
    rate, taken, over = map(quota_field, ("rate", "taken", "over"))
    limits = ((PENDING, most, pending), (RATE, rate * RATE_WINDOW_S, taken))
    # An order that this step passes counts from the next one on.
    before = quota_field("offset", F.try_element_at(F.col("old.quotas"), F.col("topic")))
    # A step that stands still counts nothing: the first of a term, for one.
    stands = [F.col(name).eqNullSafe(F.col(f"old.{name}")) for name in ("offsets", "cursor")]
    is_known = before.eqNullSafe(quota_field("offset")) & ~(stands[0] & stands[1])
    why = F.when((full_ms > 0) != (over > 0), "full by no limit, or open over one")
    for limit, allowed, used in limits:
        is_over = over.bitwiseAND(F.lit(limit).cast("bigint")) > 0
        free = F.greatest(F.lit(1).cast("bigint"), F.floor(allowed / 10))
        is_used_up = (allowed > 0) & (used >= allowed)
        is_free = (allowed == 0) | (used <= allowed - free)
        why = why.when(is_known & ~is_over & is_used_up, "not full").when(
            is_known & is_over & is_free, "full"
        )
    text = F.format_string(
        "step %d has counted %d messages pending for %s and %d requests in %d s, whose quotas are"
        " %d and %d a second, and it is %s",
        *("step", pending, "topic", taken, F.lit(RATE_WINDOW_S), most, rate, why),
    )
    return _found(named, why, text)


def _of_gates(steps: DataFrame, bounds: Bounds) -> DataFrame:
    """Return gates that no step has written so, and steps that did not write them everywhere."""
    partitions = bounds.settings.partitions // bounds.shards
    rows = [
        (g.shard, g.topic, g.kind, g.at_ms, g.pending, g.taken, g.is_end, len(places))
        for g, places in gates_of(bounds).items()
    ]
    gates = F.broadcast(table_of(steps.sparkSession, GATES, rows))
    quota = F.try_element_at("quotas", F.col("about"))
    pending, taken, over = (quota_field(name, quota) for name in ("pending", "taken", "over"))
    is_pending = over.bitwiseAND(F.lit(PENDING).cast("bigint")) > 0
    is_so = (
        F.when(F.col("kind") == "full", is_pending)
        .when(F.col("kind") == "fast", (over > 0) & ~is_pending)
        .otherwise(over == 0)
    )
    is_counted = (pending == F.col("counted")) & (taken == F.col("taken"))
    # An order in the same step may have begun anew what another one has ended.
    is_ended = quota.isNull() | F.col("is_end")
    is_said = F.when(is_ended, F.col("kind") == "open").otherwise(is_so & is_counted)
    is_its = (F.col("at_ms") == F.col("now_ms")) & (F.col("of_shard") == F.col("shard"))
    by_step = gates.join(steps.where("may_gate"), is_its, "left").groupBy(*gates.columns)
    judged = by_step.agg(
        F.max(is_true(is_said)).alias("is_said"),
        F.min("step").alias("step"),
        F.min("offset").alias("offset"),
    )
    is_whole = F.col("places") == partitions
    # Of a gate without a step the commit may not have come everywhere yet.
    has_step = F.col("step").isNotNull()
    why = F.when(has_step & ~F.col("is_said"), "no step says so").when(
        has_step & ~is_whole & F.lit(not any(bounds.buffer_starts)), "it is not in every partition"
    )
    text = F.format_string(
        "at %d the log says that %s is %s, with %d pending: %s",
        *("at_ms", "about", "kind", "counted", why),
    )
    return _found(
        judged.withColumns({"topic": F.col("about"), "shard": F.col("of_shard")}),
        why,
        text,
    )


def _of_counts(steps: DataFrame, logged: DataFrame, bounds: Bounds) -> DataFrame:
    """Return gates whose count is not what may have been pending. How much a master had taken in of
    other shards' partitions, and where it knew them to stand, is not in the log."""
    spark, is_alone = steps.sparkSession, bounds.shards == 1
    schema = "of_shard int, about string, at_ms bigint, counted bigint, gates array<bigint>"
    counts = [(gate, offsets) for gate, offsets in whole_gates(bounds) if gate.max_pending]
    rows = [(g.shard, g.topic, g.at_ms, g.pending, at) for g, at in counts[-GATES_MAX:]]
    gates = spark.createDataFrame(rows, schema)
    lane = F.pmod(F.crc32(F.col("about").cast("binary")), F.lit(bounds.settings.lanes))
    # K of the step: what is in its second, or later, was counted.
    cursor = cursor_in(F.struct("lanes", "cursor"), lane.cast("string"))
    is_its = (F.col("at_ms") == F.col("now_ms")) & (F.col("of_shard") == F.col("shard"))
    # At rest several steps have one time.
    is_its &= quota_field("pending", F.try_element_at("quotas", F.col("about"))) == F.col("counted")
    placed = gates.join(steps.where("may_gate"), is_its).select(
        *("shard", "about", "at_ms", "counted", "gates", "offset", "step"),
        F.col("offsets").alias("reached"),
        F.get(cursor, F.lit(0)).alias("cursor_ms"),
        (F.floor(F.get(cursor, F.lit(0)) / 1000) * 1000).alias("since_ms"),
    )
    stored = logged.where("stored").select(
        F.col("partition").alias("m_partition"),
        F.col("offset").alias("m_offset"),
        *("topic", "rank_ms", "append_ms"),
        # What a reschedule holds is not counted.
        F.when(is_true(F.col("is_held")), -1).otherwise(F.col("killed_by")).alias("killed_by"),
    )
    partition = F.col("m_partition").cast("int")
    gate, reached = F.get("gates", partition), F.get("reached", partition)
    killed_by = F.coalesce("killed_by", F.lit(1 << 62))
    is_here = F.col("m_offset") < gate
    is_late = F.col("rank_ms") >= F.col("since_ms")
    is_counted = (F.col("topic") == F.col("about")) & is_here & is_late
    if not is_alone:
        # Whoever lags counts what others have passed, and reads their partitions as it does.
        ahead_ms = AHEAD_MS + rest_end_ms(0, bounds.shards)
        is_far = gate.isNull() & (F.col("append_ms") <= F.col("at_ms") + ahead_ms)
        is_counted = (F.col("topic") == F.col("about")) & (is_true(is_here) | is_far)
    # Of what came out before it was killed, a node may have forgotten that it was killed.
    is_out = (F.col("rank_ms") <= F.col("cursor_ms")) & (killed_by >= 0)
    may_count = (killed_by >= reached) | is_out | gate.isNull()
    joined = F.broadcast(placed).join(stored, is_counted, "left")
    counted = joined.groupBy(*("shard", "about", "at_ms", "counted", "offset", "step")).agg(
        F.count_if(F.col("m_offset").isNotNull() & may_count).alias("most"),
        F.count_if((F.col("m_offset") < reached) & (killed_by >= gate) & is_late).alias("least"),
    )
    is_trimmed = any(bounds.buffer_starts)
    is_wrong = (F.col("counted") < F.col("least")) | (
        (F.col("counted") > F.col("most")) & F.lit(not is_trimmed)
    )
    text = F.format_string(
        "step %d has counted %d messages pending for %s, and by the log there were %d to %d",
        *("step", "counted", "about", "least", "most"),
    )
    why = F.when(is_wrong, F.concat(F.lit("count "), F.col("at_ms").cast("string")))
    return _found(counted.withColumn("topic", F.col("about")), why, text)


assert opens_at(25) == 23 and opens_at(3) == 2, "what _of_states computes anew"
