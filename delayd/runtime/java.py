"""Finds a Java that can run Kafka and Spark: JAVA_HOME first, then PATH.

Not here: what is run with it.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from delayd.errors import DelaydError

JAVA_MAJOR_MIN = 17  # what Kafka 4 and Spark 4 need
VERSION_TIMEOUT_S = 30.0  # a cold JVM on a busy machine takes a few seconds

_REMEDY = (
    f"install a Java runtime {JAVA_MAJOR_MIN} or newer"
    f" (Debian: apt-get install openjdk-{JAVA_MAJOR_MIN}-jre-headless) or point JAVA_HOME at one"
)


class JavaMissingError(DelaydError):
    """No Java that can run Kafka and Spark; nothing was started."""

    code = "java-missing"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that is new enough."""

    path: Path
    major: int


def parse_major(version_output: str) -> int | None:
    """Return the major version in the output of `java -version`, or None if there is none.

    Java 8 and older say `1.8`; all others say `17.0.15`, `21-ea` or `25`.
    """
    found = re.search(r'version "(\d+)(?:\.(\d+))?', version_output)
    if found is None:
        return None
    first, second = int(found[1]), found[2]
    return int(second) if first == 1 and second is not None else first


def find_java(environ: Mapping[str, str]) -> Java:
    """Return the first Java that is new enough. Raises JavaMissingError if there is none."""
    rejected = []
    for path in _candidates(environ):
        major = _major_of(path)
        if major is not None and major >= JAVA_MAJOR_MIN:
            return Java(path, major)
        rejected.append(f"{path} is {'not usable' if major is None else f'version {major}'}")
    if rejected:
        raise JavaMissingError(
            f"Java {JAVA_MAJOR_MIN} or newer is needed, and {'; '.join(rejected)}",
            remedy=_REMEDY,
        )
    raise JavaMissingError("no java in JAVA_HOME or on PATH", remedy=_REMEDY)


def _candidates(environ: Mapping[str, str]) -> list[Path]:
    candidates = []
    if home := environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        candidates.append(Path(on_path))
    return candidates


def _major_of(path: Path) -> int | None:
    try:
        answer = subprocess.run(
            [path, "-version"],
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_major(answer.stderr + answer.stdout)
