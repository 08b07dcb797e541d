"""The rules about ids, replayed from the log alone: what is stored, refused, killed, continued.

All requests about an id lie in one partition of the buffer. They are brought together and folded
in the order of their offsets; what has no id is decided on its own. Nothing is ever forgotten here:
the rules give the same answers to nodes that forget sooner or later.

A message is *live* from when it is stored until it is killed or continued. So a cancel marker kills
all that was stored under its id since the cancel marker before it, except what was continued by
then or has been evicted from the 64 live messages that are kept.

It shares nothing with `replication/` but the cluster's settings.
Source: docs/reference/requests.md, "Operations"; docs/design/frontier.md, "Ids".
"""

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.judging.columns import as_table
from delayd.audit.judging.joins import few
from delayd.audit.tables import LOGGED, REQUESTS
from replication.settings import Settings

LIVE_MAX: Final = 64
REDRIVES_MAX: Final = 32
REDRIVE_MEMORY_MS: Final = 30 * 24 * 60 * 60 * 1000

CHUNK: Final = 256
"""Requests folded at a time: appending to an array copies it, so long arrays are made of chunks."""

_LIVE: Final = "due_ms bigint, offset bigint, digest bigint, is_continued boolean"
_KILLED: Final = "due_ms bigint, offset bigint"
_KILL: Final = "offset bigint, append_ms bigint, op string, offsets array<bigint>"
_DECISION: Final = (
    "stored boolean, answer string, is_refused boolean, killed array<bigint>,"
    " killed_before array<bigint>, marks int"
)

Let = Callable[[Column], Column]


def logged_of(requests: DataFrame, settings: Settings) -> DataFrame:
    """Return requests, and what became of each by the rules (tables.LOGGED).

    Counts the continuations first, to know how to join them.
    """
    linked = _with_continued_by(requests)
    is_redrive = F.col("op") == "redrive"
    has_id = F.col("id").isNotNull() & (F.col("op") != "reject")
    alone = linked.where(~is_redrive & ~has_id)
    redrives = _with_again(linked.where(is_redrive))
    named = linked.where(has_id & ~is_redrive).withColumn("again", F.lit(None).cast("string"))
    plain = _undecided(alone, stored=F.col("op").isin("schedule", "continue"), answer=F.lit(None))
    again = _undecided(
        redrives.where("id is null"),
        stored=F.col("again") == "no",
        answer=F.when(F.col("again") != "no", "duplicate"),
    )
    return plain.unionByName(again).unionByName(
        _replayed(named.unionByName(redrives.where("id is not null")), settings)
    )


def _with_continued_by(requests: DataFrame) -> DataFrame:
    """Return each record with the offset of what continues it."""
    continuations = requests.where(F.col("op") == "continue")
    count = continuations.count()
    if count == 0:
        return requests.withColumn("continued_by", F.lit(None).cast("bigint"))
    links = continuations.groupBy("partition", F.col("continues").alias("offset")).agg(
        F.min("offset").alias("continued_by")
    )
    return requests.join(few(links, count), ["partition", "offset"], "left")


def _undecided(rows: DataFrame, *, stored: Column, answer: Column) -> DataFrame:
    """Return rows that no id decides about."""
    known = (*REQUESTS.fieldNames(), "continued_by")
    nothing = {name: F.lit(None) for name in LOGGED.fieldNames() if name not in known}
    columns = {"stored": stored, "answer": answer, "is_refused": F.lit(False)}
    return as_table(rows, LOGGED, **(nothing | columns))


def _with_again(redrives: DataFrame) -> DataFrame:
    """Return redrives, and whether their source was redriven within the memory: `no`, `yes`; or
    `likely`, where all of a source are under one id, and an earlier one may have been a conflict
    there."""
    columns = [*REQUESTS.fieldNames(), "continued_by"]
    grouped = _gathered(redrives, columns, "redrive")
    last = F.lit(None).cast("bigint")
    nothing = F.struct(last.alias("last_ms"), _empty("boolean").alias("again"))

    def take(state: Column, row: Column) -> Column:
        is_again = F.coalesce(state["last_ms"] + REDRIVE_MEMORY_MS >= row["log_ms"], F.lit(False))
        return F.struct(
            F.when(is_again, state["last_ms"]).otherwise(row["log_ms"]).alias("last_ms"),
            F.array_append(state["again"], is_again).alias("again"),
        )

    again = F.aggregate("rows", nothing, take, lambda state: state["again"])
    ids = F.array_distinct(F.transform("rows", lambda row: row["id"]))
    is_of_one = (F.size(ids) == 1) & F.get(ids, F.lit(0)).isNotNull()
    zipped = F.arrays_zip("rows", again.alias("again"))
    taken = grouped.select(is_of_one.alias("is_of_one"), F.explode(zipped).alias("each"))
    row, is_again = F.col("each")["rows"], F.col("each")["again"]
    word = F.when(F.col("is_of_one"), "likely").otherwise("yes")
    return taken.select(
        *(row[name].alias(name) for name in columns),
        F.when(is_again, word).otherwise("no").alias("again"),
    )


