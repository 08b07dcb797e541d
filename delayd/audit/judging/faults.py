"""Every fault that an audit can find: a stable slug, the job that finds it, its meaning.

A fault is reported by one job only, and one wrong thing is one fault: a message that is missing is
`lost` and nothing besides, though its step's digest cannot be reproduced from the target either.
"""

from enum import Enum


class Fault(Enum):
    """A slug, a job and a meaning."""

    job: str
    meaning: str

    def __new__(cls, slug: str, job: str = "", meaning: str = "") -> "Fault":
        member = object.__new__(cls)
        member._value_ = slug
        member.job = job
        member.meaning = meaning
        return member

    @property
    def slug(self) -> str:
        """Return the fault's name in findings and in JSON."""
        return str(self._value_)

    LOST = "lost", "delivery", "It was due, the frontier covers it, and it is nowhere."
    DUPLICATE = "duplicate", "delivery", "It is in the targets more than once."
    EARLY = "early", "delivery", "It was delivered before its due time."
    ALTERED = (
        "altered",
        "delivery",
        "It was delivered with other content; the reason says which part differs.",
    )
    GHOST = (
        "ghost",
        "delivery",
        "It was delivered although it had been cancelled, replaced or refused.",
    )
    UNKNOWN = (
        "unknown",
        "delivery",
        "A record in a target names a source that nobody requested.",
    )
    LETTER_MISSING = (
        "letter-missing",
        "delivery",
        "A request that had to be refused has no dead letter.",
    )
    LETTER_DOUBLED = "letter-doubled", "delivery", "A request has more than one dead letter."
    LETTER_FALSE = (
        "letter-false",
        "delivery",
        "A dead letter is of a valid request, has a wrong reason, or was altered.",
    )
    VERDICT_MISSING = "verdict-missing", "verdicts", "A request that is owed a receipt has none."
    VERDICT_DOUBLED = (
        "verdict-doubled",
        "verdicts",
        "A request has more than one receipt of a kind.",
    )
    VERDICT_FALSE = "verdict-false", "verdicts", "A receipt is false."
    VERDICT_UNKNOWN = (
        "verdict-unknown",
        "verdicts",
        "A receipt names a request that nobody made, or is not a receipt.",
    )
    ORDER = (
        "order",
        "order",
        "It was delivered after one of a higher rank in the same target partition.",
    )
    REPLICA_ABSENT = (
        "replica-absent",
        "replicas",
        "A node gave no export: it is down, behind, busy, another one, or not known.",
    )
    REPLICA_MISSING = "replica-missing", "replicas", "A pending message is not on a node."
    REPLICA_EXTRA = "replica-extra", "replicas", "A node holds a message that is not pending."
    REPLICA_CHANGED = (
        "replica-changed",
        "replicas",
        "A node holds a pending message with other content.",
    )
    FRONTIER_BACK = (
        "frontier-back",
        "frontier",
        "A frontier record steps back behind the one before.",
    )
    FRONTIER_AHEAD = (
        "frontier-ahead",
        "frontier",
        "A step moves a cursor beyond what was due by its own time.",
    )
    FRONTIER_TERM = "frontier-term", "frontier", "A term falls, or one term has two owners."
    FRONTIER_STEP = "frontier-step", "frontier", "A step is missing or there twice."
    FRONTIER_FALSE = (
        "frontier-false",
        "frontier",
        "A step reports other deliveries than its difference shows.",
    )
    FRONTIER_BROKEN = (
        "frontier-broken",
        "frontier",
        "A record of the frontier topic is not a frontier record.",
    )


JOBS = ("delivery", "verdicts", "order", "replicas", "frontier")
