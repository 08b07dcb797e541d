"""Results of benchmarks: as JSON and back, as a page, as a picture, against the goals.

Rewrite the page and the picture of the kept run with --rewrite.
"""

import contextlib
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

from delayd.bench.brokers import Brokers
from delayd.bench.catalogue import ALL, ON_BROKERS, ON_CLUSTER, ON_PAIR, WANTED, measure, sizes_of
from delayd.bench.context import Context, Sizes
from delayd.bench.errors import BenchError, TooSlowError
from delayd.bench.figures import FAULTS, Figure
from delayd.bench.goals import GOALS, Goal, goal_of
from delayd.bench.plot import plot
from delayd.bench.report import EXPLAINED, report
from delayd.bench.result import Result, ResultError, machine, result_from_json
from delayd.commands.cli import app
from delayd.config.security import Security

DOCS = Path(__file__).parents[3] / "docs"
KEPT = DOCS / "performance" / "all.json"
PAGE = DOCS / "performance.md"
PICTURE = DOCS / "performance" / "all.svg"
CONTEXT = Context(Brokers("", "", Security.none()), Sizes(runs=1), lambda _what: None)


def result_of(*figures: Figure, name: str = "raw", runs: int = 5) -> Result:
    return Result(name, {"cpus": 2}, {name: {"runs": runs, "messages": 1_000_000}}, figures)


def test_the_page_and_the_picture_are_what_the_kept_run_makes(
    request: pytest.FixtureRequest,
) -> None:
    kept = result_from_json(KEPT.read_text())
    if request.config.getoption("--rewrite"):
        PAGE.write_text(report(kept))
        PICTURE.write_text(plot(kept))
    assert PAGE.read_text() == report(kept)
    assert PICTURE.read_text() == plot(kept)


def test_the_kept_run_is_of_all_and_nothing_was_wrong_in_it() -> None:
    kept = result_from_json(KEPT.read_text())
    assert tuple(kept.sizes) == ALL
    assert not [figure.name for figure in kept.figures if figure.is_fault and any(figure.runs)]
    named = {figure.name for figure in kept.figures}
    assert set(GOALS) - {"freeze-gap", "window-p99"} <= named, "a goal is of no figure"
    for name in ALL:
        assert any(each.startswith(name) and each.endswith(FAULTS) for each in named), name


def test_a_result_survives_json() -> None:
    figure = Figure("raw-consume", "messages/s", (2.0, 4.0), "bare", (1.0, 2.0))
    result = result_of(figure, Figure("raw-lost", "messages", (0.0, 1.0)))
    again = result_from_json(json.dumps(result.to_json()))
    assert again == result
    assert result.to_json()["figures"]["raw-consume"] == {
        "value": 3.0,
        "unit": "messages/s",
        "range": [2.0, 4.0],
        "runs": [2.0, 4.0],
        "ratio": 2.0,
        "against": "bare",
        "against_runs": [1.0, 2.0],
    }


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"bench": "raw", "machine": 3}'])
def test_what_no_benchmark_printed_is_refused(text: str) -> None:
    with pytest.raises(ResultError):
        result_from_json(text)


def test_each_benchmark_of_all_is_explained_and_has_sizes() -> None:
    assert set(ALL) < set(EXPLAINED) == {*ON_BROKERS, *ON_PAIR}
    assert set(WANTED) == {*ON_BROKERS, *ON_PAIR, *ON_CLUSTER}


def test_only_sizes_that_a_benchmark_has_can_be_chosen() -> None:
    chosen = {"messages": 5_000, "pending": 700, "runs": 3}
    assert sizes_of("raw", quick=False, chosen=chosen).pending == 0
    lateness = sizes_of("lateness", quick=True, chosen=chosen)
    assert (lateness.messages, lateness.pending, lateness.runs) == (0, 700, 3)
    assert sizes_of("raw", quick=True, chosen={}) == WANTED["raw"].quick


def test_the_page_says_that_sizes_were_small() -> None:
    assert "These are not full sizes" not in report(result_of())
    assert "These are not full sizes" in report(result_of(runs=4))


def test_the_page_says_whether_a_goal_was_met() -> None:
    slow = Figure("ingest", "messages/s", (90_000.0,), "bare", (100_000.0,))
    fast = Figure("ingest", "messages/s", (110_000.0,), "bare", (100_000.0,))
    rows = [
        line.rpartition(" | ")[2]
        for each in (slow, fast)
        for line in report(result_of(each, name="ingest")).splitlines()
        if line.startswith("| `ingest`")
    ]
    assert rows == ["no |", "yes |"]


