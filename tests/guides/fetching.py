"""A program that fetches and makes what tests need besides wheels where each test looks for it.

`make test` runs it while types are checked, so that no test waits. A test whose needs could not be
fetched tries again, and says why it fails.
"""

from chromium import find_chromium
from class_archives import archive_kafka, archive_spark
from connect_workers import connect_jars
from guide_programs import PROGRAMS
from maven import fetch_maven
from postgres_servers import postgres_binaries
from rocket_servers import rocketmq_jars


def connect_jars_if_needed() -> None:
    """Kafka Connect and Debezium: without a PostgreSQL nothing uses them."""
    if postgres_binaries() is not None:
        connect_jars()


if __name__ == "__main__":
    others = (find_chromium, archive_kafka, archive_spark, connect_jars_if_needed, rocketmq_jars)
    # The Java program takes Kafka's jars along.
    for fetch in (*PROGRAMS.values(), fetch_maven, *others):
        try:
            fetch()
        except Exception as error:
            print(f"{fetch.__name__}: {error}")
