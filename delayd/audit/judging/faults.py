"""Every fault that an audit can find: a stable slug, the job that finds it, its meaning.

A fault is reported by one job only, and one wrong thing is one fault: a message that is missing is
`lost` and nothing besides, though its step's digest cannot be reproduced from the target either.
"""

from enum import Enum


class Fault(Enum):
    """A job and a meaning; `slug` is the fault's name in findings and in JSON."""

    def __init__(self, job: str, meaning: str) -> None:
        self.slug = self.name.lower().replace("_", "-")
        self.job = job
        self.meaning = meaning

    LOST = "delivery", "It was due, the frontier covers it, and it is nowhere."
    DUPLICATE = "delivery", "It is in the targets more than once."
    EARLY = "delivery", "It was delivered before its due time."
    STALE = "delivery", "It was delivered later than its request allows (`delayd-late`)."
    ALTERED = "delivery", "It was delivered with other content; the reason says which part differs."
    GHOST = "delivery", "It was delivered although it had been cancelled, replaced or refused."
    UNKNOWN = "delivery", "A record in a target names a source that nobody requested."
    SERIES = "delivery", "An occurrence of a series is not what the one before it leads to."
    LOCAL_TIME = "delivery", "A local time is not when the clock of its zone shows it."
    LETTER_MISSING = "delivery", "A request that had to be refused has no dead letter."
    LETTER_DOUBLED = "delivery", "A request has more than one dead letter."
    LETTER_FALSE = (
        "delivery",
        "A dead letter is of a valid request, has a wrong reason, or was altered.",
    )
    VERDICT_MISSING = "verdicts", "A request that is owed a receipt has none."
    VERDICT_DOUBLED = "verdicts", "A request has more than one receipt of a kind."
    VERDICT_FALSE = "verdicts", "A receipt is false."
    VERDICT_UNKNOWN = "verdicts", "A receipt names a request that nobody made, or is not a receipt."
    ORDER = "order", "It was delivered after one of a higher rank in the same target partition."
    REPLICA_ABSENT = (
        "replicas",
        "A node gave no export: it is down, behind, busy, another one, or not known.",
    )
    REPLICA_MISSING = "replicas", "A pending message is not on a node."
    REPLICA_EXTRA = "replicas", "A node holds a message that is not pending."
    REPLICA_CHANGED = "replicas", "A node holds a pending message with other content."
    FRONTIER_BACK = "frontier", "A frontier record steps back behind the one before."
    FRONTIER_AHEAD = "frontier", "A step moves a cursor beyond what was due by its own time."
    FRONTIER_TERM = "frontier", "A term falls, or one term has two owners."
    FRONTIER_STEP = "frontier", "A step is missing or there twice."
    FRONTIER_FALSE = "frontier", "A step reports other deliveries than its difference shows."
    FRONTIER_HELD = (
        "frontier",
        "A step delivers to a paused target, or its pauses are not those that were ordered.",
    )
    FRONTIER_QUOTA = (
        "frontier",
        "A step calls a target full, or open, that is not, or its quotas are not as ordered.",
    )
    FRONTIER_BROKEN = "frontier", "A record of the frontier topic is not a frontier record."


JOBS = ("delivery", "verdicts", "order", "replicas", "frontier")
