"""The report of an audit on its way to the nodes, which list it in the console and by the API.

It is sent to every node that etcd knows, under the cluster key. What comes of that changes no
verdict: an audit whose report no node takes says so on stderr, and ends as it would.
"""

from contextlib import closing
from typing import Final

from delayd.audit.report import Report
from delayd.audit.showing.page import page
from delayd.audit.table_loader import Source
from delayd.cluster.admin_client import Member
from delayd.cluster.audit_reports import publish
from delayd.cluster.connect import open_coordination
from delayd.cluster.member_proof import MemberKeys
from delayd.cluster.topics import load_settings
from delayd.config.cluster_key import signing_key
from delayd.config.security import Security
from delayd.errors import ConfigError, DelaydError, NodeUnreachableError

TIMEOUT_MS: Final = 15_000


def published(
    report: Report, source: Source, etcd: tuple[str, ...], prefix: str, security: Security
) -> list[str]:
    """Send a report to the nodes that etcd knows; return what was not done, a line each."""
    try:
        if source.cluster_key is None:
            raise ConfigError(
                "nodes take it under the cluster key only",
                remedy="give --cluster-key, or --no-publish",
            )
        settings = load_settings(source.bus, report.cluster, prefix, TIMEOUT_MS).record.settings
        with closing(open_coordination(etcd, report.cluster, security)) as coordination:
            coordination.check_reachable(TIMEOUT_MS)
            coordination.enter(settings.realm)
            found = coordination.members()
        if not found:
            raise NodeUnreachableError("etcd knows no node")
        members = [Member.of(node, value) for node, value in sorted(found.items())]
        keys = MemberKeys(signing_key(source.cluster_key, settings), settings.realm)
        return publish(report.to_json(), page(report), members, keys, source.clock)
    except (DelaydError, ValueError, AttributeError) as error:  # a member key may be no JSON
        return [f"the report is not published: {error}"]
