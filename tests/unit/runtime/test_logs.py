"""Where log lines go."""

import pytest
import structlog
from typer.testing import CliRunner

from delayd.commands.cli import app


def test_a_line_goes_to_the_stderr_of_now_whoever_ran_a_command_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert CliRunner().invoke(app, ["--version"]).exit_code == 0
    structlog.get_logger().info("still_here")
    assert "event=still_here" in capsys.readouterr().err
