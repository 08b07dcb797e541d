"""The classes of Kafka and Spark as Java keeps them when it has read and checked them: class-data
archives, made once for all tests.

To make Spark's takes about 18 s of the processor, and saves 3 to 6 s at each of its starts; a
broker starts in 1.8 s instead of 3.5 s, and the program that formats its folder in 0.7 s instead
of 1.4 s (Java 17). Without them all works as well.

Invariant: an archive is complete or does not exist. It is renamed into place when the Java that
left it has ended by itself; of two that make one at once, whoever comes last wins.
"""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from nodes import HANGS_S, wait_for

from delayd.audit.reading import session
from delayd.bus.confluent import ConfluentBus
from delayd.dev.jars import kafka_archive, kafka_jars
from delayd.dev.kafka import brokers_seen_by, create_topic
from delayd.dev.startup import ClusterOptions, plan_servers
from delayd.runtime.java import find_java
from delayd.runtime.temp_dirs import temporary_folder

JAVA_OPTIONS = "spark.driver.defaultJavaOptions"


@contextmanager
def archiving(archive: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield an option of Java, and what makes the file that Java then leaves the archive."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(f"{archive.name}.making-", archive.parent) as folder:
        left = Path(folder) / archive.name
        yield f"-XX:ArchiveClassesAtExit={left}", lambda: left.replace(archive)


def archive_kafka() -> Path:
    """Have a broker leave the classes that it has loaded, unless they are there. Return where."""
    java = find_java(os.environ)
    archive = kafka_archive(java, kafka_jars(java, env=os.environ))
    if not archive.is_file():
        with (
            tempfile.TemporaryDirectory(prefix="delayd-classes-") as folder,
            archiving(archive) as (option, keep),
        ):
            _run_broker(Path(folder) / "cluster", option)
            keep()
    return archive


def _run_broker(directory: Path, option: str) -> None:
    """Run a broker with one more option of Java, create a topic, and stop it."""
    directory.mkdir()
    kafka = plan_servers(directory, ClusterOptions(nodes=0)).kafka
    [broker], [format_command] = kafka.brokers, kafka.format_commands
    java, *rest = broker.command
    with broker.log.open("wb") as log:
        subprocess.run(format_command, stdout=log, stderr=log, timeout=HANGS_S, check=True)
        process = subprocess.Popen([java, option, *rest], stdout=log, stderr=log)
    try:
        wait_for(lambda: brokers_seen_by(broker.address) == 1, "a broker answers")
        create_topic(ConfluentBus(broker.address), "any")
        process.terminate()
        process.wait(HANGS_S)
    finally:
        process.kill()
        process.wait()


def archive_spark() -> Path:
    """Have Spark leave the classes with which it judges a small history, unless they are there.
    Return where."""
    from audited import findings_of, others_of, tables_of
    from plans import send_with_redrives

    archive = session.spark_archive(find_java(os.environ))
    if not archive.is_file():
        with (
            tempfile.TemporaryDirectory(prefix="delayd-classes-") as folder,
            archiving(archive) as (option, keep),
            mock.patch.object(session, "END_TIMEOUT_S", HANGS_S),
        ):
            settings = {
                **session.FOR_FEW,
                # It verifies what it leaves.
                JAVA_OPTIONS: f"{session.FOR_BATCHES[JAVA_OPTIONS]} {option}",
            }
            with session.open_session(
                Path(folder), master="local[2]", driver_memory="1g", settings=settings
            ) as spark:
                history = send_with_redrives("all")[0].run()
                tables = tables_of(spark, history)
                findings_of(tables, history)
                others_of(tables, history)
                gateway: Any = spark.sparkContext._gateway
            assert gateway.proc.returncode == 0, "Java was killed while it wrote"
            keep()
    return archive
