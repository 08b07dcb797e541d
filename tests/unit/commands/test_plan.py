"""`delayd plan` as people and scripts run it: what it prints, and what it refuses."""

import json

import pytest
from typer.testing import CliRunner, Result

from delayd.commands.plan.command import count_of
from delayd.commands.plan.showing import count, size, time
from delayd.errors import ConfigError, ExitCode

runner = CliRunner()


def run(*arguments: str) -> Result:
    """Run the command as `delayd` has it."""
    from delayd.commands.cli import app

    return runner.invoke(app, ["plan", *arguments])


def report(*arguments: str) -> dict[str, object]:
    done = run(*arguments, "--json")
    assert done.exit_code in (ExitCode.FINE, ExitCode.PROBLEM), done.output
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_a_plan_that_fits_ends_with_the_command_that_creates_its_topics() -> None:
    done = run("--rate", "5000", "--delay", "10d", "--bytes", "300")
    assert done.exit_code == ExitCode.FINE
    assert "3 nodes, 1 shard, 4 partitions" in done.stdout
    assert "delayd topics create --partitions 4 --max-delay-days 10\n" in done.stdout
    assert "DOES NOT FIT" not in done.stdout


def test_what_does_not_fit_is_named_with_its_remedy_and_exit_1() -> None:
    done = run("--rate", "50000", "--delay", "30d", "--bytes", "300")
    assert done.exit_code == ExitCode.PROBLEM
    assert "DOES NOT FIT  disk: 81 TB, and 16 TB are planned for; " in done.stdout
    assert "clusters      6 would do, each with its part" in done.stdout
    assert "topics create" not in done.stdout


def test_nodes_that_are_too_few_are_no_reason_for_more_clusters() -> None:
    done = run("--rate", "50000", "--delay", "1d", "--nodes", "1")
    assert "DOES NOT FIT  processor" in done.stdout
    assert "one would do, with the nodes and shards that a plan chooses" in done.stdout


def test_the_json_has_what_the_lines_say_and_nothing_else_is_printed() -> None:
    found = report("--rate", "5k", "--pending", "20M", "--nodes", "5", "--shards", "4")
    assert (found["nodes"], found["shards"], found["rate_per_s"]) == (5, 4, 5_000)
    assert (found["pending"], found["max_delay_days"]) == (20_000_000, 40)
    assert found["limits"] == [] and found["clusters"] == 1
    assert found["create"] == (
        f"delayd topics create --partitions {found['partitions']} --shards 4 --max-delay-days 40"
    )
    assert {type(value) for value in found.values()} <= {int, float, str, bool, dict, list}


def test_a_delay_and_a_number_pending_may_both_be_given() -> None:
    found = report("--rate", "5000", "--pending", "20M", "--delay", "2d")
    assert (found["pending"], found["max_delay_days"]) == (20_000_000, 2)


def test_what_was_never_measured_is_said() -> None:
    notes = str(report("--rate", "5000", "--delay", "1d")["notes"])
    assert "measured up to 10 M pending" in notes and "natively was not measured" in notes
    few = report("--rate", "5", "--delay", "1h", "--no-native")
    assert few["notes"] == []
    assert "lead several shards" in str(report("--rate", "60k", "--delay", "1h")["notes"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--rate", "5000"), "neither --delay nor --pending is given"),
        (("--rate", "0", "--delay", "1d"), "--rate '0' makes no sense"),
        (("--rate", "many", "--delay", "1d"), "write it like 50000, 50k or 1M"),
        (("--rate", "-5", "--delay", "1d"), "--rate '-5' is not a number"),
        (("--rate", "2000M", "--delay", "1d"), "up to 1,000,000,000"),
        (("--rate", "5000", "--delay", "30"), "--delay '30' is not a time (write it like 10m"),
        (("--rate", "5000", "--delay", "0s"), "give 1ms to 3650d"),
        (("--rate", "5000", "--delay", "3651d"), "give 1ms to 3650d"),
        (("--rate", "1", "--pending", "1bn"), "no more than 3,456,000 come in 40 days"),
        (("--rate", "1", "--pending", "1k", "--delay", "1m"), "no more than 60 come"),
        (("--rate", "1", "--delay", "1d", "--bytes", "0"), "--bytes 0 is not a message's size"),
        (("--rate", "1", "--delay", "1d", "--ids", "10"), "give 0.1 if one message in ten"),
        (("--rate", "1", "--delay", "1d", "--ids", "nan"), "--ids nan is not a share"),
    ],
)
def test_nonsense_is_refused_with_what_to_write_instead(
    arguments: tuple[str, ...], says: str
) -> None:
    done = run(*arguments)
    assert isinstance(done.exception, ConfigError)
    assert says in str(done.exception)
    assert done.exception.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    "arguments",
    [
        ("--rate", "1", "--delay", "1d", "--nodes", "0"),
        ("--rate", "1", "--delay", "1d", "--shards", "65"),
        ("--delay", "1d"),
    ],
)
def test_options_out_of_their_range_are_usage(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("50000", 50_000),
        ("50,000", 50_000),
        ("50_000", 50_000),
        ("1.5k", 1_500),
        ("2M", 2e6),
        ("1bn", 1e9),
    ],
)
def test_a_number_may_be_written_as_people_write_it(text: str, number: float) -> None:
    assert count_of("--rate", text, "1", 1e12) == number


def test_sizes_and_times_are_told_in_the_largest_unit_of_which_there_is_one() -> None:
    assert [size(n) for n in (0, 999, 1e3, 81e12, 627e9)] == [
        *("0 bytes", "999 bytes", "1 kB", "81 TB", "627 GB"),
    ]
    assert [time(n) for n in (59, 60, 12_121, 14 * 86_400)] == [
        *("59 s", "1 minute", "3.4 hours", "14 days"),
    ]
    assert [count(n) for n in (999_999, 1e6, 1.296e11)] == ["999,999", "1 M", "130 bn"]
