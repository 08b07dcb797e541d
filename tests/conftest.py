"""What all tests share: one real Kafka, one real etcd and one Spark per session, started when first
asked for.

Missing real parts fail the test that needs them; they do not skip it.
"""

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from delayd.audit.reading.session import FOR_LITTLE, open_session
from delayd.dev.cluster import LocalCluster
from delayd.dev.startup import ClusterOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of single folders: pytest knows them only from here, wherever it is called."""
    parser.addoption("--rewrite", action="store_true", default=False, help="write transcripts anew")
    parser.addoption("--seed", type=int, default=None, help="simulate this seed only")
    parser.addoption("--full", action="store_true", default=False, help="loads at full size")


@pytest.fixture(scope="session")
def kafka_and_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Kafka with one broker and etcd, no nodes, no topics: `.bootstrap` and `.etcd_url`.

    It is shared: a test uses topics, groups and cluster names of its own, and kills nothing.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it is torn down
    try:
        with LocalCluster(
            tmp_path_factory.mktemp("kafka-and-etcd"), ClusterOptions(nodes=0)
        ) as cluster:
            yield cluster
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """A small Spark, which takes longer to start than most tests to run: a process has one."""
    with open_session(
        tmp_path_factory.mktemp("spark"),
        name="delayd tests",
        master="local[2]",
        driver_memory="1g",
        settings={**FOR_LITTLE, "spark.sql.shuffle.partitions": "2"},
    ) as session:
        yield session
