"""Whether a program lives in its cluster's time, real or virtual: it refuses all other clusters.

In a virtual cluster weeks pass in a moment, so a real node would take its messages for late and its
clock for wrong. Whoever lives in virtual time would deliver real messages early.
"""

import os

from delayd.errors import VirtualClusterError
from delayd.runtime.virtual_time import VARIABLE, virtual_time_of
from replication.settings import Settings


def refuse_other_time(settings: Settings) -> None:
    """Raise VirtualClusterError unless the cluster's time is this program's: a real one, or the one
    that its file says."""
    virtual = virtual_time_of(os.environ)
    if settings.virtual and virtual is None:
        raise VirtualClusterError(
            f"the cluster {settings.cluster!r} was made with a virtual clock, and this program's "
            "is real",
            remedy='run it in the cluster\'s environment, `eval "$(delayd dev env)"`; its nodes '
            "are those of `delayd dev up --virtual` alone",
        )
    if virtual is None:
        return
    if not settings.virtual:
        raise VirtualClusterError(
            f"the clock of this program is virtual, and the cluster {settings.cluster!r} is real",
            remedy=f"unset {VARIABLE}",
        )
    if virtual.cluster not in ("", settings.frontier.topic_id):
        raise VirtualClusterError(
            f"{virtual.file} is the time of another virtual cluster",
            remedy='take both from one place: `eval "$(delayd dev env --dir FOLDER)"`',
        )
