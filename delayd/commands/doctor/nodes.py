"""Nodes as they say of themselves: who is missing, releases, disks, limits, clocks."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from delayd.cluster.status import Problem
from delayd.commands.doctor.case import Case, Means
from delayd.commands.doctor.finding import Finding, Severity
from delayd.commands.doctor.topics import mend_of
from delayd.commands.wording import plural
from replication.settings import RULES_VERSION

CLOCK_MS_MAX: Final = 250
"""Half of what makes a node refuse to be master by default (`clock_drift_max_ms`)."""
CHECKPOINT_MS_MAX: Final = 5_000
"""A node that takes 10 s for one is not ready."""
OPEN_FILES_LEAST: Final = 1_024
OPEN_FILES_SHARE_MAX: Final = 0.7
INODES_SHARE_LEAST: Final = 0.05

STATUS_SECTION: Final = "delayd status; then see docs/operations.md, 'Metrics and alerts'"
OF_PROBLEMS: Final[Mapping[str, tuple[Severity, str]]] = {
    "nothing-delivered": (Severity.CRITICAL, STATUS_SECTION),
    "no-master": (Severity.CRITICAL, "delayd node --config FILE, on the machines of the nodes"),
    "etcd-away": (Severity.CRITICAL, "start etcd; then see docs/operations.md, 'etcd is away'"),
    "node-missing": (Severity.WARNING, "delayd node --config FILE, on its machine"),
    "node-silent": (Severity.WARNING, "look at its log, and restart it"),
    "kafka-refuses": (Severity.WARNING, "see docs/operations.md, 'Getting into Kafka and etcd'"),
    "hears-nothing": (Severity.CRITICAL, "restart this node"),
    "buffer-held": (
        Severity.CRITICAL,
        "end the program that transaction-open names, or abort what transaction-hanging names",
    ),
    "target-hangs": (Severity.WARNING, "see docs/operations.md, 'Spared partitions'"),
    "buffer-endangered": (
        Severity.CRITICAL,
        "see docs/operations.md, 'A retention that is too short'",
    ),
    "wheels-differ": (Severity.CRITICAL, "see docs/operations.md, 'Wheels that differ'"),
    "wheel-repair": (Severity.WARNING, "see docs/operations.md, 'Wheels that differ'"),
    "disk-short": (Severity.CRITICAL, "see docs/operations.md, 'A full disk'"),
}
"""Severity and remedy of what `delayd status` says, where its text names no command."""


def look_at_nodes(case: Case) -> Iterator[Finding]:
    """Yield what is wrong with nodes."""
    yield from map(of_problem, case.problems)
    for node in case.nodes:
        if "role" in node:
            yield from _of_node(node)
    yield from _of_targets(case.nodes, case.means.bootstrap)
    yield from clocks(case.nodes, case.means.clock.wall_ms())
    yield from _releases(case)
    if len(case.nodes) == 1:
        what = "there is one node: while it is away nothing is delivered"
        yield Finding("one-node", Severity.ADVICE, what, "delayd node --config FILE, on two more")


def of_problem(problem: Problem) -> Finding:
    """Return what `delayd status` says as a finding."""
    severity, mend = OF_PROBLEMS[problem.code]
    return Finding.told(problem.code, severity, problem.text, mend)


def _of_node(node: Mapping[str, Any]) -> Iterator[Finding]:
    name, disk, process = node["node"], node["disk"] or {}, node["process"] or {}
    if node["unready"] and not node["fetch"]:
        what = f"node {name} could not take over: {node['unready']}"
        yield Finding("node-not-ready", Severity.WARNING, what, STATUS_SECTION)
    took_ms = node["checkpoint_took_ms"] or 0
    if took_ms > CHECKPOINT_MS_MAX:
        what = f"node {name} took {took_ms} ms for its last checkpoint: its disk is slow"
        yield Finding("disk-slow", Severity.WARNING, what, f"iostat -x 5, on the machine of {name}")
    free, least = disk.get("free_bytes"), disk.get("free_min_bytes") or 0
    if free is not None and least <= free < 2 * least:
        what = f"node {name} has {free} bytes free, and takes in nothing new below {least}"
        yield Finding("disk-low", Severity.WARNING, what, f"enlarge the volume of {name}")
    files, most = process.get("open_files", 0), process.get("open_files_max", OPEN_FILES_LEAST)
    if most < OPEN_FILES_LEAST or files > OPEN_FILES_SHARE_MAX * most:
        what = f"node {name} has {files} files and sockets open, and may have {most}"
        mend = f"ulimit -n 65536, or LimitNOFILE=65536 in the unit of {name}, and restart it"
        yield Finding("open-files", Severity.WARNING, what, mend)
    if strays := node["frontier_strays"]:
        what = f"somebody else writes to the frontier topic: node {name} skipped {strays} records"
        yield Finding("frontier-strays", Severity.WARNING, what, "let nobody else write there")


def _of_targets(nodes: Sequence[Mapping[str, Any]], bootstrap: str) -> Iterator[Finding]:
    for failing in (each for node in nodes for each in node.get("failing_targets") or ()):
        what = (
            f"{plural(failing['messages'], 'message')} could not be delivered to "
            f"{failing['topic']}: {failing['problem']}"
        )
        mend = mend_of(failing["problem"], failing["topic"], bootstrap)
        yield Finding("target-failing", Severity.WARNING, what, mend)


def clocks(nodes: Sequence[Mapping[str, Any]], now_ms: int) -> Iterator[Finding]:
    """Yield the clocks of nodes and brokers that differ from this machine's, or from a master's."""
    for node in nodes:
        offset_ms, drift_ms = node.get("clock_offset_ms") or 0, node.get("clock_drift_ms") or 0
        if abs(offset_ms) > CLOCK_MS_MAX:
            what = f"the clock of node {node['node']} is {offset_ms} ms ahead of this machine's"
            mend = f"chronyc tracking, on the machine of {node['node']} and here"
            yield Finding("node-clock", Severity.WARNING, what, mend)
        ahead_ms = max(node.get("log_ms") or (0,)) - now_ms
        if abs(drift_ms) > CLOCK_MS_MAX or ahead_ms > CLOCK_MS_MAX:
            said = f"{drift_ms} ms from the master's, on node {node['node']}"
            if ahead_ms > CLOCK_MS_MAX:
                said = f"{ahead_ms} ms ahead of this machine's: records are of then"
            what = f"the clock of a broker is {said}"
            mend = "chronyc tracking, on the machines of the brokers"
            yield Finding("broker-clock", Severity.WARNING, what, mend)


def _releases(case: Case) -> Iterator[Finding]:
    """Yield releases that differ, and rules that are older than what all nodes know."""
    releases = Counter(node["version"] for node in case.nodes if node.get("version"))
    if len(releases) > 1:
        told = ", ".join(f"{plural(n, 'node')} of {each}" for each, n in sorted(releases.items()))
        mend = "finish the rolling update: docs/operations.md, 'Upgrade'"
        yield Finding("releases-differ", Severity.WARNING, f"there are {told}", mend)
    means, settings = case.means, case.settings
    lowest = case.seen.record.rules.lowest(settings.partitions)
    if means.coordination is None or lowest >= RULES_VERSION:
        return
    members = means.coordination.members().values()
    if members and all(RULES_VERSION in json.loads(each).get("rules", ()) for each in members):
        yield Finding(
            "rules-behind",
            Severity.ADVICE,
            f"the cluster has rules version {lowest}, and all nodes know {RULES_VERSION}",
            f"delayd upgrade rules --bootstrap {means.bootstrap} --etcd {','.join(means.etcd)} "
            f"--cluster {settings.cluster} --prefix {settings.prefix}",
        )


def look_at_this_machine(means: Means) -> Iterator[Finding]:
    """Yield what is wrong with the volume of the node whose settings file was named, if its data
    directory is on this machine."""
    folder = Path(str(means.file.get("data_dir", "")))
    if not means.file.get("data_dir") or not folder.is_dir():
        return
    found = os.statvfs(folder)
    if found.f_files and found.f_favail < INODES_SHARE_LEAST * found.f_files:
        what = f"{found.f_favail} of {found.f_files} inodes are free on the volume of {folder}"
        yield Finding("inodes", Severity.WARNING, what, f"df -i {folder}; give it a larger volume")
