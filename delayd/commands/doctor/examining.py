"""One examination: every concern in its turn, whatever the others come to.

Invariant: what cannot be looked at is a finding of its own, so silence means that it is well.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from delayd.cluster.status import status_at
from delayd.cluster.topics import read_settings
from delayd.commands.doctor.brokers import look_at_brokers
from delayd.commands.doctor.case import Case, Means, broker_count, pending_of
from delayd.commands.doctor.certificates import look_at_certificates
from delayd.commands.doctor.finding import Finding, Severity
from delayd.commands.doctor.nodes import look_at_nodes, look_at_this_machine
from delayd.commands.doctor.rebuilding import Rebuilding, look_at_rebuilding, rebuilding_of
from delayd.commands.doctor.servers import look_at_etcd
from delayd.commands.doctor.topics import look_at_topics
from delayd.commands.doctor.transactions import look_at_transactions
from delayd.errors import ConfigError, DelaydError, ExitCode


@dataclass(slots=True)
class Examination:
    """What was found so far."""

    findings: list[Finding] = field(default_factory=list)
    """In the order of their severity, once it is over. What the same command mends is one."""
    rebuilding: Rebuilding | None = None
    """None if that could not be looked at."""
    exit_code: ExitCode = ExitCode.FINE

    @property
    def is_well(self) -> bool:
        """True if nothing but advice was found."""
        return not any(each.is_wrong for each in self.findings)

    def take(self, what: str, look: Callable[[], Iterable[Finding]]) -> None:
        """Note what one look finds, or why it could not be taken."""
        try:
            for finding in look():
                self._note(finding)
        except ConfigError:
            raise
        except DelaydError as error:
            text = f"{what}: {error.message}"
            self._note(Finding(error.code, Severity.CRITICAL, text, error.remedy))
            self.exit_code = max(self.exit_code, error.exit_code)

    def _note(self, finding: Finding) -> None:
        if any((each.code, each.mend) == (finding.code, finding.mend) for each in self.findings):
            return
        self.findings.append(finding)
        if finding.is_wrong:
            self.exit_code = max(self.exit_code, ExitCode.PROBLEM)


def examine(means: Means, cluster: str, prefix: str) -> Examination:
    """Look at everything, and change nothing. ConfigError if the settings make no sense."""
    found = Examination()
    found.take("etcd", partial(look_at_etcd, means))
    nodes: dict[str, str] = {}
    for case in _case(found, means, cluster, prefix):
        nodes = {str(node["node"]): str(node["admin"]) for node in case.nodes}
        found.take("brokers", partial(look_at_brokers, means, case.brokers))
        found.take("topics", partial(look_at_topics, case))
        found.take("transactions", partial(look_at_transactions, case))
        found.take("nodes", partial(look_at_nodes, case))
        found.take("rebuilding", partial(_rebuilding, found, case))
    found.take("this machine", partial(look_at_this_machine, means))
    found.take("certificates", partial(look_at_certificates, means, nodes))
    order = [*Severity]
    found.findings.sort(key=lambda each: order.index(each.severity))
    return found


def _case(found: Examination, means: Means, cluster: str, prefix: str) -> list[Case]:
    """Return the case, unless Kafka does not tell of one."""
    cases: list[Case] = []

    def look() -> Iterator[Finding]:
        count = broker_count(means)
        seen = read_settings(means.bus, cluster, prefix, means.timeout_ms)
        if means.coordination is not None:
            means.coordination.enter(seen.record.settings.realm)
        report, problems = status_at(
            seen, means.bus, means.coordination, means.clock, means.timeout_ms
        )
        nodes = report["nodes"]
        cases.append(Case(means, seen, count, nodes, problems, pending_of(nodes)))
        yield from ()

    found.take("the cluster", look)
    return cases


def _rebuilding(found: Examination, case: Case) -> Iterator[Finding]:
    found.rebuilding = rebuilding_of(case)
    yield from look_at_rebuilding(found.rebuilding)
