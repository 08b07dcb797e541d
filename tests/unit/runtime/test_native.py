"""Where the library is not, or is not this one, Python runs, and says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from delayd.runtime import native


def test_it_runs_where_it_is_built_unless_it_is_turned_off(
    library: native.Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "BUILT", Path(library.path))
    for wish in ("", "1", library.path):
        loaded, described = native._load(wish)
        assert loaded is not None and described == "native"
    loaded, described = native._load("0")
    assert loaded is None and described.startswith("Python (DELAYD_NATIVE=0 turns")
    monkeypatch.setattr(native, "BUILT", tmp_path / "not there")
    assert native._load("")[0] is None


def test_a_process_runs_natively_unless_its_environment_says_no(library: native.Library) -> None:
    """What the variable says when delayd is imported decides, and `delayd --version` tells."""
    said = {}
    for wish in ("0", library.path):
        done = subprocess.run(
            [sys.executable, "-m", "delayd.commands.cli", "--version"],
            env={**os.environ, native.SWITCH: wish},
            capture_output=True,
            text=True,
            check=True,
        )
        said[wish] = done.stdout
    assert "(native)" in said[library.path] and "(Python (DELAYD_NATIVE=0" in said["0"]


def test_a_library_that_was_not_built_is_not_missed(tmp_path: Path) -> None:
    loaded, described = native._load(str(tmp_path / "libdelayd.native.so"))
    assert loaded is None and "is not built" in described


def test_a_file_that_is_no_library_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "libdelayd.native.so").write_bytes(b"\x7fELF, but not really")
    loaded, described = native._load(str(tmp_path / "libdelayd.native.so"))
    assert loaded is None and "cannot be loaded" in described


def test_a_library_from_another_release_is_not_used(
    library: native.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "INTERFACE", native.INTERFACE + 1)
    loaded, described = native._load(library.path)
    assert loaded is None and "another release" in described


@pytest.mark.parametrize(
    ("compiler", "why"),
    [(None, "there is no C compiler"), ("/bin/false", "failed"), ("/not/there", "No such file")],
)
def test_what_cannot_be_built_fails_no_installation(
    tmp_path: Path, compiler: str | None, why: str
) -> None:
    out, build = tmp_path / "libdelayd.native.so", Path(__file__).parents[3] / "native" / "build.py"
    done = subprocess.run(
        [sys.executable, "-S", str(build), "--out", str(out)],
        env={"PATH": str(tmp_path)} | ({} if compiler is None else {"CC": compiler}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and why in done.stderr and "runs in Python" in done.stderr
    assert list(tmp_path.iterdir()) == []
