"""A class-data archive, and the Java that leaves and reads it."""

import os
import subprocess
from pathlib import Path

from class_archives import archiving
from nodes import HANGS_S

from delayd.dev.jars import ivy_jar
from delayd.runtime.class_archive import options_with
from delayd.runtime.java import find_java

FROM_ARCHIVE = "source: shared objects file (top)"


def classes_loaded(*options: str) -> str:
    """Where a short program's Java got its classes from, a line each."""
    program = ("-Xlog:class+load", "-cp", str(ivy_jar()), "org.apache.ivy.Main", "-version")
    command = [str(find_java(os.environ).path), *options, *program]
    return subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=HANGS_S, check=True
    ).stdout


def test_java_loads_classes_from_the_archive_that_it_left(tmp_path: Path) -> None:
    archive = tmp_path / "cache" / "ivy.jsa"
    with archiving(archive) as (option, keep):
        assert FROM_ARCHIVE not in classes_loaded(option)
        assert options_with(archive) == ()
        keep()
    assert [*archive.parent.iterdir()] == [archive]
    assert f"org.apache.ivy.Main {FROM_ARCHIVE}" in classes_loaded(*options_with(archive))


def test_java_starts_though_the_archive_is_damaged(tmp_path: Path) -> None:
    archive = tmp_path / "ivy.jsa"
    archive.write_bytes(b"not an archive")
    assert FROM_ARCHIVE not in classes_loaded(*options_with(archive))
