"""An audit proves that each message was delivered once, which not every cluster promises."""

from delayd.audit.spans import AuditError
from replication.settings import AT_LEAST_ONCE, Settings


def refuse_at_least_once(settings: Settings) -> None:
    """AuditError where messages may be doubled: steps and deliveries are not committed together
    there, so no step can be compared with what it delivered."""
    if settings.guarantee == AT_LEAST_ONCE:
        raise AuditError(
            f"the cluster {settings.cluster!r} guarantees {AT_LEAST_ONCE}: an audit proves that "
            "nothing was doubled, which nobody promises there",
            remedy="look for what is missing in your targets by `delayd-source`, and see "
            "docs/guarantees.md, 'At least once'",
        )
