"""Topics: delayd's own against the contract and against what is pending, and targets."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from delayd.bus import Cluster, TopicState
from delayd.cluster.limiting import lagging_shards, limits_of, torn_limits
from delayd.cluster.pausing import paused_of
from delayd.cluster.topic_checks import topic_findings
from delayd.commands.doctor.brokers import COPIES
from delayd.commands.doctor.case import Case
from delayd.commands.doctor.finding import Finding, Severity
from delayd.commands.wording import limit_told, local_time, plural, told_of
from delayd.node.targets.checks import Targets


def look_at_topics(case: Case) -> Iterator[Finding]:
    """Yield what is wrong with topics."""
    means, settings = case.means, case.settings
    with closing(means.bus.cluster()) as kafka:
        states = kafka.describe([topic.name for topic in settings.topics], means.timeout_ms)
        found = topic_findings(states, settings)
        for text in found.broken:
            yield Finding.told("topic-broken", Severity.CRITICAL, text)
        for text in found.warnings:
            yield _with_pending(
                Finding.told("buffer-endangered", Severity.CRITICAL, text), case, states
            )
        for text in found.advice:
            yield Finding.told("buffer-unguarded", Severity.WARNING, text)
        for state in states.values():
            yield from replicas(state, means.bootstrap, case.brokers)
        yield from _targets(kafka, case)
    for each in paused_of(case.seen.record.holds, means.clock.wall_ms()):
        resume = f"delayd resume {each['topic']}"
        yield Finding("target-paused", Severity.ADVICE, told_of(each), resume)
    yield from _limits(case)


def _limits(case: Case) -> Iterator[Finding]:
    """Yield the targets that are full, or nearly."""
    for topic in torn_limits(case.seen):
        text = f"the limits of {topic} are not the same in all shards: an order has reached some"
        again = f"delayd limits set {topic} --max-pending N --rate N"
        yield Finding("limits-differ", Severity.WARNING, text, again)
    for each in limits_of(case.seen.record.quotas):
        more = f"delayd limits set {each['topic']} {_doubled(each)}"
        if each["state"] == "full":
            what = limit_told(each) + _lag_told(case, each)
            yield Finding("target-full", Severity.WARNING, what, more)
        elif each["state"] == "nearly-full":
            yield Finding("target-nearly-full", Severity.ADVICE, limit_told(each), more)


def _lag_told(case: Case, limit: Mapping[str, Any]) -> str:
    """Return what lagging shards make of a full target; empty if nothing."""
    lag = lagging_shards(case.seen, limit["topic"])
    if limit["refused_by"] != "pending" or not 0 < len(lag) < case.settings.shards:
        return ""
    return (
        f"; what other shards have delivered counts as pending until shard {_listed(lag)} goes on: "
        "see delayd status"
    )


def _doubled(limit: Mapping[str, Any]) -> str:
    """Return the options by which a target may have twice of what is used up first."""
    most, rate = limit["max_pending"], limit["rate"]
    is_of_rate = most is None or (rate and limit["refused_by"] == "rate")
    return f"--rate {2 * (rate or 0)}/s" if is_of_rate else f"--max-pending {2 * most}"


def _with_pending(finding: Finding, case: Case, states: Mapping[str, TopicState]) -> Finding:
    """Return the finding with how much is due later than the buffer keeps what came just now."""
    kept_ms = int(states[case.settings.buffer.name].config.get("retention.ms", "-1"))
    if kept_ms < 0:
        return finding
    until_ms = case.means.clock.wall_ms() + kept_ms
    later = sum(
        hour["messages"] for hour in case.pending.get("hours", ()) if hour["from_ms"] > until_ms
    )
    what = (
        f"{finding.what}; {plural(later, 'message')} of those pending are due after "
        f"{local_time(until_ms)}, when even a request of now is deleted"
    )
    return Finding(finding.code, finding.severity, what, finding.mend)


def replicas(state: TopicState, bootstrap: str, brokers: int) -> Iterator[Finding]:
    """Yield what is wrong with the replicas of one of delayd's topics."""
    name, partitions = state.name, state.partitions
    describe = f"kafka-topics.sh --bootstrap-server {bootstrap} --describe --topic {name}"
    least = int(state.config.get("min.insync.replicas", "1"))
    down = [n for n, p in enumerate(partitions) if p.leader is None or p.in_sync < least]
    behind = [n for n, p in enumerate(partitions) if p.in_sync < p.replicas and n not in down]
    if down:
        what = f"partitions {_listed(down)} of {name} have no leader, or too few replicas in sync"
        start = f"{describe}, then start the brokers that hold them"
        yield Finding("partition-down", Severity.CRITICAL, what, start)
    if behind:
        what = f"partitions {_listed(behind)} of {name} have replicas that are not in sync"
        start = f"{describe} --under-replicated-partitions, then start or mend their brokers"
        yield Finding("under-replicated", Severity.WARNING, what, start)
    copies, wanted = min(p.replicas for p in partitions), min(COPIES, brokers)
    more = (
        f"kafka-reassign-partitions.sh --bootstrap-server {bootstrap} --execute "
        f"--reassignment-json-file FILE, with {wanted} replicas of each partition"
    )
    if copies < wanted:
        what = f"{name} has {plural(copies, 'replica')} on {brokers} brokers"
        yield Finding("few-replicas", Severity.WARNING, what, more)
    if brokers > 1 and 1 < copies <= least:
        what = f"{name} has no replica to spare: min.insync.replicas is {least} of {copies}"
        yield Finding("no-spare-replica", Severity.WARNING, what, more)


def _targets(kafka: Cluster, case: Case) -> Iterator[Finding]:
    """Yield why targets would not take what is pending for them, as a master would judge."""
    means = case.means
    targets = Targets(
        kafka,
        means.clock,
        means.timeout_ms,
        anchor=case.settings.frontier.name,
        unreplicated=bool(means.file.get("unreplicated_targets")),
    )
    targets.look_up(case.targets)
    states = kafka.survey(case.targets, means.timeout_ms).states
    for topic, count in case.pending.get("topics", {}).items():
        if topic not in case.targets or targets.is_unasked(topic):
            continue
        numbers = range(len(states[topic].partitions)) if topic in states else [None]
        said = (targets.problem_of(topic, number, b"", 0) for number in numbers)
        if (problem := next(filter(None, said), None)) is not None:
            what = f"{plural(count, 'message')} pending for {topic} will fail: {problem}"
            yield Finding(
                "target-failing", Severity.WARNING, what, mend_of(problem, topic, means.bootstrap)
            )


def mend_of(problem: str, topic: str, bootstrap: str) -> str:
    """Return what mends a target with this problem."""
    made = f"kafka-topics.sh --bootstrap-server {bootstrap}"
    if "does not exist" in problem:
        return f"{made} --create --topic {topic} --partitions N"
    return f"{made} --describe --topic {topic}; then see docs/operations.md, 'Failing targets'"


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
