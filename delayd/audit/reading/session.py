"""A Spark of our own for one audit: started here, and really ended here.

Everything that Spark writes lies in one folder: shuffles, temporary files, its log. Not here: what
is done with it.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, Final

import delayd
from delayd.errors import DelaydError
from delayd.runtime.cache import cache_directory
from delayd.runtime.class_archive import class_archive, options_with
from delayd.runtime.java import Java, find_java

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

SHUFFLE_PARTITIONS: Final = 32
"""Adaptive execution puts small ones together; large ones must fit into memory."""

_FOR_SHORT: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a Java that ends before it has compiled anything well."""

_FOR_ONE_PASS: Final = (
    "-XX:MetaspaceSize=256m -Xmn256m -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Options of a Java that carries out most of its code a few times. It takes memory for classes and
for short-lived objects at once, instead of collecting garbage on the way there, and believes
Spark's jars instead of verifying each class, which takes seconds."""

FOR_BATCHES: Final[Mapping[str, str]] = {
    "spark.driver.defaultJavaOptions": _FOR_SHORT,
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.cache.maxEntries": "5000",
    "spark.sql.shuffle.partitions": "4",
}
"""Settings for tables so small that to compile a plan well, or to think it over again, takes longer
than to run it. What is compiled is kept: whoever judges again has the same plans."""

FOR_LITTLE: Final[Mapping[str, str]] = {
    **FOR_BATCHES,
    "spark.driver.defaultJavaOptions": f"{_FOR_SHORT} {_FOR_ONE_PASS}",
    # As few as TableStore makes of a small table.
    "spark.sql.shuffle.partitions": "1",
    # What each sort and each aggregate takes at first, however little it holds.
    "spark.buffer.pageSize": "1m",
}
"""Settings for little that is judged once."""

FOR_FEW: Final[Mapping[str, str]] = {
    **FOR_LITTLE,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for so few rows that to compile a plan at all takes longer."""

END_TIMEOUT_S: Final = 20.0

_LOG_TAIL_CHARS: Final = 400

_LOG4J = """\
status = error
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex{full}
"""


class SparkMissingError(DelaydError):
    """There is no pyspark; nothing was started."""

    code = "spark-missing"


class SparkStartError(DelaydError):
    """Spark did not start; no process is left."""

    code = "spark-start"


def require_spark() -> None:
    """Raise SparkMissingError if what an audit needs is not installed."""
    try:
        import numpy  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as missing:
        raise SparkMissingError(
            f"an audit needs the package {missing.name}",
            remedy="install it: pip install 'delayd[audit]'",
        ) from missing


@contextmanager
def open_session(
    folder: Path,
    *,
    name: str = "delayd audit",
    master: str = "local[*]",
    driver_memory: str = "2g",
    settings: Mapping[str, str] | None = None,
) -> "Iterator[SparkSession]":
    """Start Spark with a JVM of its own, which has ended when this is left, whatever happened.

    `folder` takes everything that Spark writes, its log too, and stays; `settings` go before ours.
    Only one may be open in a process. Raises SparkMissingError, JavaMissingError, SparkStartError.
    """
    require_spark()
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    assert SparkContext._active_spark_context is None, "Spark runs in this process already"
    java = find_java(os.environ)
    folder = folder.resolve()
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    (folder / "log4j2.properties").write_text(_LOG4J)
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(name)
    ours = _settings(folder, driver_memory, java, master.startswith("local"))
    conf.setAll([*(ours | dict(settings or {})).items()])
    # Where workers find this package, wherever it was loaded from.
    python_path = (str(Path(delayd.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH"))
    environment = {
        "JAVA_HOME": str(java.path.resolve().parent.parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, python_path)),
        "SPARK_LAUNCHER_OPTS": _FOR_SHORT,  # of the Java that only says how Spark is started
    }
    with _environ(environment):
        context = _start(conf, folder / "spark.log")
    try:
        _look_up_once(context._jvm)
        yield SparkSession(context)
    finally:
        _end(context)


class _Static:
    """A class of Java's that looks up each of its static members once."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._found, name)
        setattr(self, name, member)
        return member


def _look_up_once(jvm: Any) -> None:
    """Keep the classes that make columns. At each call PySpark asks Java for the class, which seeks
    it in all jars, and then for its member: two questions more than the call itself."""
    for name in ("functions", "org.apache.spark.sql.functions", "PythonUtils", "PythonSQLUtils"):
        setattr(jvm, name, _Static(getattr(jvm, name)))


def spark_archive(java: Java) -> Path:
    """Return where the class-data archive of Spark is; it may not exist."""
    from pyspark.find_spark_home import _find_spark_home

    jars = Path(_find_spark_home()) / "jars"
    return class_archive(cache_directory(os.environ), "spark", java, jars)


def _settings(folder: Path, driver_memory: str, java: Java, is_local: bool) -> dict[str, str]:
    options = (
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        f"-Dlog4j.configurationFile={(folder / 'log4j2.properties').as_uri()}",
        *options_with(spark_archive(java)),
    )
    settings = {
        "spark.driver.memory": driver_memory,
        # What is generated for a wide plan is one large method, which Java would never compile.
        "spark.driver.defaultJavaOptions": "-XX:-DontCompileHugeMethods",
        "spark.driver.extraJavaOptions": " ".join(f'"{option}"' for option in options),
        "spark.local.dir": str(folder / "tmp"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # It would tell Java the line of each column that is made, in several calls: for no reader.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Nor are plans, which nobody sees, checked after each rule and written down.
        "spark.sql.lightweightPlanChangeValidation": "false",
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.debug.maxToStringFields": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if is_local:  # nobody else talks to it, and the machine's name may lead nowhere
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings


def _start(conf: "SparkConf", log: Path) -> "SparkContext":
    from py4j.protocol import Py4JError
    from pyspark import SparkContext, java_gateway
    from pyspark.errors import PySparkException

    launch: Any = java_gateway.launch_gateway  # not annotated
    gateway: Any = None
    try:
        with log.open("ab") as written:
            gateway = launch(conf, {"stdout": written, "stderr": written})
        return SparkContext(conf=conf, gateway=gateway)
    except BaseException as failure:
        if gateway is not None:
            _end_gateway(gateway)
        if not isinstance(failure, PySparkException | Py4JError | OSError):
            raise
        said = log.read_text(errors="replace") if log.exists() else ""
        last = " ".join((said or str(failure)).split())[-_LOG_TAIL_CHARS:]
        raise SparkStartError(
            f"Spark did not start: {last}",
            remedy=f"{log} has all that it said; the driver's memory may be too large",
        ) from failure


def _end(context: "SparkContext") -> None:
    gateway: Any = context._gateway
    try:
        with _ended_already():
            context.stop()
    finally:
        _end_gateway(gateway)


def _end_gateway(gateway: Any) -> None:
    """End the JVM and wait for it: it goes when its standard input closes."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    with _ended_already():
        gateway.shutdown()
    with _ended_already():
        gateway.proc.stdin.close()
    killer = Timer(END_TIMEOUT_S, gateway.proc.kill)
    killer.start()
    try:
        gateway.proc.wait()
    finally:
        killer.cancel()


@contextmanager
def _ended_already() -> Iterator[None]:
    """Ignore that what is to end does not answer: a signal to a group of processes stops the JVM
    too."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with suppress(Py4JError, PySparkException, OSError):
        yield


@contextmanager
def _environ(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables while the JVM starts, which inherits them; restore them afterwards."""
    before = os.environ.copy()
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
