"""delayd.audit.reading.session: a Spark that is set up for audits, or a word why there is none."""

import os
import sys
from pathlib import Path

import psutil
import pytest
from py4j.clientserver import JavaClient
from py4j.protocol import REFLECTION_COMMAND_NAME
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from delayd.audit.reading.session import (
    FOR_FEW,
    FOR_LITTLE,
    SparkMissingError,
    open_session,
    spark_archive,
)
from delayd.audit.run import FEW_MAX, LITTLE_MAX, settings_for
from delayd.runtime.java import find_java


def test_the_session_is_set_up_for_tables(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.range(1000).agg(F.sum("id")).collect()[0][0] == 499_500
    assert spark.sparkContext.uiWebUrl is None


def test_java_is_asked_once_for_what_makes_columns(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    F.concat(F.lit("a"), F.col("b"))
    asked: list[str] = []
    ask = JavaClient.send_command

    def send(client: JavaClient, command: str, *more: bool) -> str:
        asked.append(command)
        answer: str = ask(client, command, *more)
        return answer

    monkeypatch.setattr(JavaClient, "send_command", send)
    F.concat(F.lit("c"), F.col("d"))
    assert [each for each in asked if each.startswith(REFLECTION_COMMAND_NAME)] == []
    assert any("concat" in each for each in asked), asked


def test_java_reads_the_archive_of_its_classes_where_there_is_one(spark: SparkSession) -> None:
    """`make test` makes it before; else there may be none."""
    process = psutil.Process(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
    archive = spark_archive(find_java(os.environ))
    asked = f"-XX:SharedArchiveFile={archive}" in process.cmdline()
    assert asked == (str(archive) in {mapped.path for mapped in process.memory_maps()})
    assert asked or not archive.is_file()


def test_what_suits_few_messages_is_kept_from_many() -> None:
    assert settings_for(FEW_MAX) == FOR_FEW
    assert settings_for(FEW_MAX + 1) == settings_for(LITTLE_MAX) == FOR_LITTLE
    assert settings_for(LITTLE_MAX + 1) is None


def test_without_pyspark_a_person_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)

    with (
        pytest.raises(SparkMissingError, match=r"pip install 'delayd\[audit\]'"),
        open_session(tmp_path),
    ):
        pass
