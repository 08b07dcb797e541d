"""delayd.runtime.java: which Java is taken, and what a person is told who has none."""

from pathlib import Path

import pytest

from delayd.errors import ExitCode
from delayd.runtime.java import JavaMissingError, find_java, parse_major


@pytest.mark.parametrize(
    ("said", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ('openjdk version "25" 2025-09-16', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx="1"\nopenjdk version "11.0.2"', 11),
        ("zsh: command not found: java", None),
        ("", None),
    ],
)
def test_the_major_version_is_read_from_what_java_says(said: str, major: int | None) -> None:
    assert parse_major(said) == major


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    home = _fake_java(tmp_path / "home" / "bin", "21.0.1").parent.parent
    on_path = _fake_java(tmp_path / "path", "17.0.1")

    found = find_java({"JAVA_HOME": str(home), "PATH": str(on_path.parent)})

    assert (found.path, found.major) == (home / "bin" / "java", 21)


def test_a_java_home_that_is_too_old_gives_way_to_the_path(tmp_path: Path) -> None:
    home = _fake_java(tmp_path / "home" / "bin", "1.8.0_402").parent.parent
    on_path = _fake_java(tmp_path / "path", "17.0.1")

    found = find_java({"JAVA_HOME": str(home), "PATH": str(on_path.parent)})

    assert (found.path, found.major) == (on_path, 17)


def test_without_java_one_line_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(JavaMissingError) as caught:
        find_java({"PATH": str(tmp_path)})

    assert str(caught.value).count("\n") == 0
    assert "openjdk-17-jre" in str(caught.value)
    assert "JAVA_HOME" in str(caught.value)
    assert caught.value.exit_code is ExitCode.PROBLEM


def test_a_java_that_is_too_old_is_named_with_its_version(tmp_path: Path) -> None:
    old = _fake_java(tmp_path, "11.0.2")

    with pytest.raises(JavaMissingError, match=f"{old} is version 11"):
        find_java({"PATH": str(tmp_path)})


def _fake_java(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java
