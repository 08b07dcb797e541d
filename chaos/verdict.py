"""The verdict on a scenario, by the witness and by the audit, which must agree. Pure.

The audit and the cross-check see the whole stage; attribution.py divides it among scenarios. They
must agree about the stage, and so must the sum of the judge's findings on its scenarios.

The witness is everything here that reads topics with kafka-python: judge.py, acknowledgements.py,
order.py, and cross_check.py, which counts what the audit counts.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from chaos.cross_check import FATES, WRONG
from chaos.recovery import Recovery, quantile
from chaos.scenario import Scenario

SHOWN_MAX: Final = 10
"""Of each kind of problem."""

OUTCOMES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "delivered": ("message: delivered", "message: delivered after retries"),
    "dead": ("message: dead", "message: dead after retries"),
    "refused_as_duplicate": ("message: duplicate", "message: repeated"),
    "conflict": ("message: conflict",),
    "rejected": ("bad: rejected",),
    "pending": ("message: pending",),
}
"""The judge's words for the audit's. What was killed, the audit divides by how."""

REQUESTS: Final = ("message: ", "bad: ")
"""What begins so counts requests, each once: all but cancels."""

WITNESS: Final = "witness"
BOTH: Final = "witness and audit"

REPLICAS: Final = ("replica-missing", "replica-extra", "replica-changed")
KILLED: Final = ("message: killed", "message: killed after retries")


@dataclass(frozen=True, slots=True)
class LogEnds:
    """The ends of the logs at a moment: the next offsets."""

    buffer: tuple[int, ...]
    """By partition."""
    frontier: tuple[int, ...]
    """By partition; of those that were not there, nothing."""


@dataclass(frozen=True, slots=True)
class Witnessed:
    """One scenario, and all that the witness found, except what the cross-check counts."""

    at_ms: int
    wall_s: float
    sent: int
    begin: LogEnds
    """Of its segment of the logs."""
    targets: frozenset[str]
    is_quiescent: bool
    """If not, no other scenario can run on this cluster."""
    acknowledgements: Sequence[str] = ()
    receptions: Sequence[str] = ()
    judged: Sequence[str] = ()
    order: Sequence[str] = ()
    outcomes: Mapping[str, int] | None = None
    """The judge's; None if it came to no judgement."""
    recoveries: Sequence[Recovery] = ()
    failovers: int = 0
    troubles: Sequence[str] = ()
    """What else went wrong: clients, parts that did not come back."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A scenario's share of the findings on the whole stage."""

    found: Mapping[str, int]
    """The audit's findings that are its own, by fault."""
    counts: Mapping[str, int]
    """The cross-check's figures in its segment; empty if there are none."""
    troubles: Sequence[str] = ()
    """Findings that belong to no other scenario either."""
    examples: Sequence[str] = ()
    """Of what the cross-check counts as lost or doubled."""


@dataclass(frozen=True, slots=True)
class Result:
    """One line of a report. `problems` empty: all is as it should be."""

    scenario: str
    what: str
    backend: str
    seed: int
    at_ms: int
    wall_s: float
    messages: int
    requests: int
    strikes: tuple[str, ...]
    failovers: int
    lost: int
    doubled: int
    early: int
    altered: int
    unknown: int
    wrong_verdicts: int
    out_of_order: int
    replicas_differ: int
    recovery_p50_ms: int
    recovery_max_ms: int
    outcomes: Mapping[str, int]
    judges: str
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """For `results.jsonl`."""
        return {"verdict": "ok" if self.ok else "failed", **asdict(self)}


