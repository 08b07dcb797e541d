"""The rules about ids, replayed from the log alone: what is stored, refused, killed, continued.

All requests about an id lie in one partition of the buffer. They are brought together and folded
in the order of their offsets; what has no id is decided on its own. Nothing is ever forgotten here:
the rules give the same answers to nodes that forget sooner or later.

A message is *live* from when it is stored until it is killed or continued. So a cancel marker kills
all that was stored under its id since the cancel marker before it, except what was continued by
then or has been evicted from the 64 live messages that are kept. A replace with a due time of its
own that is sent again, while what the first one stored is live, is a duplicate with a verdict.

It shares nothing with `replication/` but the cluster's settings.
Source: docs/reference/requests.md, "Operations"; docs/design/frontier.md, "Ids".
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from delayd.audit.judging.columns import PLACE, as_table, few, is_true, padded
from delayd.audit.judging.debounces import (
    due_ms,
    gives_way,
    is_quiet,
    left_live,
    run_ms,
    takes_held,
)
from delayd.audit.judging.debounces import waits as waits_for_its_turn
from delayd.audit.judging.folding import (
    KILL,
    UNDONE,
    empty,
    killed_last,
    latest,
    let,
    offsets,
    undone_after,
    with_killers,
)
from delayd.audit.judging.held import HELD, LIVE, MOVES, UNMOVED, counting, held_after, move, moved
from delayd.audit.judging.request_counts import ALL_KINDS, Kinds, RequestCounts
from delayd.audit.tables import LOGGED
from replication.settings import Settings

REDRIVES_MAX: Final = 32
REDRIVE_MEMORY_MS: Final = 30 * 24 * 60 * 60 * 1000

CHUNK: Final = 256
"""Requests folded at a time: appending to an array copies it, so long arrays are made of chunks."""

_KILLED: Final = "due_ms bigint, offset bigint"
_DOOMED: Final = "due_ms bigint, offset bigint, digest bigint"
_REPLACED: Final = "offset bigint, log_ms bigint, killed array<bigint>"
_DECISION: Final = (
    "stored boolean, answer string, is_refused boolean, killed array<bigint>,"
    " killed_before array<bigint>, repeats bigint, repeats_ms bigint, marks int,"
    " is_held boolean, new_dues_ms array<bigint>, is_quiet boolean, own_rank_ms bigint"
)


def logged_of(
    requests: DataFrame, settings: Settings, counts: RequestCounts | None = None
) -> DataFrame:
    """Return requests, and what became of each by the rules (tables.LOGGED).

    Without `counts` of them it counts the continuations first, to know how to join them.
    """
    continuations = None if counts is None else counts.continuations
    asked = requests.where(~F.col("op").isin("switch", "hold", "quota", "gate"))
    linked = _with_continued_by(asked, continuations)
    is_redrive = F.col("op") == "redrive"
    has_id = F.col("id").isNotNull() & (F.col("op") != "reject")
    named, alone = linked.where(has_id & ~is_redrive), linked.where(~is_redrive & ~has_id)
    if counts is not None and counts.redrives == 0:
        never = F.lit(None).cast("string").alias("again")
        named, alone = named.select("*", never), alone.select("*", never)
    else:
        redrives = _with_again(linked.where(is_redrive))
        named = named.unionByName(redrives.where("id is not null"), allowMissingColumns=True)
        # What has no id is decided on its own.
        alone = alone.unionByName(redrives.where("id is null"), allowMissingColumns=True)
    is_again = F.col("again") != "no"
    decided = padded(
        alone,
        LOGGED,
        stored=F.col("op").isin("schedule", "continue") | is_true(~is_again),
        answer=F.when(is_again, "duplicate"),
        is_refused=F.lit(False),
    )
    kinds = ALL_KINDS if counts is None else counts.kinds
    return decided.unionByName(_replayed(named, settings, kinds))


def _with_continued_by(requests: DataFrame, count: int | None) -> DataFrame:
    """Return each record with the offset of what continues it. Counts what does, if `count` is not
    known."""
    continuations = requests.where(F.col("op") == "continue")
    if count is None:
        count = continuations.count()
    if count == 0:
        nothing = {"continued_by": F.lit(None).cast("bigint"), "is_followed": F.lit(None) == 1}
        return requests.withColumns(nothing)
    links = continuations.groupBy("partition", F.col("continues").alias("offset")).agg(
        F.min("offset").alias("continued_by"), F.min_by("follows", "offset").alias("is_followed")
    )
    return requests.join(few(links, count), PLACE, "left")


def _with_again(redrives: DataFrame) -> DataFrame:
    """Return redrives, and whether their source was redriven within the memory: `no`, `yes`; or
    `likely`, where all of a source are under one id, and an earlier one may have been a conflict
    there."""
    grouped = _gathered(redrives, "redrive")
    last = F.lit(None).cast("bigint")
    nothing = F.struct(last.alias("last_ms"), empty("boolean").alias("again"))

    def take(state: Column, row: Column) -> Column:
        is_again = is_true(state["last_ms"] + REDRIVE_MEMORY_MS >= row["log_ms"])
        return F.struct(
            F.when(is_again, state["last_ms"]).otherwise(row["log_ms"]).alias("last_ms"),
            F.array_append(state["again"], is_again).alias("again"),
        )

    again = F.aggregate("rows", nothing, take, lambda state: state["again"])
    ids = F.array_distinct(F.transform("rows", lambda row: row["id"]))
    is_of_one = (F.size(ids) == 1) & F.get(ids, F.lit(0)).isNotNull()
    zipped = F.arrays_zip("rows", again.alias("again"))
    taken = grouped.select(is_of_one.alias("is_of_one"), F.explode(zipped).alias("each"))
    word = F.when(F.col("is_of_one"), "likely").otherwise("yes")
    again = F.when(F.col("each.again"), word).otherwise("no")
    return taken.select("each.rows.*", again.alias("again"))


def _replayed(named: DataFrame, settings: Settings, kinds: Kinds) -> DataFrame:
    """Return rows with an id, decided in the order of their offsets."""
    grouped = _gathered(named, "id")
    alone = F.array(_alone(F.get("rows", F.lit(0))))
    fold = _fold(F.col("rows"), settings, kinds)
    decisions = F.when(F.size("rows") == 1, alone).otherwise(fold)
    each = F.explode(F.arrays_zip("rows", decisions.alias("decisions")))
    decided = grouped.select(each.alias("each")).select("each.rows.*", "each.decisions.*")
    due = {name: F.coalesce("own_rank_ms", name) for name in ("due_ms", "planned_ms", "rank_ms")}
    return as_table(decided, LOGGED, **due)


def _gathered(rows: DataFrame, name: str) -> DataFrame:
    """Return rows of one partition and name as one array, `rows`, in the order of their offsets."""
    others = [column for column in rows.columns if column != "offset"]
    gathered = F.sort_array(F.collect_list(F.struct("offset", *others)))
    return rows.groupBy("partition", name).agg(gathered.alias("rows"))


def _alone(row: Column) -> Column:
    """Return the decision about the only request under an id."""
    op = row["op"]
    is_mark = op.isin("cancel", "replace", "debounce", *MOVES)
    is_again = (op == "redrive") & (row["again"] != "no")
    nothing = F.when(is_mark, empty("bigint"))
    return F.struct(
        (~op.isin("cancel", *MOVES) & ~is_again).alias("stored"),
        F.when(is_again, "duplicate").alias("answer"),
        F.lit(False).alias("is_refused"),
        F.lit(None).cast("bigint").alias("killed_by"),
        F.lit(None).cast("bigint").alias("killed_ms"),
        F.lit(None).cast("string").alias("killed_op"),
        nothing.alias("killed"),
        nothing.alias("killed_before"),
        F.lit(None).cast("bigint").alias("repeats"),
        F.lit(None).cast("bigint").alias("repeats_ms"),
        F.lit(None).cast("boolean").alias("is_held"),
        F.when(op.isin(*MOVES), empty("bigint")).alias("new_dues_ms"),
        F.when(op.isin(*MOVES), F.lit(False)).alias("is_taken"),
        F.when(op == "debounce", F.lit(True)).alias("is_quiet"),
        F.lit(None).cast("bigint").alias("own_rank_ms"),
    )


def _fold(rows: Column, settings: Settings, kinds: Kinds) -> Column:
    """Return the decisions about all requests under an id, in their order. Rules about `kinds` that
    are not there are left out: to plan all of them takes seconds."""
    count = F.size(rows)
    numbers = F.sequence(F.lit(0), F.floor((count - 1) / CHUNK).cast("int"))
    chunks = F.transform(numbers, lambda number: F.slice(rows, number * CHUNK + 1, CHUNK))
    start = F.struct(
        empty(f"struct<{LIVE}>").alias("live"),
        empty(f"struct<{HELD}>").alias("held"),
        F.lit(None).cast("bigint").alias("held_by"),
        empty(f"struct<{_KILLED}>").alias("killed"),
        empty(f"struct<{_DOOMED}>").alias("doomed"),
        empty(f"struct<{UNDONE}>").alias("undone"),
        F.lit(None).cast(f"struct<{_REPLACED}>").alias("replaced"),
        F.lit(0).alias("marks"),
        empty(f"struct<{KILL}>").alias("kills"),
        empty(f"struct<{_DECISION}>").alias("decisions"),
    )

    def take(state: Column, row: Column) -> Column:
        return let(
            _outcome(state, row, settings, kinds),
            lambda what: _after(state, row, what, settings, kinds),
        )

    def take_chunk(state: Column, chunk: Column) -> Column:
        begun = state.withField("kills", empty(f"struct<{KILL}>")).withField(
            "decisions", empty(f"struct<{_DECISION}>")
        )
        return let(
            F.aggregate(chunk, begun, take),
            lambda after: after.withField(
                "kills", F.concat(state["kills"], after["kills"])
            ).withField("decisions", F.concat(state["decisions"], after["decisions"])),
        )

    return F.aggregate(chunks, start, take_chunk, lambda state: with_killers(rows, state, kinds))


def _outcome(state: Column, row: Column, settings: Settings, kinds: Kinds) -> Column:
    """Return what becomes of a request: `stored`, `duplicate`, `conflict`, `mark`, `refused`, or
    `again` of a replace."""
    op, live, log_ms = row["op"], state["live"], row["log_ms"]
    pending = F.filter(
        live, lambda message: (message["due_ms"] > log_ms) | is_true(message["goes_on"])
    )
    kept = counting(state["held"], row, settings) if kinds.moves else None

    def is_same_one(message: Column) -> Column:
        return message["digest"].eqNullSafe(row["sent_hash"])

    is_same, count = F.exists(pending, is_same_one), F.size(pending)
    if kept is not None:
        is_same, count = is_same | F.exists(kept, is_same_one), count + F.size(kept)
    schedule = F.when(count == 0, "stored").when(is_same, "duplicate").otherwise("conflict")
    is_recent = row["planned_ms"] + settings.id_memory_ms >= log_ms
    is_repeated = F.exists(
        live,
        lambda each: (
            (each["origin"] == state["replaced"]["offset"])
            & each["digest"].eqNullSafe(row["sent_hash"])
            & (is_recent | (each["offset"] == each["origin"]))
            & (each["due_ms"] + settings.id_memory_ms >= log_ms)
        ),
    )
    what = (
        F.when(op == "schedule", schedule)
        .when(_is_repeatable(row) & is_repeated, "again")
        .when(op.isin("cancel", "replace"), "mark")
    )
    if kinds.debounces:
        what = what.when(op == "debounce", "debounce")
    if kinds.moves:
        what = what.when(op.isin(*MOVES), move(state, row, pending, settings))
    if kinds.redrives:
        what = what.when(op == "redrive", _redriven(state, row, count))
    return what.otherwise(_continued(state, row, settings, kinds)) if kinds.continuations else what


def _redriven(state: Column, row: Column, count: Column) -> Column:
    """Return what becomes of a redrive, where `count` messages take the id."""
    undone = F.filter(state["undone"], lambda each: each["source"] == row["redrive"])
    is_again = F.when(
        (row["again"] != "yes") & (F.size(undone) > 0),
        is_true(F.get(undone, F.lit(0))["last_ms"] + REDRIVE_MEMORY_MS >= row["log_ms"]),
    ).otherwise(row["again"] != "no")
    refused = F.when(is_again, "duplicate").when(count >= REDRIVES_MAX, "conflict")
    return refused.otherwise("stored")


def _continued(state: Column, row: Column, settings: Settings, kinds: Kinds) -> Column:
    """Return what becomes of a continuation."""
    last_ms = F.when(row["is_steady"], row["log_ms"]).otherwise(0)
    is_doomed = F.exists(
        state["doomed"],
        lambda each: (
            (each["offset"] == row["continues"])
            & (each["due_ms"] + settings.id_memory_ms >= last_ms)
        ),
    )
    plain = F.when(is_doomed, "refused").otherwise("stored")
    if not kinds.moves:
        return plain
    is_held = F.exists(state["held"], lambda it: it["offset"] == row["continues"])
    is_moved = is_true(row["moved_by"].eqNullSafe(state["held_by"]) | row["follows"])
    held = F.when(is_moved, "stored").otherwise("held")
    return F.when(is_held & is_doomed, held).otherwise(plain)


def _is_repeatable(row: Column) -> Column:
    """Is it a replace that is the same request when it is sent again?"""
    return is_true((row["op"] == "replace") & row["is_steady"] & row["has_own_time"])


def _after(state: Column, row: Column, what: Column, settings: Settings, kinds: Kinds) -> Column:
    """Return the state after a request of which `what` became."""
    id_memory_ms = settings.id_memory_ms
    killed, live, none = state["killed"], state["live"], F.lit(False)
    is_stored, is_mark = what == "stored", what == "mark"
    is_move = what == "move" if kinds.moves else none
    is_debounce = what == "debounce" if kinds.debounces else none
    is_kill = is_mark
    if kinds.moves:
        is_mark = is_kill = is_move | is_mark
        of_held = F.transform(state["held"], lambda each: each.dropFields("new_ms"))
        live = F.when(is_mark, F.concat(of_held, live)).otherwise(live)
    if kinds.debounces:
        gives = gives_way(state, row, settings, kinds)
        live = F.when(is_debounce, gives).otherwise(live)
        is_kill = is_mark | (is_debounce & (F.size(live) > 0))
        is_mark |= is_debounce
    kill = F.struct(row["offset"], row["append_ms"], row["op"], offsets(live))
    marks = state["marks"] + is_kill.cast("int")
    of_move = moved(state, row, settings.max_delay_ms) if kinds.moves else None
    decision = _decided(state, row, what, live, marks, of_move, kinds)
    message, others = _stored(live, state, row, is_stored, kinds)
    after_mark = _after_mark(state, row, live, message, settings, kinds)
    killed_after = killed_last(live, killed, row["log_ms"], id_memory_ms)
    after_mark["killed"] = F.when(is_kill & ~is_move, killed_after).otherwise(killed)
    after_mark["kills"] = F.when(
        is_kill, F.array_append(state["kills"], kill.cast(f"struct<{KILL}>"))
    ).otherwise(state["kills"])
    after = {name: F.when(is_mark, it).otherwise(state[name]) for name, it in after_mark.items()}
    after["live"] = F.when(
        is_stored, latest(F.array_sort(F.array_append(others, message)))
    ).otherwise(after["live"])
    decisions = F.array_append(state["decisions"], decision.cast(f"struct<{_DECISION}>"))
    held = held_by = None
    if of_move is not None:
        is_free = is_mark & (~is_debounce | takes_held(state, row, settings))
        kept = held_after(state["held"], row, message, what == "held")
        held = F.when(is_move, of_move).when(is_free, empty(f"struct<{HELD}>")).otherwise(kept)
        held_by = F.when(is_move, row["offset"]).when(~is_free, state["held_by"])
    undone = undone_after(state["undone"], row, what) if kinds.redrives else state["undone"]
    return F.struct(
        after["live"].alias("live"),
        (state["held"] if held is None else held).alias("held"),
        (state["held_by"] if held_by is None else held_by).alias("held_by"),
        *(after.get(name, state[name]).alias(name) for name in ("killed", "doomed")),
        undone.alias("undone"),
        *(after["replaced"].alias("replaced"), marks.alias("marks")),
        *(after["kills"].alias("kills"), decisions.alias("decisions")),
    )


def _after_mark(
    state: Column, row: Column, live: Column, message: Column, settings: Settings, kinds: Kinds
) -> dict[str, Column]:
    """Return what a mark leaves live, doomed and replaced; `live`: what it kills."""
    last = F.struct(row["offset"], row["log_ms"], offsets(live)).cast(f"struct<{_REPLACED}>")
    left = F.when(row["op"] == "replace", F.array(message)).otherwise(empty(f"struct<{LIVE}>"))
    replaced = F.when(_is_repeatable(row), last)
    after = {"live": left, "replaced": replaced}
    if kinds.debounces:
        is_debounce = row["op"] == "debounce"
        both = latest(F.array_sort(F.array_append(left_live(state, row), message)))
        after["live"] = F.when(is_debounce, both).otherwise(left)
        after["replaced"] = F.when(is_debounce, state["replaced"]).otherwise(replaced)
    if kinds.continuations:
        doomed = F.transform(
            F.filter(live, lambda each: each["is_continued"]),
            lambda each: each.dropFields(
                "is_continued", "origin", "goes_on", "is_local", "since_ms", "waits"
            ),
        )
        after["doomed"] = F.concat(state["doomed"], doomed)
    return after


def _decided(
    state: Column,
    row: Column,
    what: Column,
    live: Column,
    marks: Column,
    of_move: Column | None,
    kinds: Kinds,
) -> Column:
    """Return the decision about a request of which `what` became; `live`: what a marker kills, and
    `of_move`: what a reschedule holds."""
    never = F.lit(None)
    is_mark = what.isin("mark", "move", "debounce")
    stores = row["op"].isin("replace", "debounce")
    killed = state["killed"]
    is_again, replaced = what == "again", state["replaced"]
    new_ms = quiet = own_ms = never
    if of_move is not None:
        new_ms = F.when(what == "move", F.transform(of_move, lambda each: each["new_ms"]))
    if kinds.debounces:
        is_debounce = what == "debounce"
        quiet = F.when(is_debounce, is_quiet(live))
        own_ms = F.when(is_debounce, due_ms(state, row))
    return F.struct(
        what.isin("stored", "held") | (is_mark & stores),
        F.when(is_again, "duplicate").when(what.isin("duplicate", "conflict", *UNMOVED), what),
        what == "refused",
        F.when(is_mark, offsets(live)).when(is_again, replaced["killed"]),
        F.when(is_mark, offsets(killed)).when(is_again, empty("bigint")),
        F.when(is_again, replaced["offset"]),
        F.when(is_again, replaced["log_ms"]),
        marks,
        F.when(what == "held", True),
        *(new_ms, quiet, own_ms),
    )


def _stored(
    live: Column, state: Column, row: Column, is_stored: Column, kinds: Kinds
) -> tuple[Column, Column]:
    """Return a request as a live message, and the live ones beside it: not what it continues."""
    is_continue = (row["op"] == "continue") & is_stored
    digest, rank_ms, since_ms = row["sent_hash"], row["rank_ms"], F.lit(None).cast("bigint")
    if kinds.continuations:
        digests = (
            F.get(F.filter(them, lambda it: it["offset"] == row["continues"]), F.lit(0))["digest"]
            for them in (live, state["doomed"])
        )
        digest = F.when(is_continue, F.coalesce(*digests)).otherwise(digest)
    if kinds.debounces:
        is_debounce = row["op"] == "debounce"
        rank_ms = F.when(is_debounce, due_ms(state, row)).otherwise(rank_ms)
        since_ms = F.when(is_debounce, run_ms(state, row))
    message = F.struct(
        rank_ms.alias("due_ms"),
        row["offset"].alias("offset"),
        digest.alias("digest"),
        row["continued_by"].isNotNull().alias("is_continued"),
        F.when(is_continue, row["origin"]).otherwise(row["offset"]).alias("origin"),
        (is_true(row["goes_on"]) | is_true(row["is_open"])).alias("goes_on"),
        row["is_open"].alias("is_local"),
        since_ms.alias("since_ms"),
        is_true(waits_for_its_turn(row)).alias("waits"),
    )
    if not kinds.continuations:
        return message, live
    others = F.filter(live, lambda message: message["offset"] != row["continues"])
    return message, F.when(is_continue, others).otherwise(live)