def _replayed(named: DataFrame, settings: Settings) -> DataFrame:
    """Return rows with an id, decided in the order of their offsets."""
    columns = [*REQUESTS.fieldNames(), "continued_by", "again"]
    grouped = _gathered(named, columns, "id")
    first = F.get("rows", F.lit(0))
    alone = F.array(_alone(first))
    fold = _fold(F.col("rows"), settings.id_memory_ms)
    decisions = F.when(F.size("rows") == 1, alone).otherwise(fold)
    zipped = F.arrays_zip("rows", decisions.alias("decisions"))
    each = grouped.select(F.explode(zipped).alias("each"))
    row, decision = F.col("each")["rows"], F.col("each")["decisions"]
    decided = [name for name in LOGGED.fieldNames() if name not in columns]
    table = each.select(
        *(row[name].alias(name) for name in columns),
        *(decision[name].alias(name) for name in decided),
    )
    return as_table(table, LOGGED)


def _gathered(rows: DataFrame, columns: list[str], name: str) -> DataFrame:
    """Return rows of one partition and name as one array, `rows`, in the order of their offsets."""
    others = [column for column in columns if column != "offset"]
    gathered = F.sort_array(F.collect_list(F.struct("offset", *others)))
    return rows.groupBy("partition", name).agg(gathered.alias("rows"))


def _alone(row: Column) -> Column:
    """Return the decision about the only request under an id."""
    op = row["op"]
    is_mark = op.isin("cancel", "replace")
    is_again = (op == "redrive") & (row["again"] != "no")
    nothing = F.when(is_mark, _empty("bigint"))
    return F.struct(
        ((op != "cancel") & ~is_again).alias("stored"),
        F.when(is_again, "duplicate").alias("answer"),
        F.lit(False).alias("is_refused"),
        F.lit(None).cast("bigint").alias("killed_by"),
        F.lit(None).cast("bigint").alias("killed_ms"),
        F.lit(None).cast("string").alias("killed_op"),
        nothing.alias("killed"),
        nothing.alias("killed_before"),
    )


def _fold(rows: Column, id_memory_ms: int) -> Column:
    """Return the decisions about all requests under an id, in their order."""
    count = F.size(rows)
    numbers = F.sequence(F.lit(0), F.floor((count - 1) / CHUNK).cast("int"))
    chunks = F.transform(numbers, lambda number: F.slice(rows, number * CHUNK + 1, CHUNK))
    start = F.struct(
        _empty(f"struct<{_LIVE}>").alias("live"),
        _empty(f"struct<{_KILLED}>").alias("killed"),
        _empty("bigint").alias("doomed"),
        _empty("struct<source string, last_ms bigint>").alias("undone"),
        F.lit(0).alias("marks"),
        _empty(f"struct<{_KILL}>").alias("kills"),
        _empty(f"struct<{_DECISION}>").alias("decisions"),
    )

    def take(state: Column, row: Column) -> Column:
        return _let(_outcome(state, row), lambda what: _after(state, row, what, id_memory_ms))

    def take_chunk(state: Column, chunk: Column) -> Column:
        begun = state.withField("kills", _empty(f"struct<{_KILL}>")).withField(
            "decisions", _empty(f"struct<{_DECISION}>")
        )
        return _let(
            F.aggregate(chunk, begun, take),
            lambda after: after.withField(
                "kills", F.concat(state["kills"], after["kills"])
            ).withField("decisions", F.concat(state["decisions"], after["decisions"])),
        )

    return F.aggregate(chunks, start, take_chunk, lambda state: _killed(rows, state))


def _outcome(state: Column, row: Column) -> Column:
    """Return what becomes of a request: `stored`, `duplicate`, `conflict`, `mark`, `refused`."""
    op, live, log_ms = row["op"], state["live"], row["log_ms"]
    is_taken = F.exists(live, lambda message: message["due_ms"] > log_ms)
    is_same = F.exists(
        live,
        lambda message: (
            (message["due_ms"] > log_ms) & message["digest"].eqNullSafe(row["sent_hash"])
        ),
    )
    schedule = F.when(~is_taken, "stored").when(is_same, "duplicate").otherwise("conflict")
    undone = F.filter(state["undone"], lambda each: each["source"] == row["redrive"])
    is_again = F.when(
        (row["again"] != "yes") & (F.size(undone) > 0),
        F.coalesce(F.get(undone, F.lit(0))["last_ms"] + REDRIVE_MEMORY_MS >= log_ms, F.lit(False)),
    ).otherwise(row["again"] != "no")
    pending = F.filter(live, lambda message: message["due_ms"] > log_ms)
    redrive = (
        F.when(is_again, "duplicate")
        .when(F.size(pending) >= REDRIVES_MAX, "conflict")
        .otherwise("stored")
    )
    is_doomed = F.array_contains(state["doomed"], row["continues"])
    return (
        F.when(op == "schedule", schedule)
        .when(op.isin("cancel", "replace"), "mark")
        .when(op == "redrive", redrive)
        .otherwise(F.when(is_doomed, "refused").otherwise("stored"))
    )


