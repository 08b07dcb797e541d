"""Playing a planned load (chaos/) against a cluster of a test's own, and judging it at the end."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from clusters import TestCluster

from chaos import quiesce
from chaos.evidence import Evidence
from chaos.history import NO_TRANSACTION, History, What
from chaos.judge import Findings
from chaos.traffic import ConfluentSender
from chaos.workload import Plan


@contextmanager
def playing(cluster: TestCluster, plan: Plan) -> Iterator[ConfluentSender]:
    """The plan is played meanwhile, and waited for; AssertionError if it could not be."""
    history = History()
    sender = ConfluentSender(cluster.bootstrap, cluster.buffer, "player", history)
    failures: list[object] = []

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
    for sent in history.requests():
        is_alone = sent.transaction == NO_TRANSACTION
        is_known = is_alone or history.transaction(sent.transaction) is not What.UNKNOWN
        failures += [sent] if sent.trouble or not is_known else []
    assert not failures, failures[:3]


def evidence_of(cluster: TestCluster, targets: Sequence[str]) -> Evidence:
    """A reader of all that the cluster writes."""
    return Evidence(cluster.bootstrap, f"{cluster.name}-", targets)


def findings_once_over(
    cluster: TestCluster, evidence: Evidence, target: str, timeout_s: float
) -> Findings:
    """Judge when everything has an outcome, or the time is over."""
    sender = ConfluentSender(cluster.bootstrap, cluster.buffer, "fence", History())
    return quiesce.findings_once_over(evidence, sender.send, target, int(timeout_s * 1000))
