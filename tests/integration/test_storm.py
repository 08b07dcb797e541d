"""Cancels around the due time, while masters are killed: every verdict is true.

Small in the suite; at full size, 20,000 cancels at 2,000 a second, with `--full` (and with `-s`,
which shows what was measured). The size is what the machine must bear for the test to mean
anything, so at full size it fails if the cancels were not sent at that rate.
Source: docs/design/frontier.md, "Verdicts".
"""

import json
from contextlib import closing
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from clusters import BY_APPEND_TIME, TestCluster
from loads import evidence_of, findings_once_over, playing
from nodes import CLOCK, HANGS_S, NodeProcess, master_of, running, wait_until_wall

from chaos.evidence import Evidence
from chaos.judge import Findings
from chaos.workload import AROUND_MS, Plan, Planned

pytestmark = pytest.mark.real

SEED = 4


@dataclass(frozen=True, slots=True)
class Size:
    """So many cancels, so many of them a second; the lead is for scheduling their messages."""

    count: int
    rate: int
    lead_ms: int


SMALL = Size(3_000, 300, 4_000)
"""Bearable beside other tests: three nodes, the broker and the test share the machine."""

FULL = Size(20_000, 2_000, 10_000)


def test_cancels_around_the_due_time_are_answered_truly_through_two_kills(
    cluster: TestCluster, request: pytest.FixtureRequest
) -> None:
    size = FULL if request.config.getoption("--full") else SMALL
    nodes = [cluster.node(number) for number in range(3)]
    target = cluster.target("storm", config=BY_APPEND_TIME)
    with running(nodes), closing(evidence_of(cluster, (target,))) as evidence:
        send_ms = CLOCK.wall_ms()
        begin_ms = send_ms + size.lead_ms
        during_ms = size.count * 1_000 // size.rate
        plan = storm(target, size, send_ms, begin_ms)
        killed: list[NodeProcess] = []
        gaps_ms: list[int] = []
        with playing(cluster, plan) as sender:
            for share in (1 / 3, 2 / 3):
                wait_until_wall(begin_ms + int(during_ms * share))
                left = [node for node in nodes if node not in killed]
                killed.append(master_of(left))
                killed_ms = CLOCK.wall_ms()
                killed[-1].kill()
                assert not sender.is_over.is_set(), (
                    "the storm was over before its masters were killed"
                )
                master_of([node for node in left if node is not killed[-1]])
                gaps_ms.append(CLOCK.wall_ms() - killed_ms)
        for node in killed:
            node.start()
        findings = findings_once_over(cluster, evidence, target, HANGS_S)
    figures = figures_of(evidence, findings)
    figures["takeovers_ms"] = gaps_ms
    figures["sent_behind_ms"] = quantiles(sender.behind_ms[size.count :])
    print(json.dumps(figures))
    assert findings.ok, findings
    assert findings.outcomes["cancel: cancelled"] and findings.outcomes["cancel: too-late"]
    assert sum(findings.outcomes.values()) == 2 * size.count + 1  # and the fence
    if size is FULL:
        assert figures["cancels_per_s"] >= 0.95 * size.rate, "the storm was a breeze"


def storm(target: str, size: Size, send_ms: int, begin_ms: int) -> Plan:
    """All messages at once, due at the rate; and a cancel for each within AROUND_MS of its due
    time."""
    chance = Random(SEED)
    plan: Plan = []
    for number in range(size.count):
        due_ms, id = begin_ms + number * 1_000 // size.rate, b"storm%d-%d" % (send_ms, number)
        named = ("delayd-id", id)
        asks = (("delayd-topic", target.encode()), ("delayd-due", b"%d" % due_ms), named)
        plan.append(Planned(send_ms, id, id, asks))
        at_ms = due_ms + chance.randint(-AROUND_MS, AROUND_MS)
        plan.append(Planned(at_ms, id, None, (("delayd-op", b"cancel"), named)))
    return sorted(plan, key=lambda planned: planned.at_ms)


def figures_of(evidence: Evidence, findings: Findings) -> dict[str, Any]:
    """By the broker's clock: how fast the cancels came, and how far from their due times."""
    due_ms: dict[bytes | None, int] = {}
    for record in evidence.requests:
        if (due := record.header("delayd-due")) is not None:
            due_ms[record.key] = int(due)
    cancels = [r for r in evidence.requests if r.header("delayd-op") == "cancel"]
    times_ms = [record.append_ms for record in cancels]
    off_ms = [record.append_ms - due_ms[record.key] for record in cancels]
    return {
        "cancels": len(cancels),
        "cancels_per_s": round((len(cancels) - 1) * 1_000 / (max(times_ms) - min(times_ms)), 1),
        "append_minus_due_ms": quantiles(off_ms),
        "outcomes": dict(findings.outcomes),
    }


def quantiles(values: list[int]) -> dict[str, int]:
    """Of any numbers."""
    ordered = sorted(values)
    shares = (0, 0.01, 0.1, 0.5, 0.9, 0.99, 1)
    return {f"p{share * 100:g}": ordered[round(share * (len(ordered) - 1))] for share in shares}
