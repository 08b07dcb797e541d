"""A run is well only if all say so, and the same. Source: chaos/verdict.py, chaos/report.py."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.checks import Check, missed
from chaos.cross_check import FATES, WRONG
from chaos.processes.sabotaged_node import Sabotage
from chaos.records import Logged
from chaos.recovery import LATE_MS, Recovery, quantile, recoveries
from chaos.report import LINES, PAGE, line_of, note
from chaos.scenario import Scenario
from chaos.verdict import (
    WITNESS,
    LogEnds,
    Result,
    Shared,
    Witnessed,
    disagreements,
    no_verdict,
    result_of,
)

SCENARIO = Scenario("s", "Something <breaks>.", (), recovery_ms=5_000, failovers_min=1)
AUDIT: dict[str, Any] = {
    **dict.fromkeys((*WRONG, *FATES, "pending"), 0),
    "accepted": 10,
    "delivered": 7,
    "cancelled": 2,
    "dead": 1,
}
COUNTS = {name: int(AUDIT[name]) for name in ("accepted", "pending", *WRONG, *FATES)}
OUTCOMES = {
    "message: delivered": 6,
    "message: delivered after retries": 1,
    "message: killed": 2,
    "message: dead after retries": 1,
    "cancel: cancelled": 2,
}
PLAYED = Witnessed(
    at_ms=0,
    wall_s=1.0,
    sent=30,
    begin=LogEnds((0,), (0,)),
    targets=frozenset(),
    is_quiescent=True,
    outcomes=OUTCOMES,
    recoveries=[Recovery("kill master", 0, 4_000, 4_500)],
    failovers=1,
)
SHARED = Shared({}, COUNTS)


def result(witnessed: Witnessed = PLAYED, shared: Shared = SHARED) -> Result:
    return result_of(SCENARIO, 7, "processes", witnessed, shared)


def found(**faults: int) -> Shared:
    return replace(SHARED, found={name.replace("_", "-"): n for name, n in faults.items()})


def test_what_the_cross_check_found_is_named() -> None:
    shared = replace(SHARED, counts={**COUNTS, "lost": 1}, examples=("0/7 of 12 is lost: {}",))
    assert "cross-check: 1 lost" in result(shared=shared).problems
    assert "cross-check: 0/7 of 12 is lost: {}" in result(shared=shared).problems


def test_a_run_of_which_all_say_the_same_is_well() -> None:
    assert result().problems == ()
    assert (result().recovery_max_ms, result().messages, result().failovers) == (4_000, 10, 1)


def test_a_replace_that_is_sent_again_is_a_duplicate_to_the_audit() -> None:
    told = replace(PLAYED, outcomes={**OUTCOMES, "message: repeated": 1, "message: duplicate": 1})
    audit = {**AUDIT, "accepted": 12, "refused_as_duplicate": 2}
    counts = {**COUNTS, "accepted": 12, "refused_as_duplicate": 2}
    assert disagreements(audit, counts, told.outcomes) == []


RED = {
    "an acknowledged request is not there": result(replace(PLAYED, acknowledgements=["x"])),
    "a consumer was early": result(replace(PLAYED, receptions=["x"])),
    "the model finds something": result(replace(PLAYED, judged=["x"])),
    "order is broken": result(replace(PLAYED, order=["x"])),
    "something broke down": result(replace(PLAYED, troubles=["x"])),
    "the stage is not well": result(shared=replace(SHARED, troubles=["x"])),
    "its stretch of the log is not what the model has judged": result(
        shared=replace(SHARED, counts={**COUNTS, "accepted": 11})
    ),
    "the audit finds something": result(shared=found(verdict_false=1)),
    "no failover where one was due": result(replace(PLAYED, failovers=0)),
    "a recovery is too long": result(replace(PLAYED, recoveries=[Recovery("x", 0, 5_001, 0)])),
    **{
        f"the cross-check counts {name}": result(shared=replace(SHARED, counts={**COUNTS, name: 1}))
        for name in WRONG
    },
}


@pytest.mark.parametrize("name", RED)
def test_a_run_is_red_if(name: str) -> None:
    assert not RED[name].ok


def test_the_worse_figure_is_shown() -> None:
    worst = result(shared=Shared({"lost": 2, "order": 4, "replica-extra": 1}, {"lost": 3}))
    assert (worst.lost, worst.out_of_order, worst.replicas_differ) == (3, 4, 1)
    assert result(shared=found(verdict_false=1, verdict_missing=2)).wrong_verdicts == 3


def test_judges_who_count_the_same_agree() -> None:
    assert disagreements(AUDIT, COUNTS, OUTCOMES) == []


@pytest.mark.parametrize("name", ["accepted", "pending", *WRONG, *FATES])
def test_the_audit_and_the_cross_check_must_agree(name: str) -> None:
    counts = {**COUNTS, name: COUNTS[name] + 1}
    assert any(name in each for each in disagreements(AUDIT, counts, OUTCOMES))


@pytest.mark.parametrize(
    "kind",
    [
        *("message: delivered", "message: killed", "message: dead", "message: pending"),
        *("message: duplicate", "message: conflict", "bad: rejected"),
    ],
)
def test_the_audit_and_the_model_must_agree(kind: str) -> None:
    outcomes = {**OUTCOMES, kind: OUTCOMES.get(kind, 0) + 1}
    assert len(disagreements(AUDIT, COUNTS, outcomes)) == 1


def test_many_problems_of_a_kind_are_counted() -> None:
    problems = result(replace(PLAYED, judged=[str(n) for n in range(25)])).problems
    assert len(problems) == 11 and problems[-1] == "model: and 15 more"


def test_a_report_has_a_line_and_a_row_for_each_run(tmp_path: Path) -> None:
    note(result(), tmp_path)
    note(result(replace(PLAYED, judged=["<late>"])), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / LINES).read_text().splitlines()]
    assert [line["verdict"] for line in lines] == ["ok", "failed"]
    page = (tmp_path / PAGE).read_text()
    assert page.count("<tr class=") == 2
    assert "2 runs, 1 failed" in page and "model: &lt;late&gt;" in page
    assert "Something &lt;breaks&gt;." in page
    assert "model: <late>" in line_of(result(replace(PLAYED, judged=["<late>"])))


def request(offset: int, due_ms: int, append_ms: int = 0, **asks: str) -> Logged:
    headers = (
        ("delayd-due", b"%d" % due_ms),
        *((f"delayd-{n}", s.encode()) for n, s in asks.items()),
    )
    return Logged("buffer", 0, offset, append_ms, None, None, headers)


def delivery(of: Logged, append_ms: int) -> Logged:
    return Logged("t", 0, 0, append_ms, None, None, (("delayd-source", of.place.encode()),))


def test_a_recovery_lasts_until_the_last_late_delivery_before_the_next_strike() -> None:
    asked = [request(n, due) for n, due in enumerate((1_000, 2_000, 3_000, 9_000, 12_000))]
    came = [900, 5_000, 5_100, 9_000, 12_000 + LATE_MS + 1]
    delivered = [delivery(each, at) for each, at in zip(asked, came, strict=True)]
    first, second, third = recoveries([("a", 1_500), ("b", 8_000), ("c", 11_000)], asked, delivered)
    assert (first.late_for_ms, first.lateness_max_ms) == (3_600, 3_000)
    assert (second.late_for_ms, second.lateness_max_ms) == (0, 0)
    assert third.late_for_ms == 1_000 + LATE_MS + 1


def test_what_is_on_time_beside_what_has_waited_hides_no_outage() -> None:
    """As in a hot second that begins when a successor takes over."""
    asked = [request(1, 1_000), request(2, 1_100), *(request(n, 4_000) for n in range(3, 9))]
    delivered = [delivery(each, 4_010) for each in asked]
    [only] = recoveries([("a", 900)], asked, delivered)
    assert only.late_for_ms == 4_010 - 900


def test_a_single_late_message_is_no_outage() -> None:
    asked = [request(n, 1_000) for n in range(3)]
    delivered = [delivery(each, at) for each, at in zip(asked, (1_010, 1_010, 1_020), strict=True)]
    late = delivery(request(9, 1_000), 2_015)
    [only] = recoveries([("a", 0)], [*asked, request(9, 1_000)], [*delivered, late])
    assert (only.late_for_ms, only.lateness_max_ms) == (0, 1_015)


def test_what_was_asked_for_late_or_retried_is_no_outage() -> None:
    late = request(1, 1_000, append_ms=6_000)
    again = request(2, 1_000, append_ms=2_000, continues="0", origin="0/0")
    [only] = recoveries([("a", 0)], [late, again], [delivery(late, 6_500), delivery(again, 9_000)])
    assert (only.late_for_ms, only.lateness_max_ms) == (0, 500)


def test_quantiles_of_few_values() -> None:
    assert quantile([], 0.5) == 0
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([3, 1, 2], 1.0) == 3


CHECK = Check(Sabotage.DOUBLE, "calm", "delivered and delivered", "duplicate")


def test_a_check_is_passed_only_if_both_judges_found_it() -> None:
    seen = replace(PLAYED, judged=["0/1: delivered and delivered: ..."])
    assert missed(CHECK, result(seen, found(duplicate=3))) == []
    assert "witness" in missed(CHECK, result(shared=found(duplicate=3)))[0]
    assert "audit" in missed(CHECK, result(seen))[0]
    assert len(missed(CHECK, result())) == 2


def test_an_audit_that_was_not_made_is_not_asked() -> None:
    seen = result(replace(PLAYED, judged=["delivered and delivered"]))
    assert missed(CHECK, replace(seen, judges=WITNESS)) == []
    assert len(missed(CHECK, replace(result(), judges=WITNESS))) == 1


def test_a_run_without_verdict_is_no_check() -> None:
    nothing = no_verdict(SCENARIO, 7, 0, "it did not start")
    assert not nothing.ok and "no verdict" in missed(CHECK, nothing)[0]
