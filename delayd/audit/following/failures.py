"""Why a follower ends by itself."""

from delayd.errors import DelaydError


class FollowFailedError(DelaydError):
    """The delivery audit does not run any more; start it again, it goes on where it was."""

    code = "audit-follow"
