"""Kafka's jars: fetched once from Maven Central with the Ivy that pyspark ships, then kept.

Not here: Java (java.py), what is run with the jars (kafka.py).

Invariants: the folder `<bundle>-<version>` in the cache is complete or does not exist (it is
renamed into place); one fetch at a time per cache; nothing is written outside the cache.
"""

import importlib.util
import os
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from delayd.dev.locks import locked
from delayd.errors import DelaydError
from delayd.runtime.cache import cache_directory
from delayd.runtime.class_archive import class_archive
from delayd.runtime.java import Java

KAFKA_VERSION = "4.3.1"
LOG4J_VERSION = "2.25.4"  # the log4j of that Kafka
JARS_EXPECTED = 46  # 45 of Kafka and the log binding; for the progress display only
FETCH_TIMEOUT_S = 900.0  # 44 MB took 32 s here; this is a very slow line


@dataclass(frozen=True, slots=True)
class JarBundle:
    """Jars of Kafka that are fetched together, with all that they need and a log binding, which
    Kafka's own lists of dependencies lack: without one nothing is logged at all."""

    name: str
    """Of the bundle's folder in the cache, without the version."""
    modules: tuple[str, ...]
    """Of org.apache.kafka, at KAFKA_VERSION."""
    indispensable: tuple[str, ...]
    """Names of jars, without the version."""
    others: tuple[tuple[str, str, str], ...] = ()
    """What is fetched beside them: organisation, name and version."""

    @property
    def folder(self) -> str:
        """Return the folder's name."""
        return f"{self.name}-{KAFKA_VERSION}"

    @property
    def files(self) -> tuple[str, ...]:
        """Return the files without which nothing works."""
        own = (f"{jar}-{KAFKA_VERSION}.jar" for jar in self.indispensable)
        return (*own, f"log4j-slf4j-impl-{LOG4J_VERSION}.jar")

    @property
    def ivy_module(self) -> str:
        """Return what Ivy is to fetch."""
        wanted = [("org.apache.kafka", name, KAFKA_VERSION) for name in self.modules]
        wanted += self.others
        wanted.append(("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_VERSION))
        lines = "".join(
            f'<dependency org="{org}" name="{name}" rev="{version}" conf="default"/>'
            for org, name, version in wanted
        )
        info = f'<info organisation="delayd" module="{self.name}"/>'
        return f'<ivy-module version="2.0">{info}<dependencies>{lines}</dependencies></ivy-module>'


KAFKA: Final = JarBundle("kafka", ("kafka_2.13",), ("kafka_2.13", "kafka-server"))


class JarsError(DelaydError):
    """Kafka's jars could not be fetched; the cache holds nothing half-done."""

    code = "kafka-jars"


FetchProgress = Callable[[int], None]
"""Called with the number of jars that have arrived so far, of JARS_EXPECTED."""


def kafka_jars(
    java: Java, *, env: Mapping[str, str], progress: FetchProgress = lambda _arrived: None
) -> Path:
    """Return the folder of Kafka's jars. The rest is as of `jars_of`."""
    return jars_of(KAFKA, java, env=env, progress=progress)


def jars_of(
    bundle: JarBundle,
    java: Java,
    *,
    env: Mapping[str, str],
    progress: FetchProgress = lambda _arrived: None,
) -> Path:
    """Return the folder of a bundle's jars, fetched now if the cache does not have it.

    Raises JarsError if they cannot be fetched. Ends Ivy if it is interrupted.
    """
    cache = cache_directory(os.environ)
    jars = cache / bundle.folder
    if jars.is_dir():
        return jars
    cache.mkdir(parents=True, exist_ok=True)
    refusal = JarsError(
        f"another process has been fetching into {cache} for too long",
        remedy=f"see what holds {cache}/fetch.lock: fuser -v",
    )
    with locked(cache / "fetch.lock", timeout_s=FETCH_TIMEOUT_S, refusal=refusal):
        if not jars.is_dir():  # another process may have fetched them while this one waited
            _fetch(bundle, java, cache, jars, env=env, progress=progress)
    return jars


def kafka_archive(java: Java, jars: Path) -> Path:
    """Return where the class-data archive of Kafka is; it may not exist."""
    return class_archive(jars.parent, "kafka", java, jars)


def files_of(package: str, pattern: str) -> list[Path]:
    """Return the files that an installed package has of this pattern; none if there is none."""
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    return sorted(file for folder in folders for file in Path(folder).glob(pattern))


def ivy_jar() -> Path:
    """Return the Ivy of the installed pyspark. Raises JarsError without one."""
    jars = files_of("pyspark", "jars/ivy-*.jar")
    if not jars:
        raise JarsError(
            "pyspark, whose Ivy fetches Kafka, is not installed",
            remedy="pip install 'delayd[dev-cluster]'",
        )
    return jars[-1]


def _fetch(
    bundle: JarBundle,
    java: Java,
    cache: Path,
    jars: Path,
    *,
    env: Mapping[str, str],
    progress: FetchProgress,
) -> None:
    partial = cache / f"{jars.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    module = cache / "ivy.xml"
    module.write_text(bundle.ivy_module)
    command = [
        str(java.path),
        f"-Divy.default.ivy.user.dir={cache / 'ivy'}",
        "-XX:-UsePerfData",
        "-jar",
        str(ivy_jar()),
        *("-cache", str(cache / "ivy" / "cache")),
        *("-ivy", str(module)),
        *("-types", "jar", "bundle"),  # without `bundle` five jars are missing
        *("-retrieve", f"{partial}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    try:
        _run_ivy(command, env=env, progress=progress)
        missing = [name for name in bundle.files if not (partial / name).is_file()]
        if missing:
            raise JarsError(
                f"the fetch of Kafka {KAFKA_VERSION} ended without {', '.join(missing)}",
                remedy=f"remove {cache} and try again",
            )
        partial.rename(jars)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    # The jars are in place now, and Ivy's own copy would double the cache.
    shutil.rmtree(cache / "ivy", ignore_errors=True)


def _run_ivy(command: list[str], *, env: Mapping[str, str], progress: FetchProgress) -> None:
    last_lines: deque[str] = deque(maxlen=200)
    arrived = 0
    progress(arrived)
    with subprocess.Popen(
        command,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as ivy:
        timer = threading.Timer(FETCH_TIMEOUT_S, ivy.kill)
        timer.start()
        try:
            assert ivy.stdout is not None, "asked for a pipe"
            for line in ivy.stdout:
                last_lines.append(line.strip())
                if "[SUCCESSFUL ]" in line:
                    arrived += 1
                    progress(arrived)
            exit_code = ivy.wait()
        finally:
            timer.cancel()
            ivy.kill()
    if exit_code != 0:
        raise JarsError(
            f"could not fetch Kafka {KAFKA_VERSION} from Maven Central: {_reason(last_lines)}",
            remedy="check the network; a proxy is set with JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=...",
        )


def _reason(lines: deque[str]) -> str:
    """Return the line of Ivy's output that says most to a person."""
    telling = ("Exception", "unresolved dependency", "FAILED", "not found", "error")
    found = [line for word in telling for line in lines if word in line]
    return (found or [lines[-1] if lines else "Ivy said nothing"])[0]
