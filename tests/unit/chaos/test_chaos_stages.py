"""Scenarios that share a cluster: who plays together, whose is what, what becomes of the others.

Source: chaos/attribution.py, chaos/stage_run.py.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from chaos.attribution import (
    NOBODY,
    Report,
    Segment,
    of_source,
    of_step,
    of_target,
    shared_by,
    shares_of,
)
from chaos.backend import Backend, BackendError
from chaos.catalogue import SMOKE, scenarios
from chaos.cross_check import ALWAYS, FATES
from chaos.order import failovers_of
from chaos.records import Logged
from chaos.scenario import Needs, Scenario
from chaos.scenario_run import frontiers_since
from chaos.stage_run import SCENARIOS_MAX, Run, needs_of, results, staged
from chaos.verdict import LogEnds, Result, Shared, Witnessed
from delayd.audit.report import Finding

SEED = 11
KNOWN = scenarios(SEED)

# --- Who plays together


def test_the_smoke_runs_share_one_stage_that_has_all_they_need_and_one_with_shards() -> None:
    stage, sharded = staged(KNOWN[name] for name in SMOKE)
    assert {each.name for each in (*stage, *sharded)} == set(SMOKE)
    assert needs_of(stage) == Needs(is_wired=True, is_clocked=True)
    assert needs_of(sharded) == Needs(shards=4)


def test_each_scenario_plays_once_on_a_stage_that_has_what_it_needs() -> None:
    stages = staged(KNOWN.values())
    witnessed = [scenario for stage in stages for scenario in stage]
    assert sorted(each.name for each in witnessed) == sorted(KNOWN)
    for stage in stages:
        assert len(stage) <= SCENARIOS_MAX
        assert len({each.needs.brokers for each in stage}) == 1
        for scenario in stage:
            assert scenario.needs | needs_of(stage) == needs_of(stage)


def test_a_cluster_that_begins_with_older_rules_is_nobody_elses() -> None:
    for by_brokers in (True, False):
        stages = staged(KNOWN.values(), by_brokers=by_brokers)
        [alone] = [stage for stage in stages if needs_of(stage).has_older_rules]
        assert [each.name for each in alone] == ["rules-switch"]
        [moving] = [stage for stage in stages if needs_of(stage).has_moving_brokers]
        assert [each.name for each in moving] == ["move-brokers"]


def test_no_more_stages_than_needed_and_none_of_a_few() -> None:
    seven = list(KNOWN.values())[:7]
    assert [len(stage) for stage in staged(seven, scenarios_max=3)] == [2, 2, 3]
    assert len(staged(seven, scenarios_max=7)) == 1


def test_needs_follow_from_what_is_struck() -> None:
    assert KNOWN["kill-master"].needs == Needs()
    assert KNOWN["flapping"].needs == Needs(is_wired=True)
    assert KNOWN["clock-drift"].needs == Needs(is_clocked=True)
    assert KNOWN["full-disk"].needs == Needs(has_small_disks=True)
    assert KNOWN["rules-switch"].needs == Needs(has_older_rules=True)
    assert KNOWN["reshard"].needs == Needs(shards=4)
    assert KNOWN["bounce-brokers"].needs == KNOWN["kill-coordinator"].needs == Needs(brokers=3)
    assert KNOWN["move-brokers"].needs == Needs(brokers=3, has_moving_brokers=True)


# --- Whose is what

FIRST = Segment(LogEnds((0, 0), (2,)), LogEnds((10, 4), (30,)), frozenset({"target.1.a"}))
SECOND = Segment(LogEnds((10, 4), (30,)), LogEnds((20, 9), (70,)), frozenset({"target.2.a"}))
STRETCHES = (FIRST, SECOND)


@pytest.mark.parametrize(
    ("source", "whose"),
    [
        *(("0/0", 0), ("0/9", 0), ("0/10", 1), ("1/3", 0), ("1/4", 1), ("1/8", 1)),
        *(("0/20", NOBODY), ("1/9", NOBODY), ("2/0", NOBODY), ("", NOBODY), ("x/y", NOBODY)),
        *(("5", NOBODY), ("0/-1", NOBODY)),
    ],
)
def test_a_source_is_theirs_in_whose_stretch_it_lies(source: str, whose: int) -> None:
    assert of_source(STRETCHES, source) == whose


def test_a_target_and_a_step_are_theirs_too() -> None:
    assert [of_target(STRETCHES, f"target.{n}.a") for n in (1, 2, 3)] == [0, 1, NOBODY]
    assert [of_step(STRETCHES, 0, n) for n in (2, 29, 30, 69)] == [0, 0, 1, 1]
    assert [of_step(STRETCHES, 0, n) for n in (1, 70, None)] == [NOBODY] * 3
    assert of_step(STRETCHES, 3, 5) == NOBODY == of_step(STRETCHES, None, 5)
    more = [Segment(LogEnds((), (1,)), LogEnds((), (9, 4)), frozenset())]
    assert [of_step(more, 1, n) for n in (0, 3, 4)] == [0, 0, NOBODY]


def finding(fault: str, **fields: Any) -> dict[str, Any]:
    """As the audit's JSON has it."""
    nothing = dict.fromkeys(each.name for each in dataclasses.fields(Finding))
    return {**nothing, "fault": fault, **fields}


