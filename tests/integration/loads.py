"""Playing a planned load (chaos/) against a cluster of a test's own, and judging it at the end."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from clusters import TestCluster

from chaos import quiesce
from chaos.confluent_sender import ConfluentSender
from chaos.evidence import Evidence
from chaos.judge import Findings
from chaos.workload import Plan


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
    """Judge when everything has an outcome, or the time is over."""
    sender = ConfluentSender(cluster.bootstrap, cluster.buffer)
    return quiesce.findings_once_over(evidence, sender.send, target, int(timeout_s * 1000))
