"""The README's first schedule, run as it stands: its shell and Python, on a real local cluster.

Only where the cluster lives is not the README's: XDG_STATE_HOME points at the test's own folder.
"""

import ast
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from delayd.dev.cluster import LocalCluster
from delayd.dev.processes import processes_of

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
HEADING = "## First schedule\n"
DEADLINE_S = 240
"""Twenty times what it takes on an idle machine; the first start may also fetch Kafka."""


def script(readme: str) -> str:
    """The section's blocks as one shell script; Python is fed to `python`."""
    section = readme.partition(HEADING)[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
    assert [language for language, _ in blocks] == ["sh", "python", "sh"]
    return "set -eu -o pipefail\n" + "".join(
        f"python <<'END'\n{text}END\n" if language == "python" else text
        for language, text in blocks
    )


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where `delayd dev` puts its cluster; nothing is left running in it."""
    directory = tmp_path / "delayd" / "dev"
    yield directory
    LocalCluster(directory).down()


def run(text: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run it in the checkout within the deadline, and end what it started if it takes longer."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("DELAYD_") or name == "DELAYD_CACHE"
    }
    with subprocess.Popen(
        ["bash", "-c", text],
        cwd=ROOT,
        env={**inherited, "XDG_STATE_HOME": str(directory.parents[1])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            stdout, stderr = shell.communicate(timeout=DEADLINE_S)
        except BaseException:
            os.killpg(shell.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(shell.args, shell.returncode, stdout, stderr)


def test_the_first_schedule_of_the_readme_works_as_it_stands(directory: Path) -> None:
    done = run(script((ROOT / "README.md").read_text()), directory)

    assert done.returncode == 0, done.stdout + done.stderr
    delivered = dict(re.findall(r"^(drink water|stand up) (\{.*\})$", done.stdout, re.MULTILINE))
    assert set(delivered) == {"drink water", "stand up"}
    for text in delivered.values():
        headers = ast.literal_eval(text)
        assert set(headers) == {"delayd-due", "delayd-fired", "delayd-source"}
        assert int(headers["delayd-fired"]) >= int(headers["delayd-due"])
    assert re.search(r"^sent SIGKILL to node-\d$", done.stdout, re.MULTILINE)
    assert done.stdout.rstrip().endswith("the cluster is down")
    assert processes_of(directory) == frozenset()
