"""What docs/guides/testing.md shows, run as a team would run it: by pytest, in a folder of its own.

Here, too: that the fixture costs nothing where nobody asks for it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(folder: Path, *command: str) -> str:
    """What a command prints in that folder, with the package on its path."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tests_that_the_guide_shows_pass(
    tmp_path: Path,
) -> None:
    blocks = BLOCK.findall((ROOT / "docs" / "guides" / "testing.md").read_text())
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["delayd.testing.fixtures"]\n')
    for number, block in enumerate(blocks):
        (tmp_path / f"test_{number}.py").write_text(block)
    assert f"{len(blocks)} passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")


def test_the_fixture_loads_nothing_until_it_is_used(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        "-c",
        "import sys, delayd.testing.fixtures\n"
        "print([name for name in ('delayd.node', 'fastapi', 'plyvel') if name in sys.modules])",
    )
    assert said == "[]\n"
