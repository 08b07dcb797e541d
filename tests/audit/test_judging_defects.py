"""Every defect that is planted in a correct history is found, and nothing else."""

from typing import TYPE_CHECKING

from audited import findings_of, tables_of
from plans import send_with_redrives
from planting import Planter, plant_deliveries, plant_letters, plant_verdicts

from delayd.audit.judging.frontiers import frontiers_of, judge_frontier
from delayd.audit.judging.history import history_of
from delayd.audit.judging.links import links_of
from delayd.audit.judging.order import judge_order
from delayd.audit.tables import RECORDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_each_planted_defect_is_found_once_and_nothing_else(spark: "SparkSession") -> None:
    world, sent = send_with_redrives("verdicts")
    planter = Planter(world.run(), sent)
    plant_deliveries(planter)
    plant_letters(planter)
    plant_verdicts(planter)
    history = planter.history
    tables = tables_of(spark, history)
    found = findings_of(tables, history)
    kinds = [(fault, str(source)) for fault, source, _ in found]
    assert sorted(kinds) == sorted(planter.expected), found

    # None of it is out of order, or the frontier's fault.
    rows = spark.createDataFrame(history.rows("frontier"), RECORDS, verifySchema=False)
    frontiers = frontiers_of(rows).localCheckpoint()
    links = links_of(frontiers, history.bounds)
    steps = history_of(links, history.bounds)
    order = judge_order(tables.logged, tables.deliveries, steps, history.bounds)
    frontier = judge_frontier(frontiers, links, steps, tables.logged, history.bounds)
    assert order.unionByName(frontier).collect() == []
