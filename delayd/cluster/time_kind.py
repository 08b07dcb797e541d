"""Whether a cluster's time is real or virtual: programs of one kind refuse clusters of the other.

In a virtual cluster weeks pass in a moment, so a real node would take its messages for late and its
clock for wrong. Whoever lives in virtual time would deliver real messages early.
"""

from delayd.errors import VirtualClusterError
from delayd.runtime.clock import is_virtual
from delayd.runtime.virtual_time import VARIABLE
from replication.settings import Settings


def refuse_other_time(settings: Settings) -> None:
    """Raise VirtualClusterError unless the cluster's time is of the same kind as this program's."""
    if settings.virtual and not is_virtual():
        raise VirtualClusterError(
            f"the cluster {settings.cluster!r} was made with a virtual clock, and this program's "
            "is real",
            remedy='run it in the cluster\'s environment, `eval "$(delayd dev env)"`; its nodes '
            "are those of `delayd dev up --virtual` alone",
        )
    if is_virtual() and not settings.virtual:
        raise VirtualClusterError(
            f"the clock of this program is virtual, and the cluster {settings.cluster!r} is real",
            remedy=f"unset {VARIABLE}",
        )
