"""What the tests on a cluster share: the cluster itself, traffic that is judged, and the table."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from k8s_cluster import HEAD, STEADY_S, Cluster, Run, Traffic
from tally import FAULTS


@pytest.fixture(scope="session")
def note() -> list[str]:
    """What was found out beside the table."""
    return []


@pytest.fixture(scope="session")
def runs() -> list[Run]:
    """Of every test so far."""
    return []


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, note: list[str], runs: list[Run]) -> Iterator[Cluster]:
    """Three nodes that are ready, and a master. At the end the table is printed: the runs that
    came to a report."""
    made = Cluster()
    if "K8S_REUSE" not in os.environ:
        made.remove()
    begun = time.monotonic()
    made.apply()
    made.wait_ready(timeout_s=600)
    note.append(f"from apply to three ready nodes: {time.monotonic() - begun:.1f} s")
    made.wait_master()
    note.append(f"from apply to a master that delivers: {time.monotonic() - begun:.1f} s")
    yield made
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        table = [row for run in runs if run.report.get("late_ms") for row in run.rows()]
        print("\n".join(["", *note, "", HEAD, *table]))
    if not request.session.testsfailed and "K8S_KEEP" not in os.environ:
        made.remove()


@pytest.fixture
def traffic(cluster: Cluster, runs: list[Run]) -> Traffic:
    """Makes a test's runs: what clients saw must be what was promised."""

    @contextmanager
    def judged(name: str, delay_s: int = 6) -> Iterator[Run]:
        with Run(cluster, f"traffic-{name}", delay_s) as run:
            runs.append(run)
            yield run
            time.sleep(STEADY_S)
        told = {fault: run.report.get(fault) for fault in FAULTS}
        assert run.report.get("verdict") == "ok", f"{told} {run.report.get('examples')}"
        assert run.report["delivered"] > 0 and run.report["answers"].get("cancelled", 0) > 0

    return judged
