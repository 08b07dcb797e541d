"""One scenario on a cluster that is up: send, strike, wait until it is quiescent, judge.

It reads the logs from where the scenario began, so that earlier scenarios are not judged again.
Not here: the cluster, and the audit when all scenarios have run (stage_run.py).

Invariant: it returns, whatever breaks. A scenario that does not become quiescent reports it, and
leaves a cluster on which no other can run.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from chaos.acknowledgements import acknowledgement_faults, reception_faults
from chaos.backend import Backend, BackendError
from chaos.bridges import CAUSE, EVENTS, bridge_faults, unanswered
from chaos.evidence import OWN, Ends, Evidence, ends_of, observing
from chaos.faults import Kind, Striker, pause, wait_until
from chaos.history import History, now_ms
from chaos.operating import PAUSES, Operator, pause_faults
from chaos.order import failovers_of, order_faults
from chaos.quiesce import findings_once_over, judged, restore, wait_until_quiescent
from chaos.records import Logged
from chaos.recovery import recoveries
from chaos.scenario import Scenario, timed
from chaos.ticks import tick_faults
from chaos.traffic import ConfluentSender, Traffic
from chaos.verdict import LogEnds, Witnessed
from chaos.workload import CHAOS_SHARES, EXPECT, VARIED_SHARES, Scene, mixture

LEAD_MS: Final = 4_500
"""From the making of a plan to the first due time: messages are scheduled 1.5 to 2.5 s ahead."""

HOT: Final = (0.3, 0.65)
HOT_SHARE: Final = 0.06
LATE_AT: Final = 0.55
LATE_SHARE: Final = (0.2, 0.54)
"""Before their target is there: all are retried, some die of it, and those due last are delivered.
In less time so many retries would be what a run is about."""

NEVER_SHARE: Final = (0.0, 0.6)
"""What is due later would make each scenario as much longer as its retries last."""

RETRIED_FOR_MS: Final = 7_000
NEAR_MS: Final = 10 * 60 * 1000
"""Beyond the first due time: what is due later is pending at the end (workload.FAR_MS)."""

ANSWERED_S: Final = 60.0
"""How long a bridge may take to read what is there."""

RECREATED_SHARE: Final = (0.1, 0.9)
FRONTIERS_BEFORE: Final = 50
"""Offsets: order is judged by the step before the first, too."""


def run_scenario(
    backend: Backend, scenario: Scenario, seed: int, history: Path, tell: Callable[[str], None]
) -> Witnessed:
    """Return all that is known of it without an audit; `history` gets what clients see."""
    return _ScenarioRun(backend, scenario, seed, History(history), tell).go()


@dataclass
class _ScenarioRun:
    _backend: Backend
    _scenario: Scenario
    _seed: int
    _history: History
    _tell: Callable[[str], None]
    _troubles: list[str] = field(default_factory=list)
    _sent: int = 0
    _targets: frozenset[str] = frozenset()
    _pauses: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = Random(f"{self._seed}: {self._scenario.name}: victims")
        kinds = [strike.fault.kind for strike in self._scenario.strikes]
        self._is_recreated = Kind.RECREATE_TARGET in kinds
        self._buffer = f"{self._backend.prefix}buffer"
        self._frontier = f"{self._backend.prefix}frontier"

    def go(self) -> Witnessed:
        at_ms, begun_s = now_ms(), time.monotonic()
        topics = [f"{self._backend.prefix}{name}" for name in OWN]
        since = ends_of(self._backend.bootstrap, topics)
        begin = LogEnds(since[self._buffer], since[self._frontier])
        found = Witnessed(at_ms, 0.0, 0, begin, frozenset(), is_quiescent=False)
        try:
            found = self._go(found, since)
        except Exception as error:
            self._troubles.append(f"{type(error).__name__}: {error}")
        finally:
            self._history.close()
        return replace(
            found,
            wall_s=time.monotonic() - begun_s,
            sent=self._sent,
            targets=self._targets,
            troubles=tuple(self._troubles),
        )

    def _go(self, begun: Witnessed, since: Ends) -> Witnessed:
        scene = self._scene()
        self._targets = frozenset(targets_of(scene))
        ends = begun.begin.frontier
        since[self._frontier] = tuple(max(0, end - FRONTIERS_BEFORE) for end in ends)
        evidence = self._evidence_of(scene, since, with_frontier=True)
        with closing(evidence):
            striker = self._send_and_strike(scene, since)
            is_quiescent = self._quiesce(scene, evidence)
            return replace(self._judge(begun, scene, evidence, striker), is_quiescent=is_quiescent)

    def _send_and_strike(self, scene: Scene, since: Ends) -> Striker:
        count, backend = self._scenario.load.requests, self._backend
        shares = VARIED_SHARES if self._scenario.is_varied else CHAOS_SHARES
        plan = mixture(scene, count=count, seed=self._seed, shares=shares)
        striker = Striker(backend, scene.late, lambda parts: self._chance.choice(sorted(parts)))
        with observing(self._evidence_of(scene, since, seen=self._note)):
            traffic = Traffic(backend.bootstrap, self._buffer, plan, self._history)
            operator = Operator(backend, scene, self._tell)
            self._pauses = operator.pauses
            try:
                with traffic, operator if scene.held else nullcontext():
                    self._strike(striker, scene)
            except (BackendError, TimeoutError) as error:
                self._troubles.append(f"{type(error).__name__}: {error}")
            self._sent = traffic.sent
            self._troubles += [*traffic.failures, *operator.troubles]
            self._tell(f"{traffic.sent} requests sent, at most {traffic.behind_ms} ms late")
            return striker

    def _note(self, record: Logged) -> None:
        """Note a reception, with its source if it came from a target."""
        source = record.header("delayd-source") if record.topic in self._targets else None
        self._history.received("consumer", record.topic, record.place, source)

    def _quiesce(self, scene: Scene, evidence: Evidence) -> bool:
        begun_s = time.monotonic()
        try:
            self._troubles += restore(self._backend)
            restored_s = time.monotonic()
            if scene.events and not wait_until(lambda: self._is_answered(evidence), ANSWERED_S):
                self._troubles += unanswered(evidence.of(scene.events), evidence.requests)
            timeout_ms = self._scenario.settle_ms
            bootstrap, until_ms = self._backend.bootstrap, scene.first_due_ms + NEAR_MS
            send = ConfluentSender(bootstrap, self._buffer, "fence", self._history).send
            findings_once_over(evidence, send, scene.targets[0], timeout_ms, until_ms=until_ms)
            told_s = time.monotonic()
            restless = wait_until_quiescent(self._backend, timeout_ms)
        except (BackendError, TimeoutError) as error:
            self._troubles.append(f"{type(error).__name__}: {error}")
            return False
        self._troubles += restless
        self._tell(
            f"restored in {restored_s - begun_s:.1f} s, all outcomes {told_s - restored_s:.1f} s"
            f" later, quiescent {time.monotonic() - told_s:.1f} s later"
        )
        return not restless

    def _is_answered(self, evidence: Evidence) -> bool:
        evidence.read()
        return not unanswered(evidence.of(EVENTS), evidence.requests)

    def _judge(
        self, begun: Witnessed, scene: Scene, evidence: Evidence, striker: Striker
    ) -> Witnessed:
        evidence.read()
        findings = judged(evidence, scene.first_due_ms + NEAR_MS)
        frontiers = frontiers_since(evidence.frontiers, begun.begin)
        parts = (evidence.requests, evidence.delivered, evidence.dead, evidence.receipts)
        received = [record for part in (*parts, evidence.of(EVENTS)) for record in part]
        due_ms_of = {
            record.place: int(record.header("delayd-due") or 0)
            for record in evidence.requests
            if record.header(EXPECT) is None and "zone" not in record.fields
        }
        return replace(
            begun,
            acknowledgements=acknowledgement_faults(self._history, evidence.requests),
            receptions=reception_faults(self._history, due_ms_of, received),
            judged=(*findings.faults, *findings.waiting, *self._varied_faults(scene, evidence)),
            order=order_faults(evidence.requests, evidence.delivered, frontiers),
            outcomes=findings.outcomes,
            recoveries=recoveries(striker.struck, evidence.requests, evidence.delivered),
            failovers=failovers_of(frontiers),
        )

    def _varied_faults(self, scene: Scene, evidence: Evidence) -> list[str]:
        """What the model does not know of series, events and pauses; and what was not met."""
        if not self._scenario.is_varied:
            return []
        requests, refused = (
            evidence.requests,
            Counter(each.fields["reason"] for each in evidence.dead),
        )
        met = {
            "an occurrence": any("occurrence" in each.fields for each in evidence.delivered),
            "a window": any("planned" in each.fields for each in evidence.delivered),
            "a cancel by an event": any(each.header(CAUSE) is not None for each in requests),
            "a limit": refused["over-quota"] > 0,
            "pauses": len(self._pauses) == len(PAUSES),
        }
        return [
            *tick_faults(requests),
            *bridge_faults(evidence.of(EVENTS), requests),
            *pause_faults(self._pauses, evidence.of(scene.held)),
            *(f"not met: {what}" for what, is_met in met.items() if not is_met),
        ]

    def _scene(self) -> Scene:
        """Make the targets. The first due time is set here: be quick from now on."""
        run = f"r{now_ms()}"
        targets = tuple(f"target.{run}.{name}" for name in "ab")
        late, never = (f"target.{run}.{name}" for name in ("late", "never"))
        for target in targets:
            self._backend.topics.create(target, 4)
        if self._is_recreated:
            self._backend.topics.create(late, 2)
        held, limited, events = self._varied(run) if self._scenario.is_varied else ("", "", "")
        load = self._scenario.load
        return Scene(
            run,
            targets,
            late,
            never,
            now_ms() + LEAD_MS,
            load.spread_ms,
            RECREATED_SHARE if self._is_recreated else LATE_SHARE,
            HOT,
            HOT_SHARE,
            load.slow_ms,
            NEVER_SHARE,
            RETRIED_FOR_MS,
            held,
            limited,
            events,
        )

    def _varied(self, run: str) -> tuple[str, str, str]:
        """Make what varied traffic needs; returns when the bridge reads."""
        held, limited = (f"target.{run}.{name}" for name in ("held", "limited"))
        for topic in (held, limited, EVENTS):
            self._backend.topics.create(topic, 2)
        if not wait_until(self._is_bridged, ANSWERED_S):
            raise BackendError(f"nobody reads {EVENTS}")
        return held, limited, EVENTS

    def _is_bridged(self) -> bool:
        said = [self._backend.status(node).get("cancel_on") for node in self._backend.nodes]
        return any(each and each["topics"].get(EVENTS, {}).get("lag") == 0 for each in said)

    def _evidence_of(self, scene: Scene, since: Ends, **options: Any) -> Evidence:
        backend, events = self._backend, (scene.events,) if scene.events else ()
        targets = targets_of(scene)
        return Evidence(
            backend.bootstrap, backend.prefix, targets, others=events, since=since, **options
        )

    def _strike(self, striker: Striker, scene: Scene) -> None:
        late = threading.Thread(target=self._create_late, args=(scene,), daemon=True)
        if not self._is_recreated:
            late.start()
        try:
            for strike in timed(self._scenario, self._seed):
                at_ms = scene.first_due_ms + int(scene.spread_ms * strike.share)
                pause(at_ms - now_ms())
                self._tell(str(strike.fault))
                striker.strike(strike.fault)
        finally:
            if late.ident is not None:
                late.join()

    def _create_late(self, scene: Scene) -> None:
        pause(scene.first_due_ms + int(scene.spread_ms * LATE_AT) - now_ms())
        try:
            self._backend.topics.create(scene.late, 2)
        except BackendError as error:
            self._troubles.append(f"{scene.late} could not be created: {error}")


def targets_of(scene: Scene) -> tuple[str, ...]:
    """Return all that it delivers to."""
    varied = (scene.held, scene.limited) if scene.held else ()
    return (*scene.targets, scene.late, scene.never, *varied)


def log_ends_of(backend: Backend) -> LogEnds:
    """Return where the logs end now, open transactions included."""
    buffer, frontier = f"{backend.prefix}buffer", f"{backend.prefix}frontier"
    ends = ends_of(backend.bootstrap, (buffer, frontier))
    return LogEnds(ends[buffer], ends[frontier])


def frontiers_since(frontiers: Sequence[Logged], begin: LogEnds) -> list[Logged]:
    """Return the steps from `begin` on, and of each shard the one before them."""
    found, ends = [], dict(enumerate(begin.frontier))
    for partition in sorted({record.partition for record in frontiers}):
        steps = [r for r in frontiers if r.partition == partition and r.is_frontier]
        before = [r for r in steps if r.offset < ends.get(partition, 0)]
        found += [*before[-1:], *steps[len(before) :]]
    return found
