"""`delayd doctor` as a program sees it: its findings by code, for tests that plant a fault."""

import json
from dataclasses import dataclass
from typing import Any

from clusters import TestCluster
from nodes import delayd_in_process, wait_for

from delayd.errors import ExitCode


@dataclass(frozen=True, slots=True)
class Visit:
    """What the doctor said once."""

    code: int
    findings: dict[str, dict[str, Any]]
    """The first of each code."""
    rebuilding: dict[str, Any] | None

    @property
    def wrong(self) -> set[str]:
        """The codes of all but advice."""
        return {code for code, each in self.findings.items() if each["severity"] != "advice"}


def visit(cluster: TestCluster, *more: str) -> Visit:
    """Run the command. Its exit code is what its findings say, unless something is away."""
    done = delayd_in_process(
        *("doctor", "--bootstrap", cluster.bootstrap, "--etcd", cluster.etcd, "--json"),
        *("--cluster", cluster.name, "--prefix", f"{cluster.name}-", *more),
    )
    assert done.stdout, done.stderr
    said = json.loads(done.stdout)
    assert all(each["mend"] for each in said["findings"])
    codes = {each["code"]: each for each in reversed(said["findings"])}
    found = Visit(done.returncode, codes, said["rebuilding"])
    if done.returncode != ExitCode.UNREACHABLE:
        assert said["healthy"] == (not found.wrong) == (done.returncode == ExitCode.FINE)
    return found


def visit_until(cluster: TestCluster, wanted: str, *more: str) -> Visit:
    """Run it until it finds that."""
    found = visit(cluster, *more)

    def is_found() -> bool:
        nonlocal found
        if wanted not in found.findings:
            found = visit(cluster, *more)
        return wanted in found.findings

    wait_for(is_found, f"the doctor finds {wanted}")
    return found