def audit(*examples: dict[str, Any], **figures: Any) -> dict[str, Any]:
    found = Counter(each["fault"] for each in examples)
    nothing = dict.fromkeys((*ALWAYS, *FATES), 0)
    return {**nothing, "found": dict(found), "examples": list(examples), **figures}


PLAIN: Mapping[int, Mapping[str, int]] = {n: dict.fromkeys((*ALWAYS, *FATES), 0) for n in (0, 1)}


@pytest.mark.parametrize(
    ("found", "whose"),
    [
        (finding("ghost", source="0/10"), 1),
        (finding("verdict-false", source="1/3", topic="delayd-receipts"), 0),
        (finding("replica-missing", source="0/3", node="node-1"), 0),
        (finding("unknown", source="0/3", topic="target.2.a"), 1),
        (finding("frontier-back", topic="delayd-frontier", partition=0, offset=30), 1),
    ],
    ids=lambda each: each["fault"] if isinstance(each, dict) else None,
)
def test_a_finding_is_theirs_whom_it_is_about(found: dict[str, Any], whose: int) -> None:
    shares, nobodys = shares_of(audit(found), PLAIN, STRETCHES)
    assert shares[whose] == {found["fault"]: 1}
    assert not shares[1 - whose] and not nobodys


def test_what_is_nobodys_is_counted_as_such() -> None:
    absent = finding("replica-absent", node="node-1")
    elsewhere = finding("unknown", source="0/3", topic="target.9.a")
    report = audit(absent, elsewhere, finding("ghost", source="0/1"))
    report["found"]["ghost"] = 7
    nobodys = {"replica-absent": 1, "unknown": 1, "ghost": 6}
    assert shares_of(report, PLAIN, STRETCHES) == ([{"ghost": 1}, {}], nobodys)


def test_of_more_than_an_audit_names_the_cross_check_says_whose_they_are() -> None:
    """Only where both count as many."""
    plain = {**PLAIN, 0: {**PLAIN[0], "lost": 3}, 1: {**PLAIN[1], "lost": 40}}
    twenty = [finding("lost", source="0/3")] * 20
    report = {**audit(*twenty), "found": {"lost": 43}}
    assert shares_of(report, plain, STRETCHES) == ([{"lost": 3}, {"lost": 40}], {})
    report["found"] = {"lost": 44}
    assert shares_of(report, plain, STRETCHES) == ([{"lost": 20}, {}], {"lost": 24})


def test_who_plays_alone_answers_for_everything() -> None:
    report = audit(finding("replica-absent", node="node-1"))
    assert shares_of(report, {0: PLAIN[0]}, [FIRST]) == ([{"replica-absent": 1}], {})


PLAYED = Witnessed(0, 1.0, 10, LogEnds((0, 0), (0,)), frozenset(), is_quiescent=True, outcomes={})


def shared(
    report: Report | None, counts: Mapping[int, Mapping[str, int]] = PLAIN, *, broken: bool = False
) -> list[Shared]:
    witnessed = (PLAYED, replace(PLAYED, is_quiescent=not broken))
    return shared_by(witnessed, STRETCHES, counts, report)


def test_what_is_nobodys_is_held_against_all_or_against_who_broke_the_stage() -> None:
    absent = audit(finding("replica-absent", node="node-1"))
    both = shared(absent)
    assert all("1 replica-absent by the audit" in each.troubles[0] for each in both)
    first, second = shared(absent, broken=True)
    assert not first.troubles and second.troubles


def test_judges_who_disagree_about_the_stage_are_told() -> None:
    assert [each.troubles for each in shared(audit())] == [[], []]
    [said] = shared(audit(accepted=1))[0].troubles
    assert said == "no agreement: accepted: 1 by the audit, 0 by the cross-check"
    counts = {0: {**PLAIN[0], "delivered": 2}, 1: {**PLAIN[1], "delivered": 1}}
    [said] = shared(audit(delivered=3), counts)[0].troubles
    assert said == "no agreement: delivered: 3 by the audit, 0 by the model"
    witnessed = [replace(PLAYED, outcomes={"message: delivered": n}) for n in (2, 1)]
    agreed = shared_by(witnessed, STRETCHES, counts, audit(delivered=3))
    assert [each.troubles for each in agreed] == [[], []]


def test_a_model_that_judged_only_a_part_is_not_asked() -> None:
    counts = {0: {**PLAIN[0], "delivered": 1}, 1: PLAIN[1]}
    witnessed = (PLAYED, replace(PLAYED, outcomes=None, is_quiescent=False))
    [first, second] = shared_by(witnessed, STRETCHES, counts, audit(delivered=1))
    assert not first.troubles and not second.troubles


