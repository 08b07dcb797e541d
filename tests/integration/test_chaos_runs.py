"""Runs of chaos/ on real clusters: the faults that matter most leave all well, and each guarantee
that is broken on purpose is found, by the witness and by the audit.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import standing_spark

from chaos.catalogue import SMOKE, scenarios
from chaos.checks import CHECKS, Check, checked, missed
from chaos.processes.cluster import ProcessCluster
from chaos.stage_run import Run, results
from chaos.verdict import BOTH, Result

pytestmark = pytest.mark.real

SEED = 5
AT_LEAST = ("freeze-master", "kill-shard-leaders")
"""A zombie, and the death of several shards' masters; `test_demo` kills a master before the same
judges. `make test-full` and `make chaos-smoke` play all of `SMOKE`."""
PATIENCE = 4
"""Times the bound of a recovery: other tests keep the machine busy. Nothing else is judged more
mildly."""


class Cluster(ProcessCluster):
    """Is audited by the Spark that the tests share."""

    def audit(self) -> Mapping[str, Any]:
        """See Backend."""
        done = standing_spark.audit("--json", "--dir", str(self._folder.path))
        report: Mapping[str, Any] = json.loads(done.stdout)
        return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", _struck(metafunc.config))


def _struck(config: pytest.Config) -> tuple[str, ...]:
    return SMOKE if config.getoption("--full") else AT_LEAST


@pytest.fixture(scope="module")
def smoke(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Mapping[str, Result]:
    """By scenario; they share a cluster and an audit."""
    known = scenarios(SEED)
    chosen = [
        replace(
            known[name],
            load=known[name].load.small(),
            recovery_ms=PATIENCE * known[name].recovery_ms,
        )
        for name in _struck(pytestconfig)
    ]
    run = Run(SEED, tmp_path_factory.mktemp("smoke"), Cluster, print)
    return {result.scenario: result for result in results(run, chosen)}


def test_nothing_is_lost_doubled_early_or_altered(smoke: Mapping[str, Result], name: str) -> None:
    assert smoke[name].problems == ()
    assert smoke[name].judges == BOTH
    assert smoke[name].messages > 1_300
    assert len(smoke[name].strikes) >= len(scenarios(SEED)[name].strikes)


@pytest.fixture(scope="module")
def broken(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Mapping[Check, Result]:
    """What was said of each guarantee that was broken. It takes four minutes: `make test-full`."""
    if not request.config.getoption("--full"):
        pytest.skip("with --full")
    return checked(SEED, tmp_path_factory.mktemp("checks"), print)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_what_is_broken_on_purpose_is_found(broken: Mapping[Check, Result], check: Check) -> None:
    assert broken[check].judges == BOTH
    assert missed(check, broken[check]) == []