def problems_of(scenario: Scenario, witnessed: Witnessed, shared: Shared) -> tuple[str, ...]:
    """One sentence each, of each kind at most SHOWN_MAX."""
    problems: list[str] = []
    for kind, sentences in (
        ("acknowledgement", witnessed.acknowledgements),
        ("reception", witnessed.receptions),
        ("model", witnessed.judged),
        ("order", witnessed.order),
        ("trouble", witnessed.troubles),
        ("stage", shared.troubles),
    ):
        problems += [f"{kind}: {sentence}" for sentence in sentences[:SHOWN_MAX]]
        if len(sentences) > SHOWN_MAX:
            problems.append(f"{kind}: and {len(sentences) - SHOWN_MAX} more")
    problems += [f"audit: {count} {fault}" for fault, count in shared.found.items()]
    counts = shared.counts
    problems += [f"cross-check: {counts[name]} {name}" for name in WRONG if counts.get(name)]
    problems += [f"cross-check: {each}" for each in shared.examples]
    if witnessed.outcomes is not None and not witnessed.judged:
        judged = sum(n for kind, n in witnessed.outcomes.items() if kind.startswith(REQUESTS))
        if judged != counts.get("accepted"):
            told = f"{counts.get('accepted')} by the cross-check, {judged} by the model"
            problems.append(f"no agreement: requests in its segment: {told}")
    if witnessed.failovers < scenario.failovers_min:
        least = scenario.failovers_min
        problems.append(f"{witnessed.failovers} failovers, where at least {least} were due")
    problems += [
        f"recovery: {each.strike}: late for {each.late_for_ms} ms, more than {scenario.recovery_ms}"
        for each in witnessed.recoveries
        if each.late_for_ms > scenario.recovery_ms
    ]
    return tuple(problems)


def no_verdict(scenario: Scenario, seed: int, at_ms: int, why: str) -> Result:
    """Return the result of a scenario that did not run, or could not be judged."""
    nothing = Witnessed(at_ms, 0.0, 0, LogEnds((), ()), frozenset(), is_quiescent=False)
    result = result_of(scenario, seed, "?", nothing, Shared({}, {}), judges="nobody")
    return replace(result, problems=(f"no verdict: {why}",))


def disagreements(
    audit: Mapping[str, Any], counts: Mapping[str, int], outcomes: Mapping[str, int] | None
) -> list[str]:
    """Where the audit, the cross-check and the judge count something of a stage otherwise; the
    judge is not asked if it judged only a part (None)."""
    told = [
        f"{name}: {audit[name]} by the audit, {counts[name]} by the cross-check"
        for name in ("accepted", "pending", *WRONG, *FATES)
        if audit[name] != counts[name]
    ]
    if outcomes is not None:
        found = Counter(outcomes)
        for name, kinds in (*OUTCOMES_OF.items(), ("killed", KILLED)):
            audited = audit[name] if name != "killed" else audit["cancelled"] + audit["replaced"]
            judged = sum(found[kind] for kind in kinds)
            if audited != judged:
                told.append(f"{name}: {audited} by the audit, {judged} by the model")
    return [f"no agreement: {sentence}" for sentence in told]


def total(parts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Figures of parts, as the whole has them."""
    whole: Counter[str] = Counter()
    for part in parts:
        whole.update(part)
    return whole


def result_of(
    scenario: Scenario,
    seed: int,
    backend: str,
    witnessed: Witnessed,
    shared: Shared,
    *,
    judges: str = BOTH,
) -> Result:
    """The line. Where the audit and the cross-check differ, the worse figure."""
    found, counts = Counter(shared.found), Counter(shared.counts)
    late_for_ms = [each.late_for_ms for each in witnessed.recoveries]
    worst = {name: max(found[name], counts[name]) for name in WRONG}
    return Result(
        scenario=scenario.name,
        what=scenario.what,
        backend=backend,
        seed=seed,
        at_ms=witnessed.at_ms,
        wall_s=round(witnessed.wall_s, 1),
        messages=counts["accepted"],
        requests=witnessed.sent,
        strikes=tuple(each.strike for each in witnessed.recoveries),
        failovers=witnessed.failovers,
        lost=worst["lost"],
        doubled=worst["duplicate"],
        early=worst["early"],
        altered=worst["altered"],
        unknown=worst["unknown"],
        wrong_verdicts=sum(n for fault, n in found.items() if fault.startswith("verdict")),
        out_of_order=max(len(witnessed.order), found["order"]),
        replicas_differ=sum(found[fault] for fault in REPLICAS),
        recovery_p50_ms=quantile(late_for_ms, 0.5),
        recovery_max_ms=max(late_for_ms, default=0),
        outcomes=dict(sorted((witnessed.outcomes or {}).items())),
        judges=judges,
        problems=problems_of(scenario, witnessed, shared),
    )
