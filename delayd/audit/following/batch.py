"""One batch: from the records of a stream to its entry in the journal.

    1. is it in the journal already, with the same end? then only tell its alarms
    2. what has come: requests, deliveries, letters, receipts, the newest frontier
    3. rules.py and alarms.py
    4. the changed rows into a folder, the entry into the journal: from then on it counts
    5. tell alarms, write metrics, name new targets for the reader, remove what is not needed

Invariants: whatever is done before 4 can be done again; whatever is done after it too.
"""

import shutil
from collections import Counter
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from delayd.audit.errors import FollowFailedError
from delayd.audit.following import alarms, rules
from delayd.audit.following.alarm_log import AlarmLog
from delayd.audit.following.batch_context import BatchContext
from delayd.audit.following.batch_header import check_next, check_same, header_of
from delayd.audit.following.journal import ALARMS_MAX, Entry, Journal
from delayd.audit.following.metrics import metrics_of
from delayd.audit.following.watched_requests import Folders, Watched, remembered
from delayd.audit.judging.columns import GIVEN_UP, NO_OCCURRENCE, named_place
from delayd.audit.judging.evidence import deliveries_of, letters_of, receipts_of
from delayd.audit.judging.quotas import Full, full_after, full_at, full_of, quotas_of, refused_by
from delayd.audit.judging.requests import barriers_of, requests_of
from delayd.audit.reading.positions import Positions
from delayd.audit.reading.shard_records import advanced, frontier_in, records_in
from delayd.runtime.atomic_file import write_atomically
from delayd.runtime.clock import Clock
from replication.record import decode
from replication.rules import Rules
from replication.settings import RULES_VERSION, Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGETS_MAX: Final = 10_000

COUNTS: Final = ("requests", "delivered", "pending", "lost")

_USERS_OPS: Final = ("schedule", "replace", "redrive", "debounce")


class Batches:
    """The judge of one batch after the other; Spark calls it."""

    def __init__(
        self,
        spark: "SparkSession",
        settings: Settings,
        work: Path,
        metrics: Path | None,
        alarm_log: AlarmLog,
        clock: Clock,
        rules: Rules | None = None,
    ) -> None:
        """`work` keeps what has to be known after a restart; in its `targets` are the names of the
        known targets, one a line."""
        self._spark = spark
        self._settings = settings
        self._rules = Rules(settings.rules_version) if rules is None else rules
        self._targets = work / "targets"
        self._metrics = metrics
        self._alarm_log = alarm_log
        self._clock = clock
        self._watched = Watched(spark, work / "state")
        self._journal = Journal(work / "journal")
        self._tables = Tables(spark, work / "batch")

    def resume(self) -> None:
        """Tell what an earlier run did not come to tell."""
        newest = self._journal.newest()
        if newest is not None:
            self._rules = self._rules.with_barriers(newest.barriers)
            self._finish(newest)

    def judge(self, records: DataFrame, batch: int) -> None:
        """Judge one batch. Idempotent. Raises FollowFailedError if it does not continue the
        journal."""
        before = self._journal.newest()
        if before is not None and before.batch >= batch:
            check_same(before, batch, records)
            self._finish(before)
            return
        begun_ms = self._clock.monotonic_ms()
        self._tables.empty()
        read = records.persist()
        try:
            full = None if before is None else full_of(before.full)
            came = _Came(read, self._settings, self._rules, full, self._tables)
            check_next(before, batch, came.header.start)
            self._rules = came.rules
            entry = self._judged(came, batch, before)
        finally:
            self._tables.empty()
            read.unpersist()
        entry = replace(entry, took_ms=self._clock.monotonic_ms() - begun_ms)
        self._journal.write(entry)
        self._finish(entry)

    def _judged(self, came: "_Came", batch: int, before: Entry | None) -> Entry:
        entry = _begun(batch, before, came)
        context = _context(entry, before, self._settings)
        stood = self._stood(came, entry.folders, context)
        places = None if came.deliveries is None else alarms.places_of(came.deliveries)
        rows = rules.settled(stood, places, came.letters, context)
        name, folders, counts = f"change-{batch}", entry.folders, dict.fromkeys(COUNTS, 0)
        count = self._watched.write(rows, name, batch)
        if count:
            rows = self._watched.read_all(name, rows.schema)
            counts = _counts(rows)
            folders = folders.with_change(name, count)
        if folders.is_base_due:
            base = f"base-{batch}"
            whole = remembered(self._watched.read(folders), context.at_ms)
            folders = Folders(base, self._watched.write(whole, base, batch))
        found = [alarms.of_losses(rows)] if counts["lost"] else []
        if came.deliveries is not None:
            found.append(alarms.of_deliveries(came.deliveries, stood, context))
        if came.claims is not None:
            topic = self._settings.receipts.name
            found.append(alarms.of_claims(came.claims, stood, topic))
        by_fault, examples = _alarms(found)
        return replace(
            entry,
            folders=folders,
            alarms=examples,
            found=dict(Counter(entry.found) + by_fault),
            requests=entry.requests + counts["requests"],
            delivered=entry.delivered + counts["delivered"],
            pending=entry.pending + counts["pending"],
        )

    def _stood(self, came: "_Came", folders: Folders, context: BatchContext) -> DataFrame:
        """Return the rows that the batch may change, as they stand before its deliveries."""
        kept = self._tables.kept
        watched = self._watched.read(folders)
        is_small = came.count <= rules.SMALL_ROWS
        rows = rules.touched(
            watched, came.requests, came.named, came.claims, context, is_small=is_small
        )
        if came.requests is not None:
            rows = kept("old", rows)
        rows = rules.relogged(rows, came.requests, context)
        rows = rules.standing(rules.claimed(rows, came.claims), context)
        is_idle = came.requests is None and came.deliveries is None and came.claims is None
        return rows if is_idle else kept("stood", rows)

    def _finish(self, entry: Entry) -> None:
        self._alarm_log.tell(entry)
        if self._metrics is not None:
            write_atomically(self._metrics, metrics_of(entry))
        write_atomically(self._targets, "".join(f"{name}\n" for name in entry.targets))
        self._watched.keep(entry.folders.names)


