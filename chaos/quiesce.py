"""The way from the last strike to a quiescent cluster: every fault is undone, every request has an
outcome, nothing moves.

A cluster that does not get there is a trouble or a TimeoutError. Not here: whether outcomes are
right.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from chaos.backend import Backend
from chaos.evidence import Evidence, ends_of
from chaos.faults import wait_until
from chaos.history import now_ms
from chaos.judge import Findings, judge
from chaos.network import BOTH, FAIR
from chaos.workload import Plan, Planned

OPEN_TIMEOUT_S: Final = 90.0
"""librdkafka lets Kafka end a transaction after 60 s if its client does not."""

READY_TIMEOUT_S: Final = 60.0
LOOK_EVERY_S: Final = 1.0


def restore(backend: Backend) -> list[str]:
    """Undo all faults, and wait until all nodes are ready. Return what had ended by itself."""
    backend.weather(FAIR, backend.nodes, BOTH)
    troubles = []
    for part in (*backend.brokers, *backend.nodes):
        if not backend.is_running(part):
            troubles.append(f"{part} had ended by itself")
            backend.start(part, wait=False)
    is_ready = wait_until(
        lambda: all(backend.status(node).get("ready") for node in backend.nodes), READY_TIMEOUT_S
    )
    if not is_ready:
        said = {node: dict(backend.status(node)) for node in backend.nodes}
        raise TimeoutError(f"not all nodes became ready: {said}")
    return troubles


def findings_once_over(
    evidence: Evidence,
    send: Callable[[Plan], None],
    target: str,
    timeout_ms: int,
    *,
    until_ms: int | None = None,
) -> Findings:
    """Return the findings when everything has an outcome, and a later message too; or when the time
    is over. By the later one, what a step doubles or adds late has been written."""
    findings = _once_nothing_waits(evidence, timeout_ms, until_ms)
    if findings.waiting:
        return findings
    headers = (("delayd-topic", target.encode()), ("delayd-due", b"%d" % (now_ms() + 500)))
    send([Planned(now_ms(), b"fence", b"fence", headers)])
    return _once_nothing_waits(evidence, timeout_ms, until_ms)


def wait_until_quiescent(backend: Backend, timeout_ms: int) -> list[str]:
    """Wait until a frontier covers all that all nodes have ingested, and no user's transaction is
    open. Return why, if that does not come."""
    buffer = f"{backend.prefix}buffer"

    def is_over() -> bool:
        try:
            ends = ends_of(backend.bootstrap, [buffer])
            return ends_of(backend.bootstrap, [buffer], stable=True) == ends
        except Exception:  # kafka-python raises what it likes while brokers come back
            return False

    if not wait_until(is_over, OPEN_TIMEOUT_S):
        return ["a user's transaction was left open"]

    def is_quiescent() -> bool:
        said = [backend.status(node) for node in backend.nodes]
        if not all(each.get("ready") and each.get("frontier") for each in said):
            return False
        ends = said[0]["ingested"]
        return all(s["ingested"] == ends == s["frontier"]["offsets"] for s in said)

    if wait_until(is_quiescent, timeout_ms / 1000):
        return []
    said = {node: dict(backend.status(node)) for node in backend.nodes}
    return [f"the nodes did not become quiescent: {said}"]


def judged(evidence: Evidence, until_ms: int | None = None) -> Findings:
    """Return the findings over what was read so far; what is due later may be pending."""
    parts = (evidence.requests, evidence.delivered, evidence.dead, evidence.receipts)
    return judge(*parts, until_ms=until_ms)


def _once_nothing_waits(evidence: Evidence, timeout_ms: int, until_ms: int | None) -> Findings:
    deadline_s = time.monotonic() + timeout_ms / 1000
    while True:
        evidence.read()
        found = judged(evidence, until_ms)
        if not found.waiting or time.monotonic() > deadline_s:
            return found
        threading.Event().wait(LOOK_EVERY_S)
