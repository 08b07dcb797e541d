"""Every defect that is planted in a correct history is found, and nothing else."""

from audited import findings_of, others_of, tables_of
from plans import send_with_redrives
from planting import (
    Planter,
    plant_deliveries,
    plant_letters,
    plant_series,
    plant_verdicts,
    plant_wishes,
)
from planting_groups import plant_groups
from pyspark.sql import SparkSession


def test_each_planted_defect_is_found_once_and_nothing_else(spark: SparkSession) -> None:
    world, sent = send_with_redrives("verdicts")
    planter = Planter(world.run(), sent)
    plant_deliveries(planter)
    plant_letters(planter)
    plant_verdicts(planter)
    plant_wishes(planter)
    plant_groups(planter)
    plant_series(planter)
    history = planter.history
    tables = tables_of(spark, history)
    found = findings_of(tables, history)
    kinds = [(fault, str(source)) for fault, source, _ in found]
    assert sorted(kinds) == sorted(planter.expected), found

    # None of it is out of order, or the frontier's fault.
    assert others_of(tables, history) == []
