"""`delayd limits`: what it refuses before it asks a cluster.

The limits themselves: tests/unit/node/delivery, tests/integration/test_quotas_on_kafka.py.
"""

import re

import pytest
from typer.testing import CliRunner, Result

from delayd.commands import limits
from delayd.errors import ConfigError, ExitCode
from replication.quotas import RATE_MAX

NOWHERE = ("--bootstrap", "127.0.0.1:1", "--cluster-key", "a key that is long enough")


def set_limit(*options: str) -> Result:
    """Run `delayd limits set orders` for a cluster that is not there."""
    return CliRunner().invoke(limits.app, ["set", "orders", *options, *NOWHERE])


def words(result: Result) -> str:
    """Return what was said, without the frame that a terminal gets."""
    return " ".join(re.sub("[\u2500-\u257f]", " ", result.output).split())


@pytest.mark.parametrize(
    "rate",
    ["fast", "", "/s", "1.5", "1.5/s", "-5", "100/m", "100 /s", "1e3", "٣/s", f"{RATE_MAX + 1}/s"],
)
def test_what_is_no_rate_is_a_wrong_usage_that_names_the_option_and_its_grammar(rate: str) -> None:
    result = set_limit("--rate", rate, "--max-pending", "7")
    said = words(result)
    assert result.exit_code == ExitCode.USAGE, said
    assert "--rate" in said and "is no rate" in said, said
    assert f"N/s or N, a whole number from 1 to {RATE_MAX}; 0 ends the limit" in said


@pytest.mark.parametrize("rate", ["100/s", "100", "0", "0/s", f"{RATE_MAX}/s"])
def test_a_rate_is_taken_with_its_unit_and_without(
    rate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int | None] = []
    monkeypatch.setattr(limits, "ordered_at", lambda *_: None)
    monkeypatch.setattr(limits, "change_quota", lambda *given: asked.append(given[-1]))
    assert set_limit("--rate", rate).exit_code == ExitCode.FINE
    assert asked == [int(rate.removesuffix("/s"))]


def test_an_order_that_names_no_limit_is_a_wrong_usage() -> None:
    error = set_limit().exception
    assert isinstance(error, ConfigError) and error.exit_code == ExitCode.USAGE