class Tables:
    """Steps of a batch, each computed once and kept in a file: a plan that goes through all of
    them would take Spark longer to think about than the work."""

    def __init__(self, spark: "SparkSession", root: Path) -> None:
        self._spark = spark
        self._root = root

    def empty(self) -> None:
        """Remove what was kept."""
        shutil.rmtree(self._root, ignore_errors=True)

    def kept(self, name: str, table: DataFrame) -> DataFrame:
        """Compute a table and return it as read from its file."""
        file = str(self._root / name)
        table.write.mode("overwrite").parquet(file)
        return self._spark.read.schema(table.schema).parquet(file)


class _Came:
    """What a batch brought; a table is None if there is nothing of its kind."""

    def __init__(
        self,
        records: DataFrame,
        settings: Settings,
        known: Rules,
        full: Full | None,
        tables: Tables,
    ) -> None:
        self.settings = settings
        self.full = full or {}
        """Targets that are full behind the batch, by partition; at first those before it."""
        counts = {row["topic"]: row["count"] for row in records.groupBy("topic").count().collect()}
        self.count = sum(counts.values())
        self.header, self.frontiers = header_of(records, settings)
        own = {topic.name for topic in settings.topics} | {""}
        buffer, letters, receipts = (
            records.where(F.col("topic") == name) if name in counts else None
            for name in (settings.buffer.name, settings.dead.name, settings.receipts.name)
        )
        self.requests = self.deliveries = self.letters = self.claims = None
        self.rules = known
        """What is known of the rules of each place, with the barriers of this batch."""
        self.newest = {each.shard: each.text for each in self.frontiers}
        """Of the shards that have made steps."""
        for text in self.newest.values():
            self.rules = self.rules.with_barriers(decode(text.encode()).barriers)
        if full is None and self.frontiers:
            watched = records_in(self.header.end.watch)
            self.full = full_at(decode(text.encode()) for text in watched)
        if buffer is not None:
            self.requests = self._requests(buffer, tables)
        if counts.keys() - own:
            targets = records.where(~F.col("topic").isin(*own))
            self.deliveries = tables.kept("deliveries", deliveries_of(targets))
        if letters is not None:
            over = letters_of(letters).where(F.col("reason").isin(*GIVEN_UP, NO_OCCURRENCE))
            self.letters = tables.kept("letters", _places(over))
        if receipts is not None:
            self.claims = tables.kept("claims", rules.claims_of(receipts_of(receipts)))

    def _requests(self, buffer: DataFrame, tables: Tables) -> DataFrame:
        """Return the requests by the rules of their places. A batch may bring a barrier, and what
        is behind it, before any frontier names it."""
        table = requests_of(buffer, self.settings, self.rules)
        requests = tables.kept("requests", table)
        if self.rules.lowest(self.settings.partitions) < RULES_VERSION:
            ruled = self.rules.with_barriers(barriers_of(requests))
            if ruled != self.rules:
                self.rules = ruled
                again = requests_of(buffer, self.settings, ruled)
                requests = tables.kept("requests-ruled", again)
        said, before = quotas_of(requests), self.full
        if not said and not before:
            return requests
        self.full = full_after(said, before)
        return tables.kept("requests-judged", refused_by(requests, said, before))

    @property
    def named(self) -> DataFrame | None:
        """Return the places of the requests that deliveries and letters name."""
        if self.deliveries is None:
            return self.letters
        places = _places(self.deliveries)
        return places if self.letters is None else places.unionByName(self.letters)

    def targets(self) -> list[str]:
        """Return the topics that new requests name."""
        if self.requests is None:
            return []
        topics = self.requests.select("topic").dropna().distinct().limit(TARGETS_MAX + 1)
        return [row["topic"] for row in topics.collect()]