def test_the_page_shows_what_was_lost() -> None:
    lost = Figure("raw-lost", "messages", (0.0, 3.0))
    fine = Figure("raw-early", "messages", (0.0, 0.0))
    page = report(result_of(lost, fine))
    assert "`raw-lost`" in page and "none, in all runs" not in page
    assert "Early: none, in all runs." in report(result_of(fine))


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        (Goal(median_min=3), True),
        (Goal(median_min=3.5), False),
        (Goal(median_max=2.9), False),
        (Goal(median_max=3, worst_max=5), True),
        (Goal(median_max=3, worst_max=4), False),
        (Goal(ratio_min=1.5, ratio_max=1.5), True),
        (Goal(ratio_max=1.4), False),
        (Goal(ratio_min=1.6), False),
    ],
)
def test_a_goal_is_met_if_all_its_limits_are_kept(goal: Goal, met: bool) -> None:
    assert goal.is_met(Figure("x", "ms", (2.0, 3.0, 5.0), "other", (2.0, 2.0, 2.0))) is met


def test_a_goal_for_a_ratio_is_not_met_without_one() -> None:
    assert not Goal(ratio_max=10).is_met(Figure("x", "ms", (1.0,)))


def test_what_must_be_nothing_has_that_goal() -> None:
    lost = Figure("raw-lost", "messages", (0.0, 0.0, 1.0))
    goal = goal_of(lost)
    assert goal is not None and not goal.is_met(lost)


def test_the_picture_is_sound_svg_with_a_row_for_each_figure() -> None:
    drawn = plot(
        result_of(
            Figure("raw-produce", "messages/s", (10.0, 20.0)),
            Figure("raw-consume", "messages/s", (30.0, 40.0), "<bare>", (5.0, 50.0)),
            Figure("raw-lost", "messages", (0.0, 0.0)),
        )
    )
    root = ET.fromstring(drawn)
    space = "{http://www.w3.org/2000/svg}"
    said = [each.text or "" for each in root.iter(f"{space}text")]
    assert {"raw-produce", "raw-consume"} <= set(said) and "raw-lost" not in said
    assert any("<bare>" in each for each in said)
    assert len(list(root.iter(f"{space}circle"))) == 4
    width = float(root.attrib["width"])
    assert all(float(each.attrib["cx"]) < width for each in root.iter(f"{space}circle"))


def test_the_machine_is_named() -> None:
    said = machine(has_own_brokers=False)
    assert said["cpu"] and said["cpus"] and said["memory_mib"] > 0 and "kafka" not in said
    assert {"kafka", "java"} <= set(machine())


@pytest.mark.parametrize(
    "outcomes",
    [
        (TooSlowError(), TooSlowError(), None),
        (TooSlowError(),) * 3,
        (BenchError("something else"),),
    ],
)
def test_a_run_that_was_too_slow_gets_more_time_and_then_gives_up(
    outcomes: tuple[BenchError | None, ...],
) -> None:
    tried: list[int] = []

    def play(patience: int) -> str:
        tried.append(patience)
        if error := outcomes[len(tried) - 1]:
            raise error
        return "played"

    last = outcomes[-1]
    with pytest.raises(type(last)) if last else contextlib.nullcontext():
        assert CONTEXT.patiently(play) == "played"
    assert tried == [1, 2, 4][: len(outcomes)]


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("report",),
        ("raw", str(KEPT)),
        ("raw", "--dir", "/tmp"),
        ("wheel", "--bootstrap", "localhost:1"),
        ("audit", "--bootstrap", "localhost:1"),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...]) -> None:
    assert CliRunner().invoke(app, ["bench", *words]).exit_code == 2


@pytest.mark.parametrize(("lost", "code"), [(0.0, 0), (2.0, 1)])
def test_a_benchmark_that_lost_a_message_shows_it_and_fails(
    monkeypatch: pytest.MonkeyPatch, lost: float, code: int
) -> None:
    found = [Figure("audit", "s", (1.0,)), Figure("audit-lost", "messages", (0.0, lost))]
    monkeypatch.setattr("delayd.bench.commands.measure_on_cluster", lambda *_words: found)
    answer = CliRunner().invoke(app, ["bench", "audit", "--json"])
    assert answer.exit_code == code
    assert json.loads(answer.stdout)["figures"]["audit-lost"]["runs"] == [0.0, lost]


def test_a_benchmark_that_fails_takes_nothing_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(_order: Context) -> list[Figure]:
        raise BenchError("no")

    found_by_raw = [Figure("raw-lost", "messages", (0.0,))]
    monkeypatch.setitem(ON_BROKERS, "ingest", fails)
    monkeypatch.setitem(ON_BROKERS, "raw", lambda _order: found_by_raw)
    found: dict[str, list[Figure]] = {}

    failed = measure(("ingest", "raw"), lambda _name: CONTEXT, found)

    assert found == {"raw": found_by_raw}
    assert list(failed) == ["ingest"]


def test_the_report_command_prints_the_page_and_draws_the_picture(tmp_path: Path) -> None:
    picture = tmp_path / "all.svg"
    answer = CliRunner().invoke(app, ["bench", "report", str(KEPT), "--plot", str(picture)])
    assert answer.exit_code == 0 and answer.stdout == PAGE.read_text()
    assert picture.read_text() == PICTURE.read_text()
