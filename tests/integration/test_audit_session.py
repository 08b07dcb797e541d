"""delayd.audit.reading.session: no process is left, and nothing is printed past the program."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

PROGRAM = """
import sys
from pathlib import Path
from delayd.audit.reading.session import SparkStartError, open_session

folder = Path(sys.argv[1])
try:
    with open_session(folder, master="local[1]", driver_memory="nonsense"):
        pass
except SparkStartError as error:
    print("refused", error)
try:
    with open_session(folder, master="local[2]", driver_memory="512m") as spark:
        print(spark.sparkContext._gateway.proc.pid)
        spark.sparkContext.parallelize(range(4), 2).map(str).count()
        raise RuntimeError("in the middle")
except RuntimeError as error:
    print(error)
with open_session(folder, master="local[2]", driver_memory="512m") as spark:
    print(spark.sparkContext._gateway.proc.pid)
    print(spark.sparkContext.parallelize(range(10), 2).map(str).count())
"""


def test_whatever_happens_nothing_is_left_of_spark_and_it_can_start_again(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "TEST_OF": str(tmp_path)} | {"JAVA_HOME": "/nowhere"},
    )

    assert ended.stderr == "" and ended.returncode == 0
    refused, _first, raised, _second, counted = ended.stdout.splitlines()
    assert "Spark did not start:" in refused and str(tmp_path / "spark.log") in refused
    assert raised == "in the middle" and counted == "10"
    assert _processes_of(tmp_path) == []
    assert list((tmp_path / "tmp").iterdir()) == []


def _processes_of(folder: Path) -> list[list[str]]:
    """Return the command lines of the processes that carry this test's mark."""
    return [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline", "environ"])
        if (process.info["environ"] or {}).get("TEST_OF") == str(folder)
    ]