def test_what_the_cross_check_counts_in_no_stretch_is_told() -> None:
    [first, _] = shared(None, {**PLAIN, NOBODY: {"accepted": 2, "lost": 0}})
    assert first.troubles == ["2 accepted by the cross-check, of no scenario"]


def frontier(offset: int, term: int, owner: str) -> Logged:
    value = f'{{"shard": 0, "term": {term}, "owner": "{owner}"}}'.encode()
    return Logged("delayd-frontier", 0, offset, 0, b"shard-0", value, ())


def test_failovers_are_counted_from_the_step_before() -> None:
    history = [frontier(3, 1, "a"), frontier(5, 2, "b"), frontier(8, 3, "a"), frontier(9, 4, "a")]
    stray = Logged("delayd-frontier", 0, 6, 0, b"another-key", b"hello", ())
    steps = frontiers_since([*history[:2], stray, *history[2:], stray], LogEnds((), (7,)))
    assert [step.offset for step in steps] == [5, 8, 9]
    assert failovers_of(steps) == 1, "who takes over from himself is no other"
    assert failovers_of(history) == 2
    assert failovers_of([frontier(0, 0, ""), *history[:1]]) == 0
    resharded = [frontier(3, 1, "a"), frontier(5, 2, "delayd-shards"), frontier(8, 3, "a")]
    assert failovers_of(resharded) == 0, "who changes the shards is no master"


# --- What becomes of the others


@dataclass
class House:
    """Builds clusters that cannot be broken, and lets plays go as they are told to."""

    out: Path
    restless: Sequence[str] = ()
    raising: Sequence[str] = ()
    is_buildable: bool = True
    audit_fails: bool = False
    left: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.said: list[str] = []

    def run(self, names: Sequence[str]) -> list[Result]:
        run = Run(SEED, self.out, self.make, run_scenario=self.run_scenario, judge=self.judge)
        return list(results(run, [KNOWN[name] for name in names]))

    def make(self, _directory: Path, needs: Needs, _seed: int) -> Backend:
        if not self.is_buildable:
            raise BackendError("no room")
        self.said.append("up")
        return cast(Backend, self)

    name = "house"

    def audit(self) -> Mapping[str, Any]:
        if self.audit_fails:
            raise RuntimeError("no Spark")
        return {}

    def down(self) -> list[str]:
        self.said.append("down")
        return list(self.left)

    def run_scenario(
        self,
        _backend: Backend,
        scenario: Scenario,
        _seed: int,
        history: Path,
        _tell: Callable[[str], None],
    ) -> Witnessed:
        self.said.append(scenario.name)
        history.write_text("")
        if scenario.name in self.raising:
            raise TimeoutError("nobody answers")
        is_restless = scenario.name in self.restless
        troubles = ("it did not come to rest",) if is_restless else ()
        failovers = scenario.failovers_min
        return replace(PLAYED, is_quiescent=not is_restless, troubles=troubles, failovers=failovers)

    def judge(
        self, _backend: Backend, witnessed: Sequence[Witnessed], _report: Report | None
    ) -> list[Shared]:
        return [Shared({}, {"accepted": 0}) for _ in witnessed]


NAMES = ("kill-master", "roll", "twin")


def test_scenarios_of_a_stage_share_a_cluster(tmp_path: Path) -> None:
    house = House(tmp_path)
    assert [result.problems for result in house.run(NAMES)] == [()] * 3
    assert house.said == ["up", *NAMES, "down", "down"]
    assert list(tmp_path.iterdir()) == [], "what went well leaves nothing"


def test_who_breaks_the_stage_fails_and_the_others_go_on_on_a_fresh_one(tmp_path: Path) -> None:
    house = House(tmp_path, restless=["roll"])
    found = house.run(NAMES)
    assert [(result.scenario, result.ok) for result in found] == [
        ("kill-master", True),
        ("roll", False),
        ("twin", True),
    ]
    assert house.said.count("up") == 2 and house.said.index("down") < house.said.index("twin")
    assert [folder.name for folder in tmp_path.iterdir()] == [f"roll-{SEED}"]


def test_a_play_that_cannot_be_judged_takes_those_with_it_who_played_before(tmp_path: Path) -> None:
    found = House(tmp_path, raising=["roll"]).run(NAMES)
    assert [(result.scenario, result.ok) for result in found] == [
        ("kill-master", False),
        ("roll", False),
        ("twin", True),
    ]
    assert found[0].problems == ("no verdict: TimeoutError: nobody answers",)


def test_a_cluster_that_cannot_be_built_fails_all_of_its_stage(tmp_path: Path) -> None:
    found = House(tmp_path, is_buildable=False).run(NAMES)
    assert [result.problems for result in found] == [("no verdict: BackendError: no room",)] * 3


def test_without_its_audit_and_with_what_is_left_running_all_fail(tmp_path: Path) -> None:
    for result in House(tmp_path, audit_fails=True).run(NAMES):
        assert result.problems == ("stage: no audit: RuntimeError: no Spark",)
        assert result.judges == "witness"
    for result in House(tmp_path, left=["process 7"]).run(NAMES):
        assert result.problems == ("stage: left running: process 7",)
