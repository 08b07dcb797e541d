"""A compiler for Java where the machine has a mere runtime: that of Eclipse, from Maven Central."""

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from installing import install

from delayd.dev.jars import ivy_jar
from delayd.runtime.java import find_java

ECJ_VERSION: Final = "3.46.100"  # needs Java 17, as Kafka does
ECJ_SHA256: Final = "74c93172475fee0cd4e6eefb44233516dd40525642da35d009146d97ea598229"


def compile_java(
    what: str, sources: Sequence[Path], classpath: str, classes: Path, folder: Path
) -> None:
    """Compile files, or all of a folder, into `classes`; AssertionError with the compiler's words.

    `folder`: of the cache, held by its only installer."""
    java = find_java(os.environ)
    shutil.rmtree(classes, ignore_errors=True)
    install(
        what,
        [
            *(java.path, "-jar", _ecj(java.path, folder), "-17", "-encoding", "UTF-8"),
            *("-proc:none", "-classpath", classpath, "-d"),
            *(classes, *sources),
        ],
    )


def _ecj(java: Path, folder: Path) -> Path:
    """Return the compiler; AssertionError if its checksum is another one."""
    jar = folder / f"ecj-{ECJ_VERSION}.jar"
    if not jar.exists():
        arriving = folder / "arriving"
        install(
            f"ecj {ECJ_VERSION} from Maven Central",
            [
                *(java, f"-Divy.default.ivy.user.dir={folder / 'ivy'}", "-jar", ivy_jar()),
                *("-cache", folder / "ivy" / "cache"),
                *("-dependency", "org.eclipse.jdt", "ecj", ECJ_VERSION, "-types", "jar"),
                *("-retrieve", f"{arriving}/[artifact]-[revision].[ext]"),
            ],
        )
        found = hashlib.sha256((arriving / jar.name).read_bytes()).hexdigest()
        assert found == ECJ_SHA256, f"{jar.name} has the SHA-256 {found}, not {ECJ_SHA256}"
        (arriving / jar.name).rename(jar)
        shutil.rmtree(arriving)
        shutil.rmtree(folder / "ivy")
    return jar
