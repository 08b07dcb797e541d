"""The errors of an audit that cannot be made, and of a follower that ends by itself."""

from delayd.errors import DelaydError
from replication.settings import AT_LEAST_ONCE, Settings


class AuditError(DelaydError):
    """The audit could not be made; nothing is said about the cluster."""

    code = "audit"


class FollowFailedError(DelaydError):
    """The delivery audit does not run any more; start it again, it goes on where it was."""

    code = "audit-follow"


def refuse_at_least_once(settings: Settings) -> None:
    """Raise AuditError where messages may be doubled: an audit proves that each was delivered once,
    and steps and deliveries are not committed together there, so no step can be compared with what
    it delivered."""
    if settings.guarantee == AT_LEAST_ONCE:
        raise AuditError(
            f"the cluster {settings.cluster!r} guarantees {AT_LEAST_ONCE}: an audit proves that "
            "nothing was doubled, which nobody promises there",
            remedy="look for what is missing in your targets by `delayd-source`, and see "
            "docs/guarantees.md, 'At least once'",
        )


def refuse_virtual(settings: Settings) -> None:
    """Raise AuditError where time is virtual: the brokers' times are real, and an audit compares
    them with due times."""
    if settings.virtual:
        raise AuditError(
            f"the clock of the cluster {settings.cluster!r} is virtual: nothing on its brokers "
            "says at what time of it a record was written",
            remedy="audit a cluster that was made with `delayd dev up` without --virtual",
        )
