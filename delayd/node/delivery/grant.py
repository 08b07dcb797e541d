"""A grant of leadership: what the election lets a delivery thread do, and until when."""

from delayd.coordination import Leadership


class Grant:
    """Leadership as the delivery thread sees it; the control loop extends or withdraws it.

    `outlives_lease`: a term that was begun under it goes on past the deadline. No term is begun
    there, so nobody is fenced by a node that need not lead any more.
    """

    def __init__(self, owner: str, deadline_ms: int, *, outlives_lease: bool = False) -> None:
        self.owner = owner
        self._outlives_lease = outlives_lease
        self.term = 0
        """The last term that was begun under it; 0 for none."""
        self.leadership: Leadership | None = None
        """Of the leader key, under which etcd takes this master's progress."""
        self.deadline_ms = deadline_ms
        """Monotonic time past which the lease counts for nothing."""
        self.withdrawn = False

    def is_valid(self, monotonic_ms: int) -> bool:
        """True if the master may begin another step."""
        return not self.withdrawn and self.is_live(monotonic_ms)

    def is_live(self, monotonic_ms: int) -> bool:
        """True if the master may finish the step that it is in."""
        return self.has_lease(monotonic_ms) or (self._outlives_lease and self.term > 0)

    def has_lease(self, monotonic_ms: int) -> bool:
        """True if nobody else can have been elected, by this node's clock."""
        return monotonic_ms < self.deadline_ms
