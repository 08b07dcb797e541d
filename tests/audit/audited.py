"""The delivery and verdict audits over a world's history, as the run of an audit does them."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession
from written import History

from delayd.audit.judging.columns import table_of
from delayd.audit.judging.delivery import judge_delivery
from delayd.audit.judging.evidence import deliveries_of, letters_of, receipts_of
from delayd.audit.judging.frontiers import frontiers_of, judge_frontier
from delayd.audit.judging.history import history_of
from delayd.audit.judging.holds import orders_of
from delayd.audit.judging.ids import logged_of
from delayd.audit.judging.links import links_of
from delayd.audit.judging.messages import judge_messages
from delayd.audit.judging.order import judge_order
from delayd.audit.judging.quotas import quotas_of, refused_by
from delayd.audit.judging.request_counts import RequestCounts, counts_of
from delayd.audit.judging.requests import requests_of
from delayd.audit.judging.verdicts import judge_verdicts, marks_of
from delayd.audit.reading.progress import Progress
from delayd.audit.table_loader import TableStore
from delayd.audit.tables import RECORDS


class Tables(NamedTuple):
    """What an audit reads and derives, kept in memory."""

    requests: DataFrame
    logged: DataFrame
    deliveries: DataFrame
    receipts: DataFrame
    letters: DataFrame
    messages: DataFrame
    counts: RequestCounts


def tables_of(spark: SparkSession, history: History) -> Tables:
    """All tables of a history."""

    def records(role: str) -> DataFrame:
        return table_of(spark, RECORDS, history.rows(role)).coalesce(1)

    settings = history.bounds.settings
    requests = kept(requests_of(records("buffer"), settings))
    counts = counts_of(requests, targets_max=100)
    assert counts is not None
    if counts.quotas:
        requests = kept(refused_by(requests, quotas_of(requests)))
    logged = kept(logged_of(requests, settings, counts))
    deliveries = kept(deliveries_of(records("targets")))
    receipts = kept(receipts_of(records("receipts")))
    letters = kept(letters_of(records("dead")))
    messages = kept(judge_messages(logged, deliveries, letters, history.bounds))
    return Tables(requests, logged, deliveries, receipts, letters, messages, counts)


def kept(table: DataFrame) -> DataFrame:
    """The table, computed now, as a small audit keeps it."""
    store = TableStore(table.sparkSession, Path(), Progress(), is_small=True)
    return store.keep("", table.schema, lambda: table, "")


def findings_of(tables: Tables, history: History) -> set[tuple[str, str, str]]:
    """What is found: fault, source, reason."""
    _, logged, deliveries, receipts, letters, messages, _ = tables
    frontiers, bounds = _frontiers(tables, history), history.bounds
    delivery = judge_delivery(logged, messages, deliveries, letters, receipts, frontiers, bounds)
    verdicts = judge_verdicts(logged, messages, receipts, frontiers, bounds)
    return {
        (row["fault"], row["source"], row["reason"])
        for row in delivery.unionByName(verdicts).collect()
    }


def others_of(tables: Tables, history: History) -> list[Row]:
    """What is found of the order, and of the frontier."""
    return _others_of(tables, history, ordered=True)


def frontier_of(tables: Tables, history: History) -> list[Row]:
    """What is found of the frontier alone."""
    return _others_of(tables, history, ordered=False)


def _others_of(tables: Tables, history: History, *, ordered: bool) -> list[Row]:
    frontiers = _frontiers(tables, history)
    bounds = replace(
        history.bounds,
        is_any_timed=tables.counts.with_late > 0,
        orders=orders_of(tables.requests),
        quotas=quotas_of(tables.requests),
    )
    links = links_of(frontiers, bounds)
    steps = history_of(links, bounds)
    found = judge_frontier(frontiers, links, steps, tables.logged, tables.deliveries, bounds)
    if ordered:
        found = found.unionByName(judge_order(tables.logged, tables.deliveries, steps, bounds))
    return found.collect()


def _frontiers(tables: Tables, history: History) -> DataFrame:
    rows = history.rows("frontier")
    spark = tables.logged.sparkSession
    return kept(
        frontiers_of(
            table_of(spark, RECORDS, rows),
            history.bounds.shards,
            may_be_resharded=history.bounds.shards > 1,
        )
    )


def marks(tables: Tables) -> dict[str, int]:
    """What cancels and replaces came to."""
    counted = marks_of(tables.logged, tables.receipts)
    return {row["verdict"]: row["count"] for row in counted.collect()}


def fates(tables: Tables) -> dict[str, int]:
    """How many requests came to what."""
    return {row["fate"]: row["count"] for row in tables.messages.groupBy("fate").count().collect()}
