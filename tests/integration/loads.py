"""Playing a planned load (chaos/) against a cluster of a test's own, and judging it at the end."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from clusters import TestCluster
from nodes import CLOCK

from chaos.confluent_sender import ConfluentSender
from chaos.evidence import Evidence
from chaos.judge import Findings, judge
from chaos.workload import Plan, Planned

LOOK_EVERY_S = 1.0


@contextmanager
def playing(cluster: TestCluster, plan: Plan) -> Iterator[ConfluentSender]:
    """The plan is played meanwhile, and waited for; AssertionError if it could not be."""
    sender = ConfluentSender(cluster.bootstrap, cluster.buffer)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            sender.send(plan)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="player")
    thread.start()
    try:
        yield sender
    finally:
        thread.join()
    assert not failures, failures


def evidence_of(cluster: TestCluster, targets: Sequence[str]) -> Evidence:
    """A reader of all that the cluster writes."""
    return Evidence(
        cluster.bootstrap,
        buffer=cluster.buffer,
        dead=cluster.dead,
        receipts=cluster.receipts,
        targets=targets,
    )


def findings_once_over(
    cluster: TestCluster, evidence: Evidence, target: str, timeout_s: float
) -> Findings:
    """Judge when everything has an outcome, and a later message too; or the time is over.

    The later message is there so that what a step doubles or adds late has been written by then.
    """
    findings = _once_nothing_waits(evidence, timeout_s)
    if findings.waiting:
        return findings
    fence = Planned(
        CLOCK.wall_ms(),
        b"fence",
        b"fence",
        (("delayd-topic", target.encode()), ("delayd-due", b"%d" % (CLOCK.wall_ms() + 500))),
    )
    with playing(cluster, [fence]):
        pass
    return _once_nothing_waits(evidence, timeout_s)


def _once_nothing_waits(evidence: Evidence, timeout_s: float) -> Findings:
    deadline_ms = CLOCK.monotonic_ms() + int(timeout_s * 1000)
    while True:
        evidence.read()
        found = judge(evidence.requests, evidence.delivered, evidence.dead, evidence.receipts)
        if not found.waiting or CLOCK.monotonic_ms() > deadline_ms:
            return found
        threading.Event().wait(LOOK_EVERY_S)
