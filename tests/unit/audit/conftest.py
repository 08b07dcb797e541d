"""One Spark for all tests of tables: it takes longer to start than most of them to run."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from delayd.audit.reading.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    with open_session(
        tmp_path_factory.mktemp("spark"),
        name="delayd tests",
        master="local[2]",
        driver_memory="1g",
        shuffle_partitions=2,
    ) as session:
        yield session
