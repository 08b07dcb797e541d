"""Class-data archives: one for each Java and set of jars, and never needed."""

import os
from pathlib import Path

import pytest

from delayd.runtime.class_archive import class_archive, options_with
from delayd.runtime.java import Java


@pytest.fixture
def java(tmp_path: Path) -> Java:
    path = tmp_path / "java"
    path.write_text("a Java")
    return Java(path, 17)


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / "some.jar").write_text("classes")
    return folder


def test_java_reads_an_archive_that_is_there(tmp_path: Path, java: Java, jars: Path) -> None:
    archive = class_archive(tmp_path, "spark", java, jars)
    assert options_with(archive) == ()
    archive.touch()
    assert options_with(archive) == (f"-XX:SharedArchiveFile={archive}",)


def test_another_java_or_other_jars_have_an_archive_of_their_own(
    tmp_path: Path, java: Java, jars: Path
) -> None:
    seen = [class_archive(tmp_path, "spark", java, jars)]
    assert class_archive(tmp_path, "spark", java, jars) == seen[0]

    os.utime(java.path, ns=(1, 1))
    seen.append(class_archive(tmp_path, "spark", java, jars))
    os.utime(jars / "some.jar", ns=(1, 1))
    seen.append(class_archive(tmp_path, "spark", java, jars))
    (jars / "another.jar").write_text("more classes")
    seen.append(class_archive(tmp_path, "spark", java, jars))
    jars.rename(tmp_path / "moved")
    seen.append(class_archive(tmp_path, "spark", java, tmp_path / "moved"))

    assert len({*seen}) == 5 and {path.parent for path in seen} == {tmp_path}


def test_without_java_or_jars_there_is_none(tmp_path: Path) -> None:
    nowhere = Java(tmp_path / "no-java", 17)
    assert options_with(class_archive(tmp_path, "spark", nowhere, tmp_path / "no-jars")) == ()
