"""delayd dev: what the command line refuses before anything is started."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from delayd.dev.commands import app, default_directory
from delayd.errors import ExitCode


@pytest.mark.parametrize(
    "arguments",
    [
        ["up", "--brokers", "2"],
        ["up", "--nodes", "-1"],
        ["kill", "node-1", "--signal", "NOSUCH"],
        ["kill"],
    ],
)
def test_what_makes_no_sense_is_a_usage_error(arguments: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*arguments, "--dir", str(tmp_path / "dev")])

    assert result.exit_code == ExitCode.USAGE
    assert not (tmp_path / "dev").exists()


def test_the_default_folder_is_the_users_state_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")

    assert default_directory() == Path("/state/delayd/dev")