def _begun(batch: int, before: Entry | None, came: _Came) -> Entry:
    """Return the entry of this batch, as far as records alone say."""
    positions = came.header.end
    start = before or Entry(
        batch=batch,
        folders=Folders(),
        positions={},
        frontier=positions.watch,
        frontier_ms=positions.watch_ms,
        target_partitions={},
        targets=(),
        buffer_starts=positions.buffer_starts,
    )
    targets = tuple(sorted({*start.targets, *came.targets()}))
    if len(targets) > TARGETS_MAX:
        raise FollowFailedError(
            f"the requests name more than {TARGETS_MAX} targets",
            remedy="begin anew with an empty --work: it forgets those that are not used any more",
        )
    return replace(
        start,
        batch=batch,
        positions=positions.to_json(),
        frontier=advanced(start.frontier, came.newest),
        frontier_ms=max([start.frontier_ms, *(each.append_ms for each in came.frontiers)]),
        target_partitions={topic: len(offsets) for topic, offsets in positions.next.items()},
        targets=targets,
        unread_ms={**start.unread_ms, **dict.fromkeys(came.header.unread, positions.at_ms)},
        buffer_starts=_further(
            start.buffer_starts or positions.buffer_starts,
            came.header.unread.get(came.settings.buffer.name, ()),
        ),
        barriers=came.rules.barriers,
        full=tuple((*place, most) for place, most in sorted(came.full.items())),
        alarms=(),
    )


def _further(starts: tuple[int, ...], firsts: tuple[int, ...]) -> tuple[int, ...]:
    """Return the later of both, by partition."""
    known = firsts + (0,) * (len(starts) - len(firsts))
    return tuple(max(pair) for pair in zip(starts, known, strict=False))


def _context(entry: Entry, before: Entry | None, settings: Settings) -> BatchContext:
    positions = Positions.from_json(entry.positions)
    begun = positions.buffer_starts
    if before is not None:
        begun = tuple(before.positions["next"][settings.buffer.name])
    return BatchContext(
        settings=settings,
        at_ms=positions.at_ms,
        watch=frontier_in(positions.watch),
        watch_ms=positions.watch_ms,
        frontier=frontier_in(entry.frontier),
        frontier_ms=entry.frontier_ms,
        buffer_starts=entry.buffer_starts,
        buffer_before=begun,
        settled_ms=positions.settled_ms,
        unread_ms=entry.unread_ms,
        target_partitions=entry.target_partitions,
    )


def _places(named: DataFrame) -> DataFrame:
    return named.select(*named_place()).dropna()


def _alarms(found: list[DataFrame]) -> tuple[Counter[str], tuple[dict[str, Any], ...]]:
    """Return how many alarms there are of each fault, and the first ALARMS_MAX."""
    if not found:
        return Counter(), ()
    table = reduce(DataFrame.unionByName, found)
    ordered = table.orderBy("fault", "source", "topic", "partition", "offset")
    examples = tuple(row.asDict() for row in ordered.limit(ALARMS_MAX).collect())
    if len(examples) < ALARMS_MAX:
        return Counter(each["fault"] for each in examples), examples
    counts = table.groupBy("fault").count().collect()
    return Counter({row["fault"]: row["count"] for row in counts}), examples


def _counts(rows: DataFrame) -> dict[str, int]:
    """Count what the batch changed, by COUNTS."""
    is_open, is_new = F.col("kind").isNull(), F.col("is_new")
    [counts] = rows.select(
        F.count_if(is_new & F.col("op").isin(*_USERS_OPS)).alias("requests"),
        F.count_if(alarms.became("delivered")).alias("delivered"),
        (F.count_if(is_open) - F.count_if(~is_new & F.col("was").isNull())).alias("pending"),
        F.count_if(alarms.became("lost")).alias("lost"),
    ).collect()
    return counts.asDict()