def _after(state: Column, row: Column, what: Column, id_memory_ms: int) -> Column:
    """Return the state after a request of which `what` became."""
    op, live, killed = row["op"], state["live"], state["killed"]
    is_mark, is_stored = what == "mark", what == "stored"
    is_continue = (op == "continue") & is_stored
    others = F.when(
        is_continue, F.filter(live, lambda message: message["offset"] != row["continues"])
    ).otherwise(live)
    continued = F.filter(live, lambda message: message["offset"] == row["continues"])
    message = F.struct(
        row["rank_ms"].alias("due_ms"),
        row["offset"].alias("offset"),
        F.when(is_continue, F.get(continued, F.lit(0))["digest"])
        .otherwise(row["sent_hash"])
        .alias("digest"),
        row["continued_by"].isNotNull().alias("is_continued"),
    )
    is_replace = op == "replace"
    after_mark = F.when(is_replace, F.array(message)).otherwise(_empty(f"struct<{_LIVE}>"))
    offsets = F.transform(live, lambda each: each["offset"])
    doomed = F.transform(
        F.filter(live, lambda each: each["is_continued"]), lambda each: each["offset"]
    )
    kill = F.struct(row["offset"], row["append_ms"], op, offsets)
    is_undone = (what == "conflict") & (op == "redrive")
    redriven = F.struct(row["redrive"], F.when(is_stored, row["log_ms"])).cast(
        "struct<source string, last_ms bigint>"
    )
    knows_redrive = F.exists(state["undone"], lambda each: each["source"] == row["redrive"])
    decision = F.struct(
        (is_stored | (is_mark & is_replace)),
        F.when(what.isin("duplicate", "conflict"), what),
        what == "refused",
        F.when(is_mark, offsets),
        F.when(is_mark, F.transform(killed, lambda each: each["offset"])),
        state["marks"] + is_mark.cast("int"),
    )
    return F.struct(
        F.when(is_mark, after_mark)
        .when(is_stored, _last(F.array_sort(F.array_append(others, message))))
        .otherwise(live)
        .alias("live"),
        F.when(is_mark, _killed_last(live, killed, row["log_ms"], id_memory_ms))
        .otherwise(killed)
        .alias("killed"),
        F.when(is_mark, F.concat(state["doomed"], doomed))
        .otherwise(state["doomed"])
        .alias("doomed"),
        F.when(
            is_undone | ((op == "redrive") & is_stored & knows_redrive),
            F.array_append(
                F.filter(state["undone"], lambda each: each["source"] != row["redrive"]), redriven
            ),
        )
        .otherwise(state["undone"])
        .alias("undone"),
        (state["marks"] + is_mark.cast("int")).alias("marks"),
        F.when(is_mark, F.array_append(state["kills"], kill.cast(f"struct<{_KILL}>")))
        .otherwise(state["kills"])
        .alias("kills"),
        F.array_append(state["decisions"], decision.cast(f"struct<{_DECISION}>")).alias(
            "decisions"
        ),
    )


def _killed_last(live: Column, killed: Column, log_ms: Column, id_memory_ms: int) -> Column:
    """Return the last killed set after a cancel marker. What was due longer ago than ids are
    remembered is added to it, and does not displace it."""
    now = F.transform(
        live, lambda each: F.struct(each["due_ms"].alias("due_ms"), each["offset"].alias("offset"))
    )
    is_remembered = F.exists(live, lambda each: each["due_ms"] + id_memory_ms >= log_ms)
    return F.when(is_remembered, now).otherwise(_last(F.concat(killed, now)))


def _killed(rows: Column, state: Column) -> Column:
    """Return the decisions, with the cancel marker that killed each: the first one after it, if it
    lists it."""

    def finish(decision: Column, row: Column) -> Column:
        kill = F.get(state["kills"], decision["marks"])
        is_killed = decision["stored"] & F.array_contains(kill["offsets"], row["offset"])
        return F.struct(
            *(decision[name].alias(name) for name in ("stored", "answer", "is_refused")),
            F.when(is_killed, kill["offset"]).alias("killed_by"),
            F.when(is_killed, kill["append_ms"]).alias("killed_ms"),
            F.when(is_killed, kill["op"]).alias("killed_op"),
            *(decision[name].alias(name) for name in ("killed", "killed_before")),
        )

    return F.zip_with(state["decisions"], rows, finish)


def _last(items: Column) -> Column:
    """Return at most LIVE_MAX, from the end."""
    return F.when(F.size(items) > LIVE_MAX, F.slice(items, -LIVE_MAX, LIVE_MAX)).otherwise(items)


def _let(value: Column, body: Let) -> Column:
    """Return `body` of a value that is computed once, however often `body` uses it."""
    return F.get(F.transform(F.array(value), body), F.lit(0))


def _empty(kind: str) -> Column:
    return F.array().cast(f"array<{kind}>")
